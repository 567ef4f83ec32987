// A rank's end of a communicator: enters calls, runs plans, notices faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/interpreter.h"
#include "policy/tunables.h"
#include "policy/tuner.h"
#include "runtime/recorder.h"
#include "runtime/team.h"

namespace hocket {

class Communicator;

// How a plan runs on buffers of one length, the same on all ranks. `slots` of a connection.
struct Settled {
    Geometry geometry{};
    u64 slots = 0;
    Rounds rounds = Rounds::kMany;
    bool in_one_round() const { return rounds == Rounds::kOne; }
};

// A plan made ready for one communicator. Owns all memory an execution needs but its buffers.
class Plan {
  public:
    // Throws std::invalid_argument if the words are no plan of this rank.
    Plan(Communicator& communicator, std::vector<u32> words, u64 digest, std::string name);
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    const PlanHeader& header() const { return *view_.header; }
    u64 number() const { return author_; }
    bool combines() const { return view_.combines; }
    bool lends() const { return view_.lends; }

  private:
    friend class Communicator;

    struct Opaque {  // elements that kernels do not know: the last ones that a call was of
        std::string element;
        u32 digest = 0;
        u64 author = 0;
        std::string text;
    };

    const Opaque& opaque(const std::string& element, Communicator& communicator);

    Room room(u32 thread, bool reaches) {
        const u64 at = 2 * u64(view_.most_operands) * thread;
        return {pointers_.data() + at, reaches ? owners_.data() + at : nullptr};
    }

    struct Latest {  // what was settled last, and for what
        u64 n = 0, tile = 0;
        u32 type = ~0u;
        bool in_one_round = false;
        Settled settled;
    };

    std::vector<u32> words_;
    u64 digest_;
    std::string name_;
    u64 author_;  // of the text in a line that says its name; no other plan of its communicator has it
    PlanView view_{};
    std::vector<Window*> windows_;     // of the connections
    std::vector<Window*> multicasts_;  // of all ranks
    std::vector<End> ends_;
    std::vector<Cursor> cursors_;
    std::vector<char*> pointers_;  // of the rooms of all threads
    std::vector<u32> owners_;
    Latest latest_;
    Opaque opaque_;
    const char* result_ = nullptr;        // where that of the latest call lies
    const char* stored_past_ = nullptr;   // the same, if it was stored past the caches
    std::span<const char> reachable_[2];  // buffers of the latest call that others reach
    Contests* contests_ = nullptr;        // of its schedule, once there was one
};

// Units of lengths of their own. `bounds`: of those of the input and of the output, in bytes (interpreter.h). `digest`
// is that of the lengths of all, the same on every rank. Without, they are pairwise: a rank knows those of its own,
// what it sends to each rank and what it gets from each. `text` is for errors.
struct Units {
    std::vector<u64> bounds[2];
    std::optional<u64> digest;
    std::string text;
};

// How a call can go: through slots, or with messages in buffers that all ranks can access, where every rank works in
// place, or has its input and its output apart. In both of these ranks may fetch all that they want instead.
enum Way : u32 { kThroughSlots = 0, kInPlace = 1, kApart = 2, kFetchedInPlace = 3, kFetchedApart = 4, kWays = 5 };
constexpr Way kLent[] = {kInPlace, kApart, kFetchedInPlace, kFetchedApart};  // all but through slots

// Sets of ways, a bit for each: those that all ranks of a call offer, and those that some do.
struct Ways {
    u64 common = 0, any = 0;
};

// What a call can do instead, if all ranks can: the plans for buffers that others access, by way, null where they do
// not lie so; and these buffers. A plan that lends is offered for itself.
struct Offer {
    Plan* plans[kWays] = {};
    char* input = nullptr;
    char* output = nullptr;
};

// What is left to do with the `result` of a call, null for nothing. After a call through slots it is copied from
// `taken`, if that is not null; on any other way it was made where it belongs. For an average it is divided by the
// number of ranks.
struct Finish {
    char* result = nullptr;
    u64 bytes = 0;
    const char* taken = nullptr;
    Divide divide = nullptr;
};

// What a call works on. `n` elements a unit; `tile` 0: chosen from the size, as for other plans that are offered. A
// rank with neither input nor output does not know n and the type. `initial_bytes` from `initial` are copied to
// `initial_to` first, once all ranks agree. With `units`, n is the length of the largest: of all, or of those of this
// rank where they are pairwise. `element` says what elements are whose type kernels do not know, else it is null.
struct Call {
    char* input;
    char* output;
    const char* initial;
    char* initial_to;
    u64 initial_bytes;
    u64 n;
    u64 tile;
    u32 type;
    u32 op;
    bool size_known;
    const Units* units = nullptr;
    const Offer* offer = nullptr;
    bool fresh = false;  // the output has just been allocated: it has no pages yet
    const std::string* element = nullptr;
    Finish finish{};
};

enum class Fault : u32 {
    kNone,
    kMismatch,  // `rank` called something else than the lowest rank; nothing has been touched
    kRefused,   // `rank` says, in `text`, that its arguments are wrong; nothing has been touched
    kMemory,    // this rank could not map slots: `text`; nothing has been touched
    kPeer,      // `rank` failed or is gone; from here on the communicator is dead
    kTimeout,
    kInterrupted,  // a signal handler of this rank raised
    kDead,         // it was dead before, for the reason in `rank` and `text`
    kBusy,         // another thread is in a call; this one was not begun
};

struct Outcome {
    Fault fault = Fault::kNone;
    u32 rank = 0;
    std::string text;
    bool stalled = false;  // `stall` says where the execution stood
    Stall stall{};
    double waited = 0;
    std::vector<CallHeader> said{};  // with kMismatch, by every rank
    Way way = kThroughSlots;         // how the call went
    bool exposed = false;            // others may still write to this rank's buffers, which lie in no arena
};

// Whether messages lie in private memory of other ranks, which all must be able to reach: where a call can go that way,
// it does where that is faster, or always.
enum class Reaching { kNever, kWhereFaster, kAlways };

struct Settings {
    Patience patience;
    double timeout;                   // seconds without progress after which a call fails
    bool (*interrupted)() = nullptr;  // called now and then while the caller's thread waits: whether to give up
    u32 threads = 1;                  // that share the thread blocks of a call
    u64 team_bytes = 0;               // of its larger buffer, from which on they do
    u64 cache_bytes = ~u64(0);        // of all ranks together: a call that touches more stores results past the caches
    // Whether a byte is in no cache that is nearer than so many ticks: a call all of whose are does so too, where that
    // is worth it.
    bool (*is_far)(const char*, u64) = nullptr;
    Reaching reaching = Reaching::kNever;
    u64 first = 0;                 // the number of calls so far; tests begin near where it wraps
    void (*patient)() = nullptr;   // called when a thread has spun in vain, before it yields or sleeps
    Recorder* recorder = nullptr;  // of what this rank does; outlives the communicator
    Tunables tunables = tunables_with({});
};

// A way that a call can go.
struct Candidate : Settled {
    Plan* plan;
    char* input = nullptr;
    char* output = nullptr;
    Kernel kernel = nullptr;
};

// What a rank does while it waits for others to enter: it looks at its buffers, with `is_far`, if that is not null.
// Where all are `far`, in no cache near its core, results soon would be too: they are better stored past the caches,
// and what they are stored over need not be fetched. Else it asks for the first of an output that it has not `lent`.
// And for where its `next_message` will lie, if the next call is like this one: whoever read the last one there has the
// lines.
struct Look {
    std::span<const char> input, output, next_message;
    bool (*is_far)(const char*, u64) = nullptr;
    bool brief_comes = false;  // a short message, with the header of the other rank: its first lines are asked for too
    bool lent = false, far = false, timed = false;
    u64 begun = 0;  // when it began to wait, in ticks, where that is `timed`
    u64 most() const { return std::max(input.size(), output.size()); }
    void at_buffers(const Tunables& tuned);
};

class Communicator {
  public:
    // Whoever gives the same text in every call is its author; others have the number kNobody.
    static constexpr u64 kNobody = 0, kBarrier = 1, kFirstPlan = 2;

    // `lifelines[r]` reports end of file once rank r is gone. The own one, if it is not -1, is the other end, and is
    // shut down when this rank leaves. Empty when ranks are threads of one process.
    Communicator(u32 rank, u32 size, Memory& memory, std::vector<int> lifelines, Settings settings);
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    u32 rank() const { return rank_; }
    u32 size() const { return size_; }
    u32 threads() const { return settings_.threads; }
    Memory& memory() { return memory_; }

    Outcome run(Plan& plan, const Call& call);

    // Settles how a candidate runs on n elements a unit, `tile` as in Call; `in_one_round`: whether it may take one
    // round.
    void settle(Candidate& candidate, u64 n, u32 type, u64 tile, bool in_one_round) const;
    // Of one that is settled: the bytes that it touches on all ranks (YHCCL, section 4: the working set), if each has
    // the buffers that this one has, and how many threads it would take.
    u64 touched(const Candidate& candidate, bool input, bool output) const;
    u32 wanted_threads(const Candidate& candidate) const;

    // Enters a call in which nothing moves.
    Outcome barrier();

    // Enters a call in which nothing moves but a word of each rank, afterwards in `said`; at most 839 bytes.
    Outcome exchange(const std::string& word);

    // Enters a call only to say that this rank cannot take part in it.
    Outcome refuse(const std::string& why);

    // What the kernels have moved in all calls that have ended. May be called while another thread is in a call.
    Traffic traffic() const;

    // Ends the communicator: with a reason every other rank raises at once, without one only a rank that still needs
    // this one.
    // May be called while another thread is in a call.
    void leave();
    void fail(u32 culprit, const std::string& why);
    bool dead() const;
    // Why a rank will make no more calls, and whose fault that is; kNone if it may. Asks nobody. May be called while
    // another thread is in a call.
    Outcome ended(u32 rank) const;

    // What a rank said when it entered the latest call.
    const CallHeader& said(u32 rank) const { return control_[rank].headers[calls_ % 2]; }

  private:
    friend class Plan;

    struct alignas(kLine) Moved {
        Traffic sum{};
    };

    template <class Body> Outcome recorded(u64 plan, Body body);
    template <class Body> Outcome record(u64 plan, Body body);
    template <class Event> Outcome carry_out(Plan& plan, const Call& call, Event event);
    void finish(const Finish& left, Way way) const;
    Outcome enter(const Terms& mine, const std::string& text, u64 author, const Places* places = nullptr,
                  Look* look = nullptr);
    Look look(const Plan& plan, const Call& call, const Candidate (&candidates)[kWays], bool reached, bool looks) const;
    int prepare(Candidate& candidate, u32 op, u64 n, u32 type, u64 tile, bool in_one_round);
    Places places(const Candidate (&candidates)[kWays]) const;
    bool lets_reach(Plan& plan, const Candidate& offered) const;
    const Habits& habits(Way way) const { return way == kThroughSlots ? slots_habits_ : lent_habits_; }
    static bool has_past(const Plan& plan, Past past);
    Ways offered() const;
    Contests& contests(Plan& plan);
    void judge();
    bool any_contested() const;
    int borrow(const Plan& plan);
    bool reaches(const ConnectionRecord& record) const;
    std::optional<u64> reaches_since(const Plan& plan) const;
    std::optional<u32> gone_owner(const Plan& plan) const;
    Outcome unreached(const Reach& beyond);
    Outcome await_readers(Execution<Cpu>& running);
    Outcome await_partners(const Plan& plan, const Execution<Cpu>& running);
    Outcome withdrawn(Outcome outcome, const Places& lies);
    Outcome no_memory(const char* what, int error);
    bool alike() const;
    Outcome agree() const;
    template <class Step, class Blame> Outcome drive(const Step& step, const Blame& waits_for);
    Outcome inspect(std::vector<u32>& gone);
    Outcome given_up(Outcome outcome);
    Outcome is_dead() const;
    u32 straggler(u32 peer, double now) const;
    bool failed(u32 rank) const;
    bool is_gone(u32 rank) const;
    void open(const Candidate& candidate);
    void open_in_place(Plan& plan);
    void open_round(Plan& plan, const Geometry& geometry, u64 call);
    char* eager(u32 rank, u64 call, u64 bytes) const { return eager_area(control_, size_, rank, call, bytes); }
    void add(u32 thread, const Traffic& moved);
    u64 most_of_slot(const PlanHeader& h, u64 slots) const;
    int reserve(const Candidate& candidate);
    void mark(State state, u32 culprit, u64 since, const std::string& why);

    u32 rank_;
    u32 size_;
    Memory& memory_;
    RankBlock* control_;
    std::vector<int> lifelines_;
    Settings settings_;
    const Habits slots_habits_, lent_habits_;
    const Clock clock_;
    u64 calls_;
    u64 authors_ = kFirstPlan;
    u64 written_[2] = {kNobody, kNobody};  // the authors of the texts in this rank's lines
    std::unique_ptr<char, decltype(&std::free)> scratch_{nullptr, &std::free};  // aligned to kAlign
    u64 scratch_bytes_ = 0;
    std::unique_ptr<Theirs[]> theirs_;  // of each rank in whose buffers messages of this call lie
    std::vector<Reach> beyond_;         // of each thread, where ranks reach each other's private memory
    std::map<u64, Contests> contests_;  // of slots, first, and reaching, by the digest of a schedule
    struct {
        Contests* contests;  // null: none
        u64 unit;
        bool second;
        Took took;
    } contested_{};                  // the latest call in which any rank was, until all have said how long it took
    std::vector<Outcome> outcomes_;  // of the threads of one call
    std::vector<Moved> moved_;       // by each thread in all calls
    std::atomic_flag marked_;
    Team team_;
};

}  // namespace hocket
