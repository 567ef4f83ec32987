// Calls in one round.

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// The first value of the input may come from elsewhere. Messages of 512 bytes rotate through `rotated_bytes`.
void rounds_of(u32 ranks, u64 first, u32 threads, u64 rotated_bytes = 0) {
    World world(ranks, first);
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        mine.first = first;
        mine.threads = threads;
        mine.team_bytes = 0;
        mine.tunables.rotated_bytes = rotated_bytes;
        mine.tunables.rotated_slot_bytes = 512;
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, exchanged(rank, ranks), 6, "one round");
        for (int round = 0; round < 120; ++round) {
            const u64 n = round % 7 == 6 ? 5000 : u64(round * 37 % 401) % (round % 2 ? 13 : 4000);
            std::vector<int> data(n), before(n);
            for (u64 i = 0; i < n; ++i) before[i] = int(i * 7 + rank * 1000 + u64(round));
            const bool apart = round % 3 == 0;
            if (!apart) data = before;
            char* at = reinterpret_cast<char*>(data.data());
            char* from = apart ? reinterpret_cast<char*>(before.data()) : nullptr;
            const Outcome outcome =
                communicator.run(plan, {at, nullptr, from, at, apart ? n * 4 : 0, n, 0, type_code("int32"), 0, true});
            CHECK(outcome.fault == Fault::kNone);
            for (u64 i = 0; i < n; ++i)
                CHECK(data[i] == int(ranks * (i * 7 + u64(round)) + 1000 * (ranks * (ranks - 1) / 2)));
        }
    });
    CHECK((world.areas != nullptr) == (rotated_bytes > 2 * kEager));
}

TEST(rounds) {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 first : {u64(0), (u64(1) << 32) - 50, ~u64(0) - 50})
            for (const u32 threads : {1u, 2u}) rounds_of(ranks, first, threads);
}

TEST(rounds_that_rotate) {
    for (u32 ranks = 2; ranks <= 4; ++ranks)
        for (const u64 first : {u64(0), 4 * kCallsAnArea - 50, 8 * kCallsAnArea - 50, ~u64(0) - 50})
            for (const u64 areas : {2, 4, 8}) rounds_of(ranks, first, 1, areas * kEager);
}

// Messages of a line or two, beside the header and between two ranks, are brief.
TEST(brief_messages) {
    for (const u32 ranks : {2u, 3u}) {
        World world(ranks);
        ThreadMemory memory(world, 0);
        const Settings mine = settings(2);
        Communicator communicator(0, ranks, memory, {}, mine);
        Plan plan(communicator, exchanged(0, ranks), 6, "one round");
        const EagerPath eager(communicator.control(), memory, mine.tunables);
        const auto is_brief = [&](u64 bytes, u64 most_eager) {
            const Shape shape = settle(plan.header(), bytes / 4, type_code("int32"), 0, most_eager, mine.tunables);
            return eager.is_brief({shape, &plan, nullptr, nullptr, nullptr});
        };
        CHECK(!is_brief(kInlined, kEager) && !is_brief(132, kEager) && !is_brief(64, 0));
        CHECK(is_brief(kInlined + 4, kEager) == (ranks == 2) && is_brief(128, kEager) == (ranks == 2));
    }
}

}  // namespace
}  // namespace hocket::test
