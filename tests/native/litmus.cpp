// One way only, so that nothing orders what two ranks do but the synchronisation that a test is for: if either side
// of it is weakened, ThreadSanitizer must see a race (run_sanitizers.sh).

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

LITMUS(litmus_slots) {
    for (u64 slots = 1; slots <= 2; ++slots) {
        World world(2);
        on_threads(2, [&](u32 rank) {
            ThreadMemory memory(world);
            Communicator communicator(rank, 2, memory, {}, settings(slots));
            Writer writer(rank, 2, 1, 0, 1);
            writer.block();
            if (rank == 0) writer.step({{kInput, 0}}, {{kSend, 1}});
            else writer.step({{kReceive, 0}}, {{kOutput, 0}});
            Plan plan(communicator, writer.words(), 2, "one way");
            std::vector<long long> data(512);
            for (u64 i = 0; rank == 0 && i < data.size(); ++i) data[i] = (long long)(i * i);
            char* at = reinterpret_cast<char*>(data.data());
            for (int round = 0; round < 50; ++round)
                CHECK(
                    communicator.run(plan, {at, at, nullptr, nullptr, 0, data.size(), 64, type_code("int64"), 0, true})
                        .fault == Fault::kNone);
            for (u64 i = 0; i < data.size(); ++i) CHECK(data[i] == (long long)(i * i));
        });
    }
}

// Messages in the buffers of one rank, which another reads or writes. Rank 0 offers what it has just copied, and
// changes it as soon as the call is over; rank 1 stores what it has to rank 0, which looks at it as soon as the call is
// over. In two rounds rank 0 offers what it began with. Calls are counted from close to where that wraps.
void litmus_lent(bool two_rounds, bool pushed) {
    constexpr u64 kElements = 512, kFirst = ~u64(0) - 20;
    World world(2, kFirst);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(1);
        mine.first = kFirst;
        Communicator communicator(rank, 2, memory, {}, mine);
        Writer writer(rank, 2, 1, 0, 1);
        writer.without_slots();
        if (two_rounds) writer.two_rounds();
        writer.block();
        const Place offered = two_rounds ? kInput : kOutput, theirs = two_rounds ? kTheirInput : kTheirOutput;
        if (pushed && rank == 0) writer.step({{kHere, 1}}, {{kOutput, 0}});
        if (pushed && rank == 1) writer.step({{kInput, 0}}, {{kTheirOutput, 0, 0}});
        if (!pushed && !two_rounds && rank == 0) writer.step({{kInput, 0}}, {{kOutput, 0}});
        if (!pushed && rank == 0) writer.step({{offered, 0}}, {{kHere, 1}});
        if (!pushed && rank == 1) writer.step({{theirs, 0, 0}}, {{kOutput, 0}});
        Plan plan(communicator, writer.words(), 8, "lent");
        long long* input = reinterpret_cast<long long*>(world.arena(rank));
        long long* output = input + kElements;
        for (int round = 0; round < 50; ++round) {
            for (u64 i = 0; i < kElements; ++i) input[i] = (long long)(i * i) + round;
            const Offer offer{
                {nullptr, nullptr, &plan}, reinterpret_cast<char*>(input), reinterpret_cast<char*>(output)};
            const Outcome outcome = communicator.run(plan, {offer.input, offer.output, nullptr, nullptr, 0, kElements,
                                                            64, type_code("int64"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone && outcome.variant == kApart);
            for (u64 i = 0; i < kElements && rank == u32(!pushed); ++i) CHECK(output[i] == (long long)(i * i) + round);
            for (u64 i = 0; i < kElements; ++i) output[i] = -1;
        }
    });
}

LITMUS(litmus_lent) {
    for (const bool two_rounds : {false, true})
        for (const bool pushed : {false, true}) litmus_lent(two_rounds, pushed);
}

// The same in one round, where only the headers order it.
LITMUS(litmus_round) {
    for (const u64 n : {u64(6), u64(512)}) {
        World world(2);
        on_threads(2, [&](u32 rank) {
            ThreadMemory memory(world);
            Communicator communicator(rank, 2, memory, {}, settings(1));
            Writer writer(rank, 2, 1, 0, 1);
            writer.one_round();
            writer.block();
            if (rank == 0) writer.step({{kInput, 0}}, {{kSend, 1}});
            else writer.step({{kReceive, 0}}, {{kOutput, 0}});
            Plan plan(communicator, writer.words(), 7, "one way, one round");
            std::vector<long long> data(n);
            char* at = reinterpret_cast<char*>(data.data());
            for (int round = 0; round < 50; ++round) {
                for (u64 i = 0; rank == 0 && i < n; ++i) data[i] = (long long)(i * i) + round;
                CHECK(communicator.run(plan, {at, at, nullptr, nullptr, 0, n, 0, type_code("int64"), 0, true}).fault ==
                      Fault::kNone);
                for (u64 i = 0; i < n; ++i) CHECK(data[i] == (long long)(i * i) + round);
            }
        });
    }
}

// Two threads drive them.
LITMUS(litmus_semaphore) {
    const std::vector<u32> words = one_after_the_other();
    PlanView view{};
    CHECK(view_plan(words.data(), words.size(), view) == nullptr);
    RankBlock nobody{};
    for (int round = 0; round < 50; ++round) {
        std::vector<int> input(512, round), output(512), scratch(512);
        const Geometry geometry = cut(512, 4, 1, 1, 0, 64);
        const auto buffer = [&](std::vector<int>& data) {
            return Buffer{reinterpret_cast<char*>(data.data()), geometry.unit, 1};
        };
        const Buffer buffers[3] = {buffer(input), buffer(output), buffer(scratch)};
        Cursor cursors[2];
        Execution<Cpu, End> execution(view, geometry, buffers, nullptr, cursors, nullptr);
        on_threads(2, [&](u32 block) {
            Cpu cpu{kernels().types[type_code("int32")].reduce[0], &nobody, 0, true, false};
            char* pointers[2];
            while (execution.advance(cpu, {pointers, nullptr}, block, block + 1) != Progress::kDone) ::sched_yield();
        });
        for (const int value : output) CHECK(value == round);
    }
}

LITMUS(litmus_header) {
    World world(3);
    on_threads(3, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 3, memory, {}, settings(1));
        for (int round = 0; round < 200; ++round) {
            // Every third call one rank refuses: all must know, and why, and go on.
            if (round % 3 == 2 && u32(round) % 9 / 3 == rank) {
                CHECK(communicator.control().refuse("because").fault == Fault::kRefused);
                continue;
            }
            const Outcome outcome = communicator.barrier();
            CHECK(outcome.fault == (round % 3 == 2 ? Fault::kRefused : Fault::kNone));
            if (round % 3 == 2) CHECK(outcome.rank == u32(round) % 9 / 3 && outcome.why().text == "because");
        }
    });
}

LITMUS(litmus_state) {
    World world(2);
    on_threads(2, [&](u32 rank) {
        ThreadMemory memory(world);
        Communicator communicator(rank, 2, memory, {}, settings(1));
        if (rank == 0) {
            communicator.control().fail(0, "raised something");
        } else {
            const Outcome outcome = communicator.barrier();
            CHECK(outcome.fault == Fault::kPeer && outcome.rank == 0 && outcome.why().text == "raised something");
            CHECK(communicator.barrier().fault == Fault::kDead);
        }
    });
}

}  // namespace
}  // namespace hocket::test
