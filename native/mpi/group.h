// A communicator of MPI, and the communicator of hocket that serves its calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpi/options.h"
#include "mpi/plan_file.h"
#include "mpi/report.h"
#include "mpi/wire.h"
#include "runtime/communicator.h"
#include "transport/shared_memory.h"

namespace hocket::mpi {

// Why a call went to the MPI; the first is that it did not.
enum class Reason : u32 {
    kTaken,
    kSmall,         // the MPI is faster
    kLarge,         // the same, of long calls on several nodes
    kFirst,         // of a communicator: its ranks have not met
    kCompared,      // it was its turn
    kOperator,      // of the user, or none that the type has by MPI's rules
    kCommunicator,  // see Group::closed
    kContract,      // no program sums in the order of ranks
    kRoot,          // see Group::has_root
    kArguments,     // MPI says what is wrong with them
    kDeclined,      // a rank's data has gaps, its arguments are erroneous, or it lacks memory or plans
};
constexpr const char* kReasonNames[] = {"taken",        "small", "large", "first",     "compared", "operator",
                                        "communicator", "order", "root",  "arguments", "declined"};
constexpr u32 kReasons = u32(std::size(kReasonNames));

// A call, as hocket's collectives have it: `x` and `out` are the same or overlap only if `in_place`. `n` elements a
// unit, in bytes where they are only moved; `size`: bytes of the larger buffer of a rank with most.
struct Request {
    Program program;
    char *x, *out;
    bool in_place;
    u64 n, size;
    u32 type, op, root;
    const Units* units = nullptr;
    u64 own = 0;  // with units: where the rank's own begins in the larger buffer
};

// Memory of a communicator for what a call copies: the input of a plan that would store to it; blocks with gaps between
// them, one behind the other.
enum class Room : u32 { kInput, kSent, kReceived };

class Group {
  public:
    // That of a communicator of MPI, made when it is first asked for. Null where MPI refuses to say.
    static Group* of(const Library& mpi, const Options& options, Handle communicator);
    // At the end of MPI: leaves all communicators.
    static void finish_all();

    u32 rank() const { return rank_; }
    u32 size() const { return size_; }
    // Why hocket does not serve it; kTaken: it does. All ranks ask in a call of them all, and meet in one of the first,
    // or `at_once`.
    Reason open(bool at_once);
    // From here on it does not, on this rank.
    void close(const std::string& why) { closed_ = why; }
    // How its ranks lie, once they have met.
    Where where() const { return !nodes_.empty() ? Where::kNodes : crowded_ ? Where::kShared : Where::kCores; }
    bool is_closed() const { return !closed_.empty(); }
    // Whether that rank can take the place of rank 0 in a plan: on several nodes, one that has as many ranks on its
    // own.
    bool has_root(u32 root) const { return nodes_.empty() || mates_of(root) == mates_of(0); }
    // What a call would run; null where its contract cannot be kept.
    const Rule* rule(const Request& call) const;
    Outcome run(const Rule& rule, const Request& call);
    Outcome barrier() { return communicator_->barrier(); }
    // Whether a rank that fails is taken to have ended: its process has, or it is on another node.
    bool is_lost(u32 rank) const { return !is_mate(rank) || communicator_->control().is_gone(rank); }
    // Whether some of its ranks are on other nodes.
    bool spans_nodes() const { return network_ != nullptr; }
    // Has all ranks of a call take the MPI's.
    Outcome decline() { return communicator_->control().refuse("passes this call on", kDeclined); }
    // At least so many bytes, until the next call of that room. Throws std::bad_alloc.
    char* room(Room which, u64 bytes);

    Tally tallies[kCollectives][kReasons];
    u64 turns[kCollectives] = {};  // of calls that could be taken

  private:
    struct Loaded {
        Binding bindings[2];
        std::unique_ptr<Plan> plan, apart;
    };

    Group(const Library& mpi, const Options& options, Handle communicator);
    ~Group();
    static int left(Handle, int, void* group, void*);
    struct Host;
    struct Hello;
    void meet();
    bool split();
    Hello hello();
    Host host(bool makes) const;
    template <class Word> bool gather(const Word& mine, std::vector<Word>& all);
    void place(const std::vector<Hello>& all);
    static bool is_crowded(const std::vector<Hello>& all);
    void meet_across(std::vector<Hello>& all);
    std::string objection(const std::vector<Hello>& all) const;
    bool join(const std::vector<Hello>& all, bool& attaches);
    void begin(const std::vector<Hello>& all);
    bool is_of_this_job() const;
    void finish();
    static void get_on(void* group);
    bool is_mate(u32 rank) const { return nodes_.empty() || nodes_[rank] == nodes_[rank_]; }
    u32 leader() const;
    u64 mates_of(u32 rank) const;
    std::vector<u32> cast(u32 root) const;
    Loaded& load(u32 plan, u32 root, Program program);
    template <class At> bool offers(const Rule& rule, const Request& request, Offer& offer, At at);

    const Library& mpi_;
    const Options& options_;
    const Handle handle_;
    Handle own_ = 0;  // a communicator of the same ranks, for the wire; without one, nothing is ever sent on it
    std::string name_, closed_;
    u32 rank_ = 0, size_ = 0, asked_ = 0;
    bool crowded_ = false, attaches_ = false, finished_ = false;
    std::vector<u32> nodes_;  // by rank; none where all are on one
    std::shared_ptr<const PlanFile> file_;
    std::unique_ptr<SharedMemory> memory_;
    std::optional<MpiWire> wire_;
    std::unique_ptr<Network> network_;
    std::unique_ptr<Communicator> communicator_;
    std::vector<std::unique_ptr<Loaded>> loaded_;  // by root and plan
    struct {
        std::unique_ptr<char, decltype(&std::free)> place{nullptr, &std::free};
        u64 length = 0;
    } rooms_[3];
};

}  // namespace hocket::mpi
