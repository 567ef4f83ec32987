// What memory a plan touches, for test_lackey.py.

#include <cstdio>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Runs plans of float32 sums, one a rank, on units of n elements. Says where buffers and slots lie, which is stored to
// once before the call and not touched after it, and what the kernels count. Plans have no scratch.
TOOL(traffic) {
    const u64 n = std::stoull(arguments[0]), tile = std::stoull(arguments[1]);
    const u32 ranks = u32(arguments.size() - 2);
    World world(ranks);
    std::vector<std::array<Block, 2>> buffers(ranks);
    std::mutex talking;
    on_threads(ranks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(4);
        mine.patience = {0, 0};
        Communicator communicator(rank, ranks, memory, {}, mine);
        Plan plan(communicator, read_words(arguments[rank + 2]), 1, "traffic");
        CHECK(plan.header().scratch == 0);
        const u64 unit = n * sizeof(float),
                  bytes[] = {plan.header().input_blocks * unit, plan.header().output_blocks * unit};
        auto& [input, output] = buffers[rank] = {lines(bytes[0]), lines(bytes[1])};
        const Call call{static_cast<char*>(input.get()),
                        static_cast<char*>(output.get()),
                        nullptr,
                        nullptr,
                        0,
                        n,
                        tile,
                        type_code("float32"),
                        0,
                        true};
        CHECK(communicator.run(plan, call).fault == Fault::kNone);
        const std::lock_guard<std::mutex> held(talking);
        const Traffic moved = communicator.traffic();
        std::printf("counted %u %llu %llu\n", rank, moved.loaded, moved.stored);
        std::printf("memory %p %llu\nmemory %p %llu\n", input.get(), bytes[0], output.get(), bytes[1]);
    });
    for (const auto& [name, block] : world.windows)
        std::printf("memory %p %llu\n", static_cast<void*>(static_cast<char*>(block.get()) + kPage), World::kBytes);
}

}  // namespace
}  // namespace hocket::test
