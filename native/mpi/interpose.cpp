// The functions of MPI that this library stands for: MPI_X and PMPI_X, with an int for every count and, as MPI_X_c,
// with an MPI_Count. A call that is not taken goes to the MPI underneath as it came.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <list>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mpi/datatype.h"
#include "mpi/group.h"

namespace hocket::mpi {
namespace {

// The MPI library calls its own functions, and finds ours: those calls are its own affair.
thread_local bool inside = false;

// Stand for a buffer that this rank has none of: an input, and an output.
char nothing[2];
constexpr char *kNoX = &nothing[0], *kNoOut = &nothing[1];

// Bytes of a message below which a call goes on as it came, by Collective, without a look at the rest of it: it
// should cost hardly more than without the library. 0, so that nothing is small, until options are known, and where a
// report counts calls.
constinit std::atomic<u64> small_below[kCollectives];

const Options& options() {
    static const Options& found = []() -> const Options& {
        const Options& read = *new Options(underneath());  // for good, as in library.h
        for (u32 c = 0; c < kCollectives && !read.report; ++c) small_below[c] = read.off ? ~u64(0) : read.first[c];
        return read;
    }();
    return found;
}

// What is_small() takes where no rank knows the lengths of all messages: less only than kNeverBytes.
constexpr u64 kUnknownBytes = kNeverBytes - 1;

bool is_small(Collective which, u64 bytes) {
    return inside || bytes < small_below[u32(which)].load(std::memory_order_relaxed);
}
[[gnu::always_inline]] inline bool is_small(Collective which, i64 count, Handle type) {
    if (inside) return true;
    const u64 below = small_below[u32(which)].load(std::memory_order_relaxed);
    if (below == 0) return false;
    const Library::Type* const found = underneath().type(underneath().whole(type));
    return found != nullptr && !found->padded && count >= 0 && u64(count) * found->bytes < below;
}

// A call as it is looked at, step by step; each step says why it cannot be taken, if so.
class Look {
  public:
    Look(Collective which, Handle communicator) : which(which), communicator(mpi.whole(communicator)) {}

    // Not of MPI_COMM_NULL.
    Group* group() {
        if (group_ == nullptr && communicator != mpi.abi.no_communicator)
            group_ = Group::of(mpi, options(), communicator);
        return group_;
    }
    bool is_in_place(const void* buffer) const { return buffer == mpi.abi.in_place; }

    // `count` elements of a unit, to be combined.
    Reason combines(i64 count, Handle type, Handle op) {
        if (count < 0) return Reason::kArguments;
        const Library::Type* const found = mpi.type(mpi.whole(type));
        if (found == nullptr) return Reason::kOperator;
        if (const Reason small = measure(u64(count) * found->bytes); small != Reason::kTaken) return small;
        request.op = mpi.op(mpi.whole(op));
        if (request.op == kOperators || !allows(found->family, request.op)) return Reason::kOperator;
        request.n = u64(count);
        request.type = found->code;
        return Reason::kTaken;
    }
    // `count` elements of a unit, to be moved. A rank alone knows whether its type has gaps.
    Reason moves(i64 count, Handle type) {
        if (count < 0 || !is_type(type)) return Reason::kArguments;
        const Datatype found = datatype(mpi, mpi.whole(type));
        if (!found.packed) declines = true;
        if (const Reason small = measure(u64(count) * found.bytes); small != Reason::kTaken) return small;
        request.n = u64(count) * found.bytes;
        request.type = kByteType;
        return Reason::kTaken;
    }
    // What this rank has on its other side is as long.
    void matches(i64 count, Handle type) { matches(count, type, request.n); }
    void matches(i64 count, Handle type, u64 length) {
        if (count < 0 || u64(count) * item(type) != length) declines = true;
    }
    // Bytes of an element that is moved.
    u64 item(Handle type) {
        if (!is_type(type)) {
            declines = true;
            return 1;
        }
        const Datatype found = datatype(mpi, mpi.whole(type));
        if (!found.packed) declines = true;
        return found.bytes;
    }
    bool is_type(Handle type) const { return mpi.whole(type) != 0 && mpi.whole(type) != mpi.abi.no_type; }
    // Blocks to each rank and from each, of up to so many bytes on this rank.
    void exchanges(u64 longest) {
        bytes = request.n = longest;
        request.type = kByteType;
    }
    Reason measure(u64 message) {
        bytes = message;
        return message == 0 || message < least() ? Reason::kSmall : Reason::kTaken;
    }
    // Of one that is sizeless.
    Reason measure() const { return least() == kNeverBytes ? Reason::kSmall : Reason::kTaken; }
    u64 least() const { return options().first[u32(which)]; }
    // The same once it is known how ranks lie.
    Reason measure(Where where) const {
        const u64 from = options().least[u32(where)][u32(which)];
        if (is_sizeless(which)) return from == kNeverBytes ? Reason::kSmall : Reason::kTaken;
        if (bytes < from) return Reason::kSmall;
        return where == Where::kNodes && bytes >= options().most[u32(which)] ? Reason::kLarge : Reason::kTaken;
    }
    // Why nothing is looked at, of a communicator that joins two groups, or of none: there arguments mean something
    // else.
    Reason closed() {
        if (group() == nullptr) return Reason::kArguments;
        return group()->is_closed() ? Reason::kCommunicator : Reason::kTaken;
    }
    bool has_root(int root) { return group() != nullptr && root >= 0 && u32(root) < group()->size(); }
    bool is_root(int root) { return group() != nullptr && root == int(group()->rank()); }
    // Where this rank's block begins in a buffer with one for each rank.
    char* own_block(const void* buffer) {
        const u32 rank = group() == nullptr ? 0 : group()->rank();
        return buffer == nullptr ? nullptr : static_cast<char*>(const_cast<void*>(buffer)) + rank * request.n;
    }
    // Where it lies; kNoX and kNoOut for what this rank has none of.
    void lies(Program program, const void* x, const void* out, bool in_place, u32 root = 0) {
        request.program = program;
        request.x = static_cast<char*>(const_cast<void*>(x));
        request.out = static_cast<char*>(const_cast<void*>(out));
        request.in_place = in_place;
        request.root = root;
        // MPI says what is wrong where there is no buffer, or one is both.
        const bool no_buffer = x == nullptr || out == nullptr || is_in_place(x) || is_in_place(out);
        if (request.n != 0 && (no_buffer || (!in_place && x == out))) declines = true;
    }
    // With units of lengths of their own; `size`: of all together; `own`: where the rank's own begins.
    void counted(const Units& units, u64 size, u64 own) {
        request.units = &units;
        request.size = size;
        request.own = own;
    }

    static constexpr u32 kByteType = type_code("uint8");

    const Library& mpi = underneath();
    const Collective which;
    const Handle communicator;
    Request request{};
    u64 bytes = 0;
    bool declines = false;  // this rank cannot take it, and the others do not know

  private:
    Group* group_ = nullptr;
};

// From when it is made to when it goes, calls of MPI functions are the library's own.
class Inside {
  public:
    ~Inside() { inside = before_; }

  private:
    const bool before_ = std::exchange(inside, true);
};

// Adds a call that began then to what the report says.
void count(Look& call, Reason why, double begin) {
    Tally& tally = call.group()->tallies[u32(call.which)][u32(why)];
    ++tally.calls;
    tally.bytes += call.bytes;
    tally.seconds += seconds() - begin;
}

// Makes the MPI's call.
template <class Pass> int pass_on(Look& call, Reason why, const Pass& pass) {
    if (!options().report || call.group() == nullptr) return pass();
    const double begin = seconds();
    const int result = pass();
    count(call, why, begin);
    return result;
}

// Has MPI report an error that it has no better name for. Returns its class, if the handler does.
int report_error(Handle communicator) {
    const Library& mpi = underneath();
    mpi.Comm_call_errhandler(communicator, mpi.abi.error_other);
    return mpi.abi.error_other;
}

// A call of a collective. `examine(call)` says whether it can be taken, by what all ranks know, and completes `call`;
// `run(group, rule)` takes it; pass() makes the MPI's call.
template <class Examine, class Run, class Pass>
int serve(Collective which, Handle communicator, const Examine& examine, const Run& run, const Pass& pass) {
    if (inside || options().off) return pass();
    const Inside here;
    Look call(which, communicator);
    Reason why = examine(call);
    Group* const group = why == Reason::kTaken ? call.group() : nullptr;
    const Rule* rule = nullptr;
    if (why == Reason::kTaken) {
        if (group == nullptr) why = Reason::kArguments;
        else why = group->open(call.least() == 0);
        if (why == Reason::kTaken) why = call.measure(group->where());
        if (why == Reason::kTaken && !group->has_root(call.request.root)) why = Reason::kRoot;
    }
    if (why == Reason::kTaken) {
        if (which != Collective::kBarrier && (rule = group->rule(call.request)) == nullptr) why = Reason::kContract;
        else if (options().compare && group->turns[u32(which)]++ % 2 != 0) why = Reason::kCompared;
    }
    if (why != Reason::kTaken) return pass_on(call, why, pass);
    const double begin = options().report ? seconds() : 0;
    Outcome outcome;
    try {
        outcome = call.declines ? group->decline() : run(call, *group, rule);
    } catch (const std::exception&) {  // this rank lacks memory, or its plans are damaged
        outcome = group->decline();
    }
    switch (outcome.fault) {
        case Fault::kNone:
            if (options().report) count(call, Reason::kTaken, begin);
            return 0;
        case Fault::kMismatch:
        case Fault::kRefused:
        case Fault::kDeclined:
        case Fault::kMemory:
            return pass_on(call, Reason::kDeclined, pass);
        default:
            // If a rank has ended, the MPI is to do as it would have done; of one on another node no more is known
            // than that it fails. Otherwise some ranks may have finished the call, or its messages are on their way.
            std::fprintf(stderr, "hocket: %s: rank %u %s\n", kCollectiveNames[u32(which)], outcome.rank,
                         outcome.why().text.c_str());
            if (!group->is_lost(outcome.rank) || (outcome.exposed && group->spans_nodes()))
                return report_error(communicator);
            group->close("a rank has ended");
            return pass_on(call, Reason::kCommunicator, pass);
    }
}

// Of a communicator that joins two groups, which one an array of counts is for.
enum class CountsOf { kOwn, kOthers };

// An argument of a function with an MPI_Count for every count, as one with ints takes it.
class Narrowed {
  public:
    Narrowed(Handle communicator, CountsOf of) {
        const Library& mpi = underneath();
        int joins_two = 0;
        mpi.Comm_test_inter(communicator, &joins_two);
        if (joins_two != 0 && of == CountsOf::kOthers) mpi.Comm_remote_size(communicator, &size_);
        else mpi.Comm_size(communicator, &size_);
    }
    template <class Argument> auto operator()(Argument argument) {
        if constexpr (std::is_same_v<Argument, i64>) {
            fits = fits && argument == int(argument);
            return int(argument);
        } else if constexpr (std::is_same_v<Argument, const i64*>) {
            if (argument == nullptr) return static_cast<const int*>(nullptr);
            std::vector<int>& made = kept_.emplace_back();
            for (int r = 0; r < size_; ++r) made.push_back((*this)(argument[r]));
            return static_cast<const int*>(made.data());
        } else {
            return argument;
        }
    }
    bool fits = true;

  private:
    int size_ = 0;
    std::list<std::vector<int>> kept_;
};

// Makes the MPI's call of the arguments: that for such counts or, where the library has none, that for ints.
template <class Count, CountsOf of = CountsOf::kOthers, template <class> class Signature>
auto passed(const Function<Signature>& function, Handle communicator) {
    return [&function, communicator](auto... arguments) {
        const Inside here;
        if constexpr (!std::is_same_v<Count, int>) {
            if (function.large != nullptr) return function.large(arguments...);
            Narrowed narrowed(communicator, of);
            const std::tuple narrow{narrowed(arguments)...};
            return narrowed.fits ? std::apply(function.plain, narrow) : report_error(communicator);
        } else {
            return function.plain(arguments...);
        }
    };
}

constexpr auto kRuns = [](Look& call, Group& group, const Rule* rule) { return group.run(*rule, call.request); };

// An Allreduce or a Reduce_scatter_block.
template <class N> int reduction(Collective which, Program program, const Function<ReductionFunction>& function,
                                 const void* send, void* out, N n, Handle type, Handle op, Handle comm) {
    return serve(
        which, comm,
        [&](Look& call) {
            const Reason why = call.combines(n, type, op);
            const bool in_place = call.is_in_place(send);
            call.lies(program, in_place ? out : send, out, in_place);
            return why;
        },
        kRuns, [&] { return passed<N>(function, comm)(send, out, n, type, op, comm); });
}

template <class N>
[[gnu::noinline]] int allreduce(const void* send, void* out, N n, Handle type, Handle op, Handle comm) {
    return reduction(Collective::kAllReduce, Program::kAllReduce, underneath().Allreduce, send, out, n, type, op, comm);
}

template <class N>
[[gnu::noinline]] int reduce_scatter_block(const void* send, void* out, N n, Handle type, Handle op, Handle comm) {
    return reduction(Collective::kReduceScatterBlock, Program::kReduceScatter, underneath().Reduce_scatter_block, send,
                     out, n, type, op, comm);
}

template <class N>
[[gnu::noinline]] int reduce(const void* send, void* out, N n, Handle type, Handle op, int root, Handle comm) {
    return serve(
        Collective::kReduce, comm,
        [&](Look& call) {
            const Reason why = call.combines(n, type, op);
            if (why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(send), is_root = call.is_root(root);
            if (!call.has_root(root) || (in_place && !is_root)) return Reason::kArguments;
            const Program program = options().rank_order ? Program::kAllReduce : Program::kReduce;
            call.lies(program, in_place ? out : send, is_root ? out : kNoOut, in_place,
                      program == Program::kReduce ? u32(root) : 0);
            return why;
        },
        [&](Look& call, Group& group, const Rule* rule) {
            // Sums in the order of ranks are those of an AllReduce, whose result only the root keeps.
            if (options().rank_order && !call.is_root(root)) call.request.out = group.room(Room::kReceived, call.bytes);
            return group.run(*rule, call.request);
        },
        [&] { return passed<N>(underneath().Reduce, comm)(send, out, n, type, op, root, comm); });
}

template <class N> [[gnu::noinline]] int bcast(void* buffer, N n, Handle type, int root, Handle comm) {
    return serve(
        Collective::kBroadcast, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const Reason why = call.moves(n, type);
            if (why != Reason::kTaken) return why;
            if (!call.has_root(root)) return Reason::kArguments;
            call.lies(Program::kBroadcast, buffer, buffer, true, u32(root));
            return why;
        },
        kRuns, [&] { return passed<N>(underneath().Bcast, comm)(buffer, n, type, root, comm); });
}

// An Allgather or an Alltoall.
template <class N> int exchange(Collective which, Program program, const Function<ExchangeFunction>& function,
                                const void* send, N sent, Handle send_type, void* out, N n, Handle type, Handle comm) {
    return serve(
        which, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const Reason why = call.moves(n, type);
            if (why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(send);
            if (!in_place) call.matches(sent, send_type);
            const void* const x = !in_place ? send : program == Program::kAllGather ? call.own_block(out) : out;
            call.lies(program, x, out, in_place);
            return why;
        },
        kRuns, [&] { return passed<N>(function, comm)(send, sent, send_type, out, n, type, comm); });
}

template <class N>
[[gnu::noinline]] int allgather(const void* send, N sent, Handle send_type, void* out, N n, Handle type, Handle comm) {
    return exchange(Collective::kAllGather, Program::kAllGather, underneath().Allgather, send, sent, send_type, out, n,
                    type, comm);
}

template <class N>
[[gnu::noinline]] int alltoall(const void* send, N sent, Handle send_type, void* out, N n, Handle type, Handle comm) {
    return exchange(Collective::kAllToAll, Program::kAllToAll, underneath().Alltoall, send, sent, send_type, out, n,
                    type, comm);
}

template <class N>
int gather(const void* send, N sent, Handle send_type, void* out, N n, Handle type, int root, Handle comm) {
    return serve(
        Collective::kGather, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(send), is_root = call.is_root(root);
            if (!call.has_root(root) || (in_place && !is_root)) return Reason::kArguments;
            const Reason why = is_root ? call.moves(n, type) : call.moves(sent, send_type);
            if (why != Reason::kTaken) return why;
            if (is_root && !in_place) call.matches(sent, send_type);
            call.lies(Program::kGather, in_place ? call.own_block(out) : send, is_root ? out : kNoOut, in_place,
                      u32(root));
            return why;
        },
        kRuns, [&] { return passed<N>(underneath().Gather, comm)(send, sent, send_type, out, n, type, root, comm); });
}

template <class N>
int scatter(const void* send, N sent, Handle send_type, void* out, N n, Handle type, int root, Handle comm) {
    return serve(
        Collective::kScatter, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(out), is_root = call.is_root(root);
            if (!call.has_root(root) || (in_place && !is_root)) return Reason::kArguments;
            const Reason why = is_root ? call.moves(sent, send_type) : call.moves(n, type);
            if (why != Reason::kTaken) return why;
            if (is_root && !in_place) call.matches(n, type);
            call.lies(Program::kScatter, is_root ? send : kNoX, in_place ? call.own_block(send) : out, in_place,
                      u32(root));
            return why;
        },
        kRuns, [&] { return passed<N>(underneath().Scatter, comm)(send, sent, send_type, out, n, type, root, comm); });
}

// Blocks of elements, one for each rank: how many, and where, in elements.
template <class N> struct Blocks {
    const N *counts, *places;
    u64 item = 1;
    u32 ranks = 0;

    bool valid() const {
        bool good = counts != nullptr && places != nullptr;
        for (u32 r = 0; r < ranks && good; ++r) good = counts[r] >= 0;
        return good;
    }
    u64 bytes(u32 rank) const { return u64(counts[rank]) * item; }
    i64 place(u32 rank) const { return i64(places[rank]) * i64(item); }
    i64 longest() const { return *std::max_element(counts, counts + ranks); }
    // In bytes, one behind the other.
    std::vector<u64> bounds() const {
        std::vector<u64> found{0};
        found.reserve(ranks + 1);
        for (u32 r = 0; r < ranks; ++r) found.push_back(found.back() + bytes(r));
        return found;
    }
    // Whether they lie so.
    bool follow() const {
        i64 at = 0;
        bool good = true;
        for (u32 r = 0; r < ranks; at += i64(bytes(r++))) good = good && (counts[r] == 0 || place(r) == at);
        return good;
    }
    void collect(const char* from, char* to) const {
        for (u32 r = 0; r < ranks; to += bytes(r++)) hocket::copy(to, from + place(r), bytes(r));
    }
    void hand_out(const char* from, char* to) const {
        for (u32 r = 0; r < ranks; from += bytes(r++)) hocket::copy(to + place(r), from, bytes(r));
    }
};

// A hash of the lengths of all units, the same on all ranks.
u64 digest(const std::vector<u64>& bounds) {
    u64 found = 0;
    for (const u64 bound : bounds) found = mix(found ^ bound);
    return found;
}

template <class N> int allgatherv(const void* send, N sent, Handle send_type, void* out, const N* counts,
                                  const N* places, Handle type, Handle comm) {
    Blocks<N> blocks{counts, places};
    Units units;
    return serve(
        Collective::kAllGatherV, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            blocks.ranks = call.group()->size();
            if (!blocks.valid()) return Reason::kArguments;
            const Reason why = call.moves(blocks.longest(), type);
            if (why != Reason::kTaken) return why;
            const u32 rank = call.group()->rank();
            blocks.item = call.item(type);
            const std::vector<u64> bounds = blocks.bounds();
            const u64 own = blocks.bytes(rank);
            const bool in_place = call.is_in_place(send);
            if (!in_place) call.matches(sent, send_type, own);
            const void* const x = own == 0 ? kNoX : in_place ? static_cast<char*>(out) + blocks.place(rank) : send;
            call.lies(Program::kAllGather, x, out, in_place && own != 0);
            if (bounds.back() == call.bytes * blocks.ranks) return why;  // blocks of one length
            units = {{{0, own}, bounds}, digest(bounds), ""};
            call.counted(units, bounds.back(), bounds[rank]);
            return why;
        },
        [&](Look& call, Group& group, const Rule* rule) {
            if (blocks.follow()) return group.run(*rule, call.request);
            call.request.out = group.room(Room::kReceived, blocks.bounds().back());
            call.request.in_place = false;
            Outcome outcome = group.run(*rule, call.request);
            if (outcome.fault == Fault::kNone) blocks.hand_out(call.request.out, static_cast<char*>(out));
            return outcome;
        },
        [&] {
            return passed<N>(underneath().Allgatherv, comm)(send, sent, send_type, out, counts, places, type, comm);
        });
}

template <class N>
int reduce_scatter(const void* send, void* out, const N* counts, Handle type, Handle op, Handle comm) {
    Units units;
    return serve(
        Collective::kReduceScatter, comm,
        [&](Look& call) {
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const u32 rank = call.group()->rank();
            Blocks<N> blocks{counts, counts, 1, call.group()->size()};
            if (!blocks.valid()) return Reason::kArguments;
            const Reason why = call.combines(blocks.longest(), type, op);
            if (why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(send);
            call.lies(Program::kReduceScatter, in_place ? out : send, counts[rank] == 0 ? kNoOut : out, in_place);
            blocks.item = type_bytes(call.request.type);
            const std::vector<u64> bounds = blocks.bounds();
            if (bounds.back() == call.bytes * blocks.ranks) return why;  // blocks of one length
            units = {{bounds, {0, blocks.bytes(rank)}}, digest(bounds), ""};
            call.counted(units, bounds.back(), bounds[rank]);
            return why;
        },
        kRuns,
        [&] {
            return passed<N, CountsOf::kOwn>(underneath().Reduce_scatter, comm)(send, out, counts, type, op, comm);
        });
}

template <class N> [[gnu::noinline]] int alltoallv(const void* send, const N* sent, const N* from, Handle send_type,
                                                   void* out, const N* counts, const N* places, Handle type,
                                                   Handle comm) {
    Blocks<N> sends{sent, from}, receives{counts, places};
    Units units;
    return serve(
        Collective::kAllToAllV, comm,
        [&](Look& call) {
            if (const Reason small = call.measure(); small != Reason::kTaken) return small;
            if (const Reason why = call.closed(); why != Reason::kTaken) return why;
            const bool in_place = call.is_in_place(send);
            if (in_place) sends = receives;
            sends.ranks = receives.ranks = call.group()->size();
            if (!sends.valid() || !receives.valid()) {  // no other rank knows
                call.declines = true;
                call.lies(Program::kAllToAll, kNoX, kNoOut, false);
                call.counted(units, 0, 0);
                return Reason::kTaken;
            }
            sends.item = call.item(in_place ? type : send_type);
            receives.item = call.item(type);
            units = {{sends.bounds(), receives.bounds()}, std::nullopt, ""};
            call.exchanges(std::max(u64(sends.longest()) * sends.item, u64(receives.longest()) * receives.item));
            const bool sends_any = units.bounds[kInput].back() != 0, gets_any = units.bounds[kOutput].back() != 0;
            call.lies(Program::kAllToAll,
                      !sends_any ? kNoX
                      : in_place ? out
                                 : send,
                      gets_any ? out : kNoOut, in_place && sends_any && gets_any);
            call.counted(units, 0, 0);
            return Reason::kTaken;
        },
        [&](Look& call, Group& group, const Rule* rule) {
            Request& request = call.request;
            if (request.in_place || !sends.follow()) {
                char* const room = group.room(Room::kSent, units.bounds[kInput].back());
                sends.collect(request.x, room);
                request.x = room;
                request.in_place = false;
            }
            const bool gaps = !receives.follow();
            if (gaps) request.out = group.room(Room::kReceived, units.bounds[kOutput].back());
            Outcome outcome = group.run(*rule, request);
            if (gaps && outcome.fault == Fault::kNone) receives.hand_out(request.out, static_cast<char*>(out));
            return outcome;
        },
        [&] {
            return passed<N>(underneath().Alltoallv, comm)(send, sent, from, send_type, out, counts, places, type,
                                                           comm);
        });
}

template <class N> [[gnu::noinline]] int barrier(Handle comm) {
    return serve(
        Collective::kBarrier, comm, [](Look& call) { return call.measure(); },
        [](Look&, Group& group, const Rule*) { return group.barrier(); },
        [&] { return passed<N>(underneath().Barrier, comm)(comm); });
}

int type_commit(void* type) {
    const int result = underneath().Type_commit(type);
    if (result == 0 && !options().off) hocket::mpi::examine(underneath(), type);
    return result;
}

int finalize() {
    if (!options().off) {
        const Inside here;
        Group::finish_all();
        if (options().report) print_report(underneath());
    }
    return underneath().Finalize();
}

}  // namespace

// clang-format off
#define HOCKET_MPI_EXPORT(name, parameters, ...) \
    extern "C" [[gnu::visibility("default")]] int MPI_##name parameters { __VA_ARGS__ } \
    extern "C" [[gnu::visibility("default")]] int PMPI_##name parameters { __VA_ARGS__ }
// `look`: the arguments of is_small(), of those functions whose calls say at once how long a message is, or
// of which no rank knows (kUnknownBytes).
#define HOCKET_MPI_EXPORT_SIZED(name, c, Count, function, look, parameters, arguments) \
    HOCKET_MPI_EXPORT(name##c, parameters, \
        if (is_small look) return passed<Count>(underneath().name, comm) arguments; \
        return function<Count> arguments;)
#define HOCKET_MPI_EXPORTS(Count, c) \
    HOCKET_MPI_EXPORT_SIZED(Allreduce, c, Count, allreduce, (Collective::kAllReduce, n, type), \
        (const void* send, void* out, Count n, H type, H op, H comm), (send, out, n, type, op, comm)) \
    HOCKET_MPI_EXPORT_SIZED(Reduce, c, Count, reduce, (Collective::kReduce, n, type), \
        (const void* send, void* out, Count n, H type, H op, int root, H comm), (send, out, n, type, op, root, comm)) \
    HOCKET_MPI_EXPORT_SIZED(Bcast, c, Count, bcast, (Collective::kBroadcast, n, type), \
        (void* buffer, Count n, H type, int root, H comm), (buffer, n, type, root, comm)) \
    HOCKET_MPI_EXPORT_SIZED(Allgather, c, Count, allgather, (Collective::kAllGather, n, type), \
        (const void* send, Count sent, H send_type, void* out, Count n, H type, H comm), \
        (send, sent, send_type, out, n, type, comm)) \
    HOCKET_MPI_EXPORT(Allgatherv##c, \
        (const void* send, Count sent, H send_type, void* out, const Count* counts, const Count* places, H type, H comm), \
        return allgatherv(send, sent, send_type, out, counts, places, type, comm);) \
    HOCKET_MPI_EXPORT(Reduce_scatter##c, \
        (const void* send, void* out, const Count* counts, H type, H op, H comm), \
        return reduce_scatter(send, out, counts, type, op, comm);) \
    HOCKET_MPI_EXPORT_SIZED(Reduce_scatter_block, c, Count, reduce_scatter_block, \
        (Collective::kReduceScatterBlock, n, type), \
        (const void* send, void* out, Count n, H type, H op, H comm), (send, out, n, type, op, comm)) \
    HOCKET_MPI_EXPORT(Gather##c, \
        (const void* send, Count sent, H send_type, void* out, Count n, H type, int root, H comm), \
        return gather(send, sent, send_type, out, n, type, root, comm);) \
    HOCKET_MPI_EXPORT(Scatter##c, \
        (const void* send, Count sent, H send_type, void* out, Count n, H type, int root, H comm), \
        return scatter(send, sent, send_type, out, n, type, root, comm);) \
    HOCKET_MPI_EXPORT_SIZED(Alltoall, c, Count, alltoall, (Collective::kAllToAll, n, type), \
        (const void* send, Count sent, H send_type, void* out, Count n, H type, H comm), \
        (send, sent, send_type, out, n, type, comm)) \
    HOCKET_MPI_EXPORT_SIZED(Alltoallv, c, Count, alltoallv, (Collective::kAllToAllV, kUnknownBytes), \
        (const void* send, const Count* sent, const Count* from, H send_type, void* out, const Count* counts, \
         const Count* places, H type, H comm), \
        (send, sent, from, send_type, out, counts, places, type, comm))
// clang-format on

using H = Handle;
HOCKET_MPI_EXPORTS(int, )
HOCKET_MPI_EXPORTS(i64, _c)
HOCKET_MPI_EXPORT_SIZED(Barrier, , int, barrier, (Collective::kBarrier, kUnknownBytes), (H comm), (comm))
HOCKET_MPI_EXPORT(Type_commit, (void* type), return type_commit(type);)
HOCKET_MPI_EXPORT(Finalize, (), return finalize();)

}  // namespace hocket::mpi
