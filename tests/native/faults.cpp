// Ranks that fail, leave or are interrupted: who notices it, in which call, and what it may have touched.

#include <atomic>
#include <cerrno>
#include <thread>
#include <tuple>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

std::atomic<bool> looks;  // a rank that waits looks for faults

// A rank of several threads whose peer fails in the call: all of its threads stop, and the cause is what is told.
TEST(team_fails) {
    World world(2);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        mine.threads = 2;
        mine.team_bytes = 0;
        mine.interrupted = [] { return !(looks = true); };
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 4, 0, 2);
        for (u32 number = 0; number < 2 && rank == 1; ++number) {
            writer.block(number);
            ring(writer, rank, 2, true, number * 2);
        }
        Plan plan(communicator, writer.words(), 4, "rings");
        std::vector<int> data(1000);
        const Outcome outcome = communicator.run(plan, {reinterpret_cast<char*>(data.data()), nullptr, nullptr, nullptr,
                                                        0, 1000, 64, type_code("int32"), 0, true});
        if (rank == 0) {  // which sends nothing
            looks = false;
            while (!looks) ::sched_yield();
            return communicator.control().fail(0, "raised something");
        }
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.why().text == "raised something");
    });
}

// A signal reaches a rank whose first thread, which alone is told of it, has done its share; another waits in vain.
std::atomic<bool> signalled;

TEST(team_interrupted) {
    signalled = false;
    World world(2);
    std::atomic<bool> over{false};
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(2);
        mine.threads = 2;
        mine.team_bytes = 0;
        mine.patience = {1, 1};
        mine.patient = [] { signalled = signalled || worker_thread; };
        mine.interrupted = [] { return signalled.load(); };
        if (rank == 1) mine.interrupted = nullptr;
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 1, 2, 2);
        for (u32 number = 0; number < 2; ++number) {
            writer.block(number);
            if (rank == 0 && number == 1) writer.step({{kReceive, 1}}, {{kScratch, 1}});
            else writer.step({{kInput, 0}}, {{kScratch, number}});
        }
        Plan plan(communicator, writer.words(), 1, "a message that never comes");
        std::vector<int> data(1000);
        const Outcome outcome = communicator.run(plan, {reinterpret_cast<char*>(data.data()), nullptr, nullptr, nullptr,
                                                        0, 1000, 0, type_code("int32"), 0, true});
        CHECK(outcome.fault == (rank == 0 ? Fault::kInterrupted : Fault::kNone));
        if (rank == 0) over = true;
        while (!over) std::this_thread::yield();
    });
}

// Rank 0 leaves after a barrier, rank 1 misses it in the next one and fails; rank 2, still in the first, must not: all
// it needs is there. Its hook holds it, in the look for faults of that first barrier, until rank 1 has failed.
std::atomic<bool> has_failed;

bool hold() {
    looks = true;
    while (!has_failed) ::sched_yield();
    return false;
}

void failed_later(u64 first) {
    looks = has_failed = false;
    World world(3, first);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(1);
        mine.first = first;
        if (rank == 2) mine.interrupted = hold;
        Communicator communicator(rank, 3, memory, {}, mine);
        while (rank == 0 && !looks) ::sched_yield();
        CHECK(communicator.barrier().fault == Fault::kNone);
        if (rank == 0) return communicator.control().leave();
        const Outcome outcome = communicator.barrier();
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.why().text == "closed its communicator");
        if (rank == 1) has_failed = true;
    });
}

TEST(failed_later) {
    for (const u64 first : {u64(0), ~u64(0) - 1}) failed_later(first);
}

// The other way round: rank 1 fails in call 2^64 - 1, for a message that rank 0 does not send; the others, who need
// nothing in that call, must know in the next, which is 0.
TEST(failed_before) {
    const u64 first = ~u64(0) - 1;
    World world(3, first);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Settings mine = settings(1);
        mine.first = first;
        if (rank == 1) mine.timeout = 1;
        Communicator communicator(rank, 3, memory, {}, mine);
        Writer writer(rank, 3, 1, 0, 1);
        writer.block();
        if (rank == 1) writer.step({{kReceive, 0}}, {{kOutput, 0}});
        Plan plan(communicator, writer.words(), 5, "nobody sends");
        long long data = 0;
        char* at = reinterpret_cast<char*>(&data);
        const Outcome outcome =
            communicator.run(plan, {at, at, nullptr, nullptr, 0, 1, 0, type_code("int64"), 0, true});
        CHECK(outcome.fault == (rank == 1 ? Fault::kTimeout : Fault::kNone));
        if (rank == 1) return;
        const Outcome next = communicator.barrier();
        CHECK(next.fault == Fault::kPeer && next.why().text == "was waited for in vain");
    });
}

// What a rank lends is not used again where a call failed: another may be late to read it. In two rounds, too, where
// the other is interrupted before it is done: it waits for itself.
void lent_in_vain(bool two_rounds) {
    World world(2);
    looks = false;
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(1);
        mine.interrupted = [] { return !(looks = true); };
        if (two_rounds && rank == 1) mine.interrupted = [] { return looks.load(); };
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 1, 0, 1);
        writer.without_slots();
        if (two_rounds) writer.two_rounds();
        writer.block();
        if (rank == 0) writer.step({{kInput, 0}}, {{kHere, 1}});
        else if (two_rounds) writer.step({{kTheirInput, 0, 0}}, {{kInput, 0}}, {{0, 0}});
        Plan plan(communicator, writer.words(), 9, "nobody reads");
        const Offer offer{{nullptr, &plan}, world.arena(rank) + 64, nullptr};
        const Outcome outcome = communicator.run(
            plan, {offer.input, nullptr, nullptr, nullptr, 0, 1, 0, type_code("int64"), 0, true, nullptr, &offer});
        if (rank == 1 && two_rounds) {
            CHECK(outcome.fault == Fault::kInterrupted);
            return;
        }
        if (rank == 1) {
            CHECK(outcome.fault == Fault::kNone && memory.kept.empty());
            while (!looks) ::sched_yield();
            return communicator.control().fail(1, "raised something");
        }
        CHECK(outcome.fault == Fault::kPeer && outcome.rank == 1);
        CHECK(outcome.why().text == (two_rounds ? "was interrupted" : "raised something"));
        CHECK(memory.kept == std::vector<u64>{64});
    });
}

TEST(lent_in_vain) {
    for (const bool two_rounds : {false, true}) lent_in_vain(two_rounds);
}

// Memory that cannot be reached after all is a fault of whose it is, or of who may not reach it, and what a rank has
// told the others of is exposed.
TEST(reached_in_vain) {
    constexpr auto kRefused =
        "may not access the memory of rank 0 any more: Operation not permitted (HOCKET_REACH=never does without)";
    for (const bool pushed : {false, true})
        for (const auto& [error, whose, text] : {std::tuple(ESRCH, 0u, "has ended"),
                                                 {EFAULT, 0u, "has an array that cannot be reached: Bad address"},
                                                 {EPERM, 1u, kRefused}}) {
            World world(2);
            on_threads(2, [&](u32 rank) {
                ThreadMemory memory(world, rank);
                Settings mine = settings(1);
                mine.cma_use = CmaUse::kAlways;
                if (rank == 1) memory.error = error;
                Communicator communicator(rank, 2, memory, {}, mine);
                Writer writer(rank, 2, 2, 0, 1);
                writer.without_slots();
                writer.two_rounds();
                writer.block();
                const Operand here{kHere, 1 - rank}, there{kTheirInput, 0, 0}, own{kInput, 1};
                if (rank == 1) writer.step({pushed ? own : there}, {pushed ? there : own});
                else if (pushed) writer.step({here}, {{kInput, 0}});
                else writer.step({{kInput, 0}}, {here});
                Plan plan(communicator, writer.words(), 9, "reached in vain");
                std::vector<long long> data(32, rank);
                char* const at = reinterpret_cast<char*>(data.data());
                const Offer offer{{nullptr, &plan}, at, nullptr};
                const Outcome outcome = communicator.run(
                    plan, {at, nullptr, nullptr, nullptr, 0, 32, 0, type_code("int64"), 0, true, nullptr, &offer});
                CHECK(outcome.fault == Fault::kPeer && outcome.rank == whose && outcome.why().text == text &&
                      outcome.exposed);
                CHECK(memory.kept.empty());
                for (const long long value : data) CHECK(value == rank);
            });
        }
}

}  // namespace
}  // namespace hocket::test
