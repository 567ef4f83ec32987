// Messages in slots: counters that wrap, slots of any number, multicasts.

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Calls and messages are counted from `first`. `rotated`: as in tunables.def.
void ring_calls(u32 ranks, bool fused, u64 slots, u64 first, u64 rotated = 0) {
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(slots);
        mine.first = first;
        mine.tunables.rotated_bytes = rotated;
        mine.tunables.rotated_slot_bytes = 1;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, ring(rank, ranks, u32(slots), fused), 1, "ring");
        for (int round = 0; round < 60; ++round) {
            const u64 n = round % 10 == 3 ? 30'000 : u64(round * 37 % 401);
            std::vector<int> data(n);
            for (u64 i = 0; i < n; ++i) data[i] = int(i * 7 + rank * 1000 + u64(round));
            char* at = reinterpret_cast<char*>(data.data());
            const u64 tile = round % 3 && n < 1000 ? 64 : 0;  // up to seven tiles
            const Outcome outcome =
                communicator.run(plan, {at, nullptr, nullptr, nullptr, 0, n, tile, type_code("int32"), 0, true});
            CHECK(outcome.fault == Fault::kNone);
            const Outlook outlook = communicator.outlook(plan, n, type_code("int32"), tile, true, false);
            CHECK(rotated != 0 ? outlook.slots > slots : outlook.slots == std::bit_ceil(slots));
            for (u64 i = 0; i < n; ++i)
                CHECK(data[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
        CHECK(communicator.barrier().fault == Fault::kNone);
    });
}

TEST(rings) {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const bool fused : {false, true})
            for (u64 slots = fused ? 2 : 1; slots <= 3; ++slots) ring_calls(ranks, fused, slots, 0);
}

// Counters that reach 2^32 and 2^64 in the middle of calls, of a message's tiles, and with slots of any number.
TEST(rings_wrap) {
    for (const u64 bits : {32, 64})
        for (u32 ranks = 2; ranks <= 3; ++ranks)
            for (u64 slots = 2; slots <= 7; ++slots)
                for (const u64 before : {20, 150, 151, 152})
                    ring_calls(ranks, true, slots, (u64(2) << (bits - 1)) - before);
}

// The same where there are more slots than needed, for short messages more than for long ones.
TEST(rings_rotate) {
    for (const u64 first : {u64(0), (u64(1) << 32) - 150, ~u64(0) - 150})
        for (u32 ranks = 2; ranks <= 3; ++ranks) ring_calls(ranks, true, 2, first, World::kBytes);
}

// Rank 0 sends two chunks to readers that are others from call to call, now with the same counters, now past a wrap.
TEST(multicasts) {
    const u32 ranks = 4;
    const std::vector<std::vector<u32>> sets{{1, 2, 3}, {2, 3}, {3, 1}, {2}};
    for (const u64 first : {u64(0), (u64(1) << 32) - 40, ~u64(0) - 40})
        for (const u64 slots : {1, 2, 4}) {
            World world(ranks, first);
            on_threads(ranks, [&](u32 rank) {
                ThreadMemory memory(world);
                Settings mine = settings(slots);
                mine.first = first;
                Communicator communicator(rank, ranks, memory, {}, mine);
                std::vector<std::unique_ptr<Plan>> plans;
                for (const auto& readers : sets) {
                    Writer plan(rank, ranks, 2, 0, 1);
                    plan.block();
                    for (u32 chunk = 0; chunk < 2; ++chunk) {
                        if (rank == 0) plan.step({{kInput, chunk}}, {{kSend, readers[0]}});
                        for (const u32 reader : readers)
                            if (reader == rank) plan.step({{kReceive, 0}}, {{kInput, chunk}});
                    }
                    plan.multicast(0, readers, 2);
                    plans.push_back(std::make_unique<Plan>(communicator, plan.words(), plans.size() + 1, "multicast"));
                }
                for (u64 round = 0; round < 80; ++round) {
                    const u64 set = round * 7 / 3 % sets.size(), n = round * 37 % 401;
                    std::vector<int> data(n, int(round * 10 + rank));
                    char* at = reinterpret_cast<char*>(data.data());
                    const u64 tile = round % 3 ? 64 : 0;
                    const Outcome outcome = communicator.run(
                        *plans[set], {at, nullptr, nullptr, nullptr, 0, n, tile, type_code("int32"), 0, true});
                    CHECK(outcome.fault == Fault::kNone);
                    bool reads = false;
                    for (const u32 reader : sets[set]) reads = reads || reader == rank;
                    for (const int value : data) CHECK(value == int(round * 10 + (reads ? 0 : rank)));
                }
                CHECK(communicator.barrier().fault == Fault::kNone);
            });
        }
}

}  // namespace
}  // namespace hocket::test
