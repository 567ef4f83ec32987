// A rank's end of a communicator: carries out calls. All ranks agree on a call, select the path that it takes, execute
// the plan and finish.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "policy/distance.h"
#include "policy/residency.h"
#include "runtime/paths.h"
#include "runtime/team.h"

namespace hocket {

class Communicator {
  public:
    // `lifelines`: see ControlPlane.
    Communicator(u32 rank, u32 size, Memory& memory, std::vector<int> lifelines, Settings settings);

    u32 rank() const { return control_.rank(); }
    u32 size() const { return control_.size(); }
    u32 threads() const { return settings_.threads; }
    Memory& memory() { return memory_; }
    Network* network() { return settings_.network; }
    bool is_remote(u32 rank) const { return settings_.network != nullptr && settings_.network->is_remote(rank); }
    ControlPlane& control() { return control_; }

    ~Communicator();

    Outcome run(Plan& plan, const Call& call);
    // The same in two parts, of which the first waits for nobody: false, with nothing said, where messages do not fit
    // the header, as other ranks may then offer their buffers. The second does not wait once all ranks have entered.
    // Between them there is no other call.
    bool post(Plan& plan, const Call& call);
    Outcome complete();
    Outcome barrier(double timeout = 0);
    Outcome exchange(const std::string& word, u64 digest);

    // The fewest bytes of its larger buffer with which this rank offers private ones. `far`: they are in no cache near;
    // `huge`: in huge pages.
    u64 attached_bytes(const Plan& plan, bool far = false, bool huge = true) const;
    // With an array for the input, for the output.
    Outlook outlook(const Plan& plan, u64 n, u32 type, u64 tile, bool input, bool output) const;

    // What the kernels have moved in all calls that have ended. May be called while another thread is in a call.
    Traffic traffic() const;

  private:
    struct CallState;
    template <class Event> struct Run;

    struct alignas(kLine) Moved : Traffic {};

    template <class Body> Outcome recorded(u64 plan, Body body);
    template <class Body> Outcome record(u64 plan, Body body);
    Outcome run_counted(Plan& plan, Call call);
    template <class Event> Outcome carry_out(Plan& plan, const Call& call, Event event);
    template <class Event> Outcome carry_on(CallState& state, Event event);
    template <class Event> Outcome execute_and_finish(CallState& state, Event event);
    void state_terms(CallState& state);
    int prepare_all(CallState& state);
    int prepare(CallState& state, Candidate& candidate, u64 most_eager);
    int reserve_scratch(const Candidate& candidate);
    void offer(CallState& state);
    void offer_private(CallState& state);
    void plan_probe(CallState& state, bool is_private) const;
    void look_at_others(const CallState& state);
    u32 ranks_in_small_pages() const;
    const Distance* apart() const { return some_apart_ ? distances_.data() : nullptr; }
    void send_eagerly(CallState& state);
    void meanwhile(CallState& state) const;
    bool learn_size(CallState& state) const;
    int select_path(CallState& state);
    int open_path(CallState& state);
    template <class Event> Outcome execute(CallState& state, Event event);
    template <class Event> Outcome work(Run<Event>& run, u32 thread);
    template <class Event> Outcome work_together(Run<Event>& run);
    Execution<Cpu, End> execution(CallState& state, const Candidate& candidate, char* input, char* output) const;
    const Scale* scale(const CallState& state) const;
    void finish(const CallState& state) const;
    Outcome refuse_for_memory(int error);
    Outcome give_up_for(const char* missing, int error);
    void add(u32 thread, const Traffic& moved);

    Memory& memory_;
    const Settings settings_;
    ControlPlane control_;
    std::vector<Distance> distances_;  // by rank
    bool some_apart_ = false;
    u64 looks_ = 0;  // at others
    EagerPath eager_;
    FifoPath fifo_;
    ZeroCopyPath zero_copy_;
    std::unique_ptr<char, decltype(&std::free)> scratch_{nullptr, &std::free};  // aligned to kAlign
    u64 scratch_bytes_ = 0;
    std::unique_ptr<CallState> posted_;
    std::vector<Outcome> outcomes_;  // of the threads of one call
    std::vector<Moved> moved_;       // by each thread in all calls
    Team team_;
};

}  // namespace hocket
