// Which calls are taken: by what is measured, and by what the user says.
#pragma once

#include <optional>
#include <vector>

#include "mpi/library.h"

namespace hocket::mpi {

enum class Collective : u32 {
    kAllReduce,
    kReduce,
    kBroadcast,
    kAllGather,
    kAllGatherV,
    kReduceScatter,
    kReduceScatterBlock,
    kGather,
    kScatter,
    kAllToAll,
    kAllToAllV,
    kBarrier
};
constexpr const char* kCollectiveNames[] = {
    "all_reduce",           "reduce", "broadcast", "all_gather", "all_gather_v", "reduce_scatter",
    "reduce_scatter_block", "gather", "scatter",   "all_to_all", "all_to_all_v", "barrier"};
constexpr u32 kCollectives = u32(std::size(kCollectiveNames));

// Of which no rank knows the lengths of all messages: so all calls are taken, or none.
constexpr bool is_sizeless(Collective which) {
    return which == Collective::kBarrier || which == Collective::kAllToAllV;
}

// How the ranks of a communicator lie: with a core each, on one node; without; on several nodes.
enum class Where : u32 { kCores, kShared, kNodes };
constexpr u32 kWheres = 3;

// Calls on a communicator that go to the MPI although they could be taken: many are made for few calls, and a meeting
// of their ranks takes as long as hundreds of short ones (benchmarks/results/mpi.md).
constexpr u32 kFirstCalls = 8;
// Communicators that are served at once: each keeps a descriptor open, of 1024 that a process has.
constexpr u32 kMostServed = 256;

struct Options {
    // From the environment: HOCKET_MPI, HOCKET_MPI_REPORT, HOCKET_MPI_COMPARE, HOCKET_REPRODUCIBLE, HOCKET_REACH,
    // HOCKET_ISA, HOCKET_NODES, HOCKET_CACHE_BYTES. What makes no sense turns the library off, with a line on stderr.
    explicit Options(const Library& mpi);

    // Of all by which calls are taken, which must be the same on all ranks.
    u64 hash() const;
    // However ranks lie.
    void take_from(Collective which, u64 bytes);

    bool off = false, report = false, compare = false;
    bool rank_order = false;                        // sums are in the order of ranks
    bool attaches = true, always_attaches = false;  // to memory of other ranks
    // HOCKET_CACHE_BYTES: what the caches of a communicator's ranks hold together, if the user says so.
    std::optional<u64> cache_bytes;
    // HOCKET_NODES: the node that each rank of MPI_COMM_WORLD counts as of; none where it is not set.
    std::vector<u32> nodes;
    // Bytes of a rank's message (of a block, where it has one for each rank) from which on a call is taken, by how
    // ranks lie, and from which on, on several nodes, it is not. Of one that is sizeless any but kNeverBytes takes all.
    u64 least[kWheres][kCollectives], most[kCollectives];
    // The same until the ranks of a communicator have met, its lower bound; of 0, its first kFirstCalls are taken too.
    u64 first[kCollectives];
};

}  // namespace hocket::mpi
