// Plans: words that are none are refused, and thread blocks follow each other however far.

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Words that are no plan are refused before anything follows them.
void refused(const std::vector<u32>& good) {
    PlanView view{};
    CHECK(view_plan(good.data(), good.size(), view) == nullptr);
    CHECK(view_plan(good.data(), good.size() - 1, view) != nullptr);
    int count = 0;
    for (size_t i = 0; i < good.size(); ++i) {
        std::vector<u32> bad = good;
        bad[i] = 0x7fffffff;
        count += view_plan(bad.data(), bad.size(), view) != nullptr;
    }
    CHECK(count > int(good.size()) / 2);  // the others are numbers that may be large: channels, strides of one chunk
}

// A direct message that lies in no buffer, or is summed.
TEST(bad_direct_plans) {
    const auto refusal = [](const std::vector<Operand>& sources, Operand to) {
        Writer writer(0, 2, 1, 0, 1);
        writer.between({0, 1}, kDirect);
        writer.block();
        writer.step(sources, {to});
        const std::vector<u32> words = writer.words();
        PlanView view{};
        const char* const wrong = view_plan(words.data(), words.size(), view);
        return std::string(wrong == nullptr ? "" : wrong);
    };
    CHECK(refusal({{kReceive, 1}}, {kOutput, 0}).empty());
    CHECK(refusal({{kReceive, 1}}, {kSend, 1}) == "a direct message lies in no buffer");
    CHECK(refusal({{kReceive, 1}, {kInput, 0}}, {kOutput, 0}) == "a direct message lies in no buffer");
}

TEST(bad_plans) {
    refused(ring(0, 3, 2, true));
    for (const bool two_rounds : {false, true}) refused(direct(0, 3, true, two_rounds));
    refused(chain(1, {0, 0, 1}));
}

// A thread block follows another past 2^32 steps. Tiles so far into a chunk have no bytes.
TEST(semaphores_count_on) {
    const std::vector<u32> words = one_after_the_other();
    PlanView view{};
    CHECK(view_plan(words.data(), words.size(), view) == nullptr);
    RankBlock nobody{};
    long long data[3] = {};
    Geometry geometry = cut(1, 8, 1, 1, 0, 64);
    geometry.tiles = u64(1) << 33;
    const Buffer buffers[3] = {{reinterpret_cast<char*>(&data[0]), geometry.unit, 1},
                               {reinterpret_cast<char*>(&data[1]), geometry.unit, 1},
                               {reinterpret_cast<char*>(&data[2]), geometry.unit, 1}};
    Cursor cursors[2];
    Execution<Cpu, End> execution(view, geometry, buffers, nullptr, cursors, nullptr);
    Cpu cpu{kernels().move, &nobody, 0, false, false};
    char* pointers[2];
    const u64 first = (u64(1) << 32) - 3;
    cursors[1].tile = cursors[1].finished = first;
    for (u64 finished = first; finished < first + 6; ++finished) {
        cursors[0].finished = finished;
        const Progress progress = execution.advance(cpu, {pointers, nullptr}, 1, 2);
        CHECK(progress == (finished == first ? Progress::kStalled : Progress::kMoved));
        CHECK(cursors[1].tile == finished && cursors[1].finished == finished);
    }
}

}  // namespace
}  // namespace hocket::test
