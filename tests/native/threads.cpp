// Several threads of one rank: teams, and calls in the background.

#include <latch>
#include <thread>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Two threads share the thread blocks of each rank: rings on channels of their own, and blocks that copy their results
// once they are there, non-temporally. `patience` is little, so that threads fall asleep on slots and on semaphores.
TEST(teams) {
    constexpr u32 kRanks = 2, kRings = 3;
    for (const u32 threads : {1u, 2u, 3u}) {
        World world(kRanks);
        on_threads(kRanks, [&](u32 rank) {
            ThreadMemory memory(world);
            Settings mine = settings(2);
            mine.patience = {5, 2};
            mine.threads = threads;
            mine.team_bytes = mine.cache_bytes = 0;
            Recorder recorder(threads, 64, 1 << 16);
            mine.recorder = &recorder;
            std::atomic<bool> over{false};
            std::thread reader([&] {  // a timeline may be read while another thread is in a call
                while (!over)
                    for (const Tape<StepEvent>& tape : recorder.steps)
                        for (const StepEvent& event : tape.events())
                            CHECK(event.begin <= event.end && event.call <= 100);
            });
            Communicator communicator(rank, kRanks, memory, {}, mine);
            Writer writer(rank, kRanks, kRanks * kRings, 0, 2);
            for (u32 number = 0; number < kRings; ++number) {
                writer.block(number);
                ring(writer, rank, kRanks, true, number * kRanks);
            }
            for (u32 number = kRings; number-- > 0;) {
                writer.block();
                for (u32 chunk = 0; chunk < kRanks; ++chunk)
                    writer.step({{kInput, number * kRanks + chunk}}, {{kOutput, number * kRanks + chunk}},
                                {{number, 2 * kRanks - 2}}, 1);
            }
            Plan plan(communicator, writer.words(), 3, "rings");
            for (int round = 0; round < 100; ++round) {
                const u64 n = u64(round * 61 % 1201);
                std::vector<int> data(n), result(n);
                for (u64 i = 0; i < n; ++i) data[i] = int(i * 5 + rank * 1000 + u64(round));
                const Outcome outcome = communicator.run(
                    plan, {reinterpret_cast<char*>(data.data()), reinterpret_cast<char*>(result.data()), nullptr,
                           nullptr, 0, n, 64, type_code("int32"), 0, true});
                CHECK(outcome.fault == Fault::kNone);
                for (u64 i = 0; i < n; ++i) CHECK(result[i] == int(kRanks * (i * 5 + u64(round)) + 1000));
            }
            over = true;
            reader.join();
            u64 expected = 0, found = 0;
            for (const CallEvent& call : recorder.calls.events()) expected += call.tiles * plan.header().steps;
            for (const Tape<StepEvent>& tape : recorder.steps) {
                found += tape.events().size();
                CHECK(tape.dropped() == 0);
            }
            CHECK(found == expected);  // once the calls are full, steps are not recorded either
            CHECK(recorder.calls.dropped() == 100 - 64);
        });
    }
}

// A call takes no more threads than it has thread blocks, however many the one before took.
TEST(smaller_teams) {
    World world(1);
    ThreadMemory memory(world);
    Settings mine = settings(1);
    mine.threads = 4;
    mine.team_bytes = 0;
    Recorder recorder(4, 64, 64);
    mine.recorder = &recorder;
    Communicator communicator(0, 1, memory, {}, mine);
    const std::vector<u32> blocks{2, 4, 2};
    for (const u32 count : blocks) {
        Writer writer(0, 1, count, 0, 1);
        for (u32 b = 0; b < count; ++b) {
            writer.block();
            writer.step({{kInput, b}}, {{kOutput, b}});
        }
        Plan plan(communicator, writer.words(), count, "copies");
        std::vector<int> data(1000, 3), result(1000);
        CHECK(communicator
                  .run(plan, {reinterpret_cast<char*>(data.data()), reinterpret_cast<char*>(result.data()), nullptr,
                              nullptr, 0, 1000, 0, type_code("int32"), 0, true})
                  .fault == Fault::kNone);
        CHECK(result == data);
    }
    std::vector<u32> threads;
    for (const CallEvent& call : recorder.calls.events()) threads.push_back(call.threads);
    CHECK(threads == blocks);
}

// Calls that are made in the background, in order, while the ranks' own threads look on.
TEST(background) {
    World world(3);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 3, memory, {}, settings(2));
        Plan plan(communicator, ring(rank, 3, 2, true), 1, "ring");
        constexpr u64 kJobs = 20, kElements = 300;
        std::vector<std::vector<int>> data(kJobs, std::vector<int>(kElements, int(rank)));
        std::vector<Outcome> outcomes(kJobs);
        std::vector<Queue::Job> jobs(kJobs);
        Queue queue;
        for (u64 j = 0; j < kJobs; ++j) {
            jobs[j].body = [&, j] {
                outcomes[j] = communicator.run(plan, {reinterpret_cast<char*>(data[j].data()), nullptr, nullptr,
                                                      nullptr, 0, kElements, 64, type_code("int32"), 0, true});
            };
            queue.submit(jobs[j]);
        }
        queue.wait(jobs[0]);
        queue.wait(jobs[kJobs - 1]);
        for (u64 j = 0; j < kJobs; ++j) {
            CHECK(outcomes[j].fault == Fault::kNone);
            for (const int value : data[j]) CHECK(value == 3);
        }
    });
}

// Jobs that are done by the queue's thread, or by the one that waits for them: each once, and in order.
TEST(helping) {
    constexpr u64 kJobs = 2000;
    std::vector<Queue::Job> jobs(kJobs);
    std::vector<u64> order;  // jobs do not overlap
    u64 helped = 0;
    const auto here = std::this_thread::get_id();
    Queue queue;
    for (u64 j = 0; j < kJobs; ++j) {
        jobs[j].body = [&, j] {
            order.push_back(j);
            helped += std::this_thread::get_id() == here;
        };
        queue.submit(jobs[j], j % 3 == 0);
        if (j % 5 == 4) {
            queue.help(jobs[j]);
            queue.wait(jobs[j]);
        }
    }
    CHECK(order.size() == kJobs);
    for (u64 j = 0; j < kJobs; ++j) CHECK(order[j] == j);
    CHECK(helped > 0);
}

// A job that was submitted without waking the thread is done once somebody does.
TEST(waking) {
    Queue::Job jobs[2];
    Queue queue;
    for (Queue::Job& job : jobs) job.body = [] {};
    queue.submit(jobs[0]);  // starts the thread
    queue.wait(jobs[0]);
    queue.submit(jobs[1], false);
    queue.wake();
    queue.wait(jobs[1]);
}

// A thread that helps leaves what came meanwhile to the queue's thread, which it wakes.
TEST(helping_and_leaving) {
    std::latch begun(1), go_on(1);
    Queue::Job jobs[3];
    Queue queue;
    jobs[0].body = jobs[2].body = [] {};
    jobs[1].body = [&] {
        begun.count_down();
        go_on.wait();
    };
    queue.submit(jobs[0]);  // starts the thread
    queue.wait(jobs[0]);
    std::thread helper([&] {
        queue.submit(jobs[1], false);
        queue.help(jobs[1]);
    });
    begun.wait();
    queue.submit(jobs[2]);
    go_on.count_down();
    queue.wait(jobs[2]);
    queue.wait(jobs[1]);
    helper.join();
}

// Who would help while the thread is at work leaves that and what comes after it to the thread.
TEST(helping_in_vain) {
    std::latch begun(1), go_on(1);
    Queue::Job jobs[2];
    const auto here = std::this_thread::get_id();
    bool helped = false;
    Queue queue;
    jobs[0].body = [&] {
        begun.count_down();
        go_on.wait();
    };
    jobs[1].body = [&] { helped = std::this_thread::get_id() == here; };
    queue.submit(jobs[0]);
    begun.wait();
    queue.submit(jobs[1], false);
    queue.help(jobs[1]);
    go_on.count_down();
    queue.wait(jobs[1]);
    CHECK(!helped);
}

}  // namespace
}  // namespace hocket::test
