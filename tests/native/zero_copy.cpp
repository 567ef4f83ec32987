// Messages in the buffers of ranks, which others read and write in place or copy from and to.

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Buffers lie in the arenas of all ranks, in place, apart, or the one here and the other there; or of some only. Else
// messages take slots, or one round where they are small and nobody lends. `attached`: they lie in no arena.
void lent_sums(u32 ranks, u64 first, u32 threads, bool two_rounds, bool attached) {
    constexpr u64 kMost = World::kLent / 16;  // elements
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.first = first;
        mine.threads = threads;
        mine.team_bytes = mine.cache_bytes = 0;
        Recorder recorder(threads, 128, 1 << 16);
        if (first == 0) mine.recorder = &recorder;
        if (attached) mine.cma_use = CmaUse::kAlways;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan slots(communicator, ring(rank, ranks, 2, true), 1, "ring");
        Plan small(communicator, exchanged(rank, ranks), 6, "one round");
        Plan inplace(communicator, direct(rank, ranks, true, two_rounds), 2, "in place");
        Plan apart(communicator, direct(rank, ranks, false, two_rounds), 3, "apart");
        std::vector<int> elsewhere(2 * kMost);
        int* const input = attached ? elsewhere.data() : reinterpret_cast<int*>(world.arena(rank));
        int* const output = input + kMost;
        for (int round = 0; round < 120; ++round) {
            const bool exchanges = round % 4 > 1;
            const u64 n = round % 8 == 7 ? u64(round) % 13 : u64(round * 397) % kMost;
            for (u64 i = 0; i < n; ++i) input[i] = int(i * 7 + rank * 1000 + u64(round));
            char* const x = reinterpret_cast<char*>(input);
            char* const out = reinterpret_cast<char*>(output);
            const bool in = round % 5 == 0 || (round % 5 == 1 && rank != 0);
            const bool none = (round % 5 == 2 && rank == 1) || round % 15 == 14;
            const Variant offered = in ? kInPlace : kApart;
            Offer offer{{}, x, in ? nullptr : out};
            offer.plans[offered] = in ? &inplace : &apart;
            if (none) offer = {};
            // These know no other way than in place.
            std::vector<int> own(input, input + n);
            char* const at = in ? x : reinterpret_cast<char*>(own.data());
            const Outcome outcome =
                communicator.run(exchanges ? small : slots, {at, nullptr, nullptr, nullptr, 0, n, round % 2 ? 64u : 0u,
                                                             type_code("int32"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone);
            const bool lends =
                round % 15 != 14 && round % 5 != 1 && round % 5 != 2 && !(exchanges && n * sizeof(int) <= kInlined);
            CHECK(outcome.variant == (lends ? offered : kBuffered));
            const u64 bytes = n * sizeof(int), most = round % 2 ? 64 : kEager;
            const bool one = exchanges && (bytes <= kInlined || (round % 15 == 14 && bytes <= most));
            const Rounds rounds = one                                          ? Rounds::kOne
                                  : outcome.variant != kBuffered && two_rounds ? Rounds::kTwo
                                                                               : Rounds::kMany;
            CHECK(first != 0 || recorder.calls.events().back().rounds == u32(rounds));
            const int* result = lends && !in ? output : reinterpret_cast<int*>(at);
            for (u64 i = 0; i < n; ++i)
                CHECK(result[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
        CHECK(memory.kept.empty());
    });
}

TEST(lent) {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 first : {u64(0), (u64(1) << 32) - 50, ~u64(0) - 50})
            for (const u32 threads : {1u, 2u})
                for (const auto& [two_rounds, attached] : {std::pair(false, false), {true, false}, {true, true}})
                    lent_sums(ranks, first, threads, two_rounds, attached);
}

}  // namespace
}  // namespace hocket::test
