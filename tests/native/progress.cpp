// A rank that waits gets on with what others need of it.

#include <atomic>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// A message outside of the library, which its sender moves piece by piece, whenever the library lets it.
struct Message {
    static constexpr u32 kPieces = 500;  // far more than naps of the usual length in the timeout

    static void move(void* message) {
        CHECK(!worker_thread);
        Message& mine = *static_cast<Message*>(message);
        if (mine.moved < kPieces) ++mine.moved;
    }
    void await() const {
        while (moved < kPieces) ::sched_yield();
    }

    std::atomic<u32> moved{0};
};

// Of two ranks, first one and then the other enters a call only when it has got a message of the other, which waits in
// the call. They spin, yield or sleep there. Then teams wait in a call, of which only the callers may move messages.
TEST(progress) {
    for (const Patience patience : {Patience{50, 20}, Patience{0, 1 << 20}, Patience{0, 0}}) {
        World world(2);
        Message messages[2];
        on_threads(2, [&](u32 rank) {
            ThreadMemory memory(world);
            Settings mine = settings(2);
            mine.patience = patience;
            mine.timeout = 10;
            mine.threads = 2;
            mine.progress = {Message::move, &messages[rank]};
            Communicator communicator(rank, 2, memory, {}, mine);
            for (u32 receiver = 0; receiver < 2; ++receiver) {
                if (rank == receiver) messages[1 - rank].await();
                CHECK(communicator.barrier().fault == Fault::kNone);
            }
            Writer writer(rank, 2, 4, 0, 2);
            for (u32 number = 0; number < 2; ++number) {
                writer.block(number);
                ring(writer, rank, 2, true, number * 2);
            }
            Plan plan(communicator, writer.words(), 3, "rings");
            for (int round = 0; round < 20; ++round) {
                std::vector<int> data(1000, 1);
                CHECK(communicator
                          .run(plan, {reinterpret_cast<char*>(data.data()), nullptr, nullptr, nullptr, 0, 1000, 64,
                                      type_code("int32"), 0, true})
                          .fault == Fault::kNone);
                CHECK(data == std::vector<int>(1000, 2));
            }
        });
    }
}

// When the last of two ranks entered a call is known where both have said when they did, and is never still to come.
TEST(entered) {
    World world(2);
    ThreadMemory memory(world);
    Communicator first(0, 2, memory, {}, settings(2)), second(1, 2, memory, {}, settings(2));
    const auto at = [&](u64 one, u64 other) {
        first.control().post({{}, "barrier", ControlPlane::kBarrier, nullptr, 0, 0, one});
        second.control().post({{}, "barrier", ControlPlane::kBarrier, nullptr, 0, 0, other});
        CHECK(first.control().await_all().fault == Fault::kNone && second.control().await_all().fault == Fault::kNone);
        return first.control().entered_at();
    };
    const u64 begun = first.control().clock().ticks();
    CHECK(at(3, 5) == 5 && second.control().entered_at() == 5);
    CHECK(at(8, 7) == 8);
    CHECK(at(9, 0) >= begun);  // what it said two calls before does not count
    CHECK(at(9, ~u64(0)) <= first.control().clock().ticks());
}

// What a call takes a rank counts from when the last one has entered, also where this one, that waits, looks later.
TEST(timed) {
    constexpr u64 kLate = 1 << 20;
    static RankBlock* blocks;
    static std::atomic<bool> waits;
    World world(2);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        if (rank == 0) {
            blocks = memory.control();
            mine.patience = {1, 1 << 20};
            mine.patient = [] {
                if (waits.exchange(true)) return;
                while (observe_header(&blocks[1].headers[1].call) != 1) ::sched_yield();
                const Clock clock;
                for (const u64 entered = clock.ticks(); clock.ticks() - entered < kLate;) relax();
            };
        }
        Communicator communicator(rank, 2, memory, {}, mine);
        Plan plan(communicator, ring(rank, 2, 2, true), 1, "ring");
        std::vector<int> data(64, 1);
        Watch watch;
        Call call{
            reinterpret_cast<char*>(data.data()), nullptr, nullptr, nullptr, 0, 64, 0, type_code("int32"), 0, true};
        call.watch = &watch;
        while (rank == 1 && !waits) ::sched_yield();
        CHECK(communicator.run(plan, call).fault == Fault::kNone);
        CHECK(watch.took >= kLate);  // rank 1 waits for rank 0 in it
    });
}

}  // namespace
}  // namespace hocket::test
