// What a rank chooses: which stores are non-temporal, which buffers it looks at.

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

u32 spied;
void spy(char* const*, u32, char* const*, u32, u64, u32 last) { spied = last; }

// Which stores are non-temporal, of those that may be.
TEST(non_temporal_stores) {
    RankBlock nobody{};
    for (const u32 last : {0u, 1u, 3u, ~0u})
        for (const bool streams : {false, true}) {
            Cpu{spy, &nobody, 0, false, streams}.reduce(nullptr, 2, nullptr, 1, 64, last);
            CHECK(spied == (streams ? last : 0));
        }
}

std::vector<const char*> looked_at;
bool near_from_now_on;
bool asked(const char* at, u64) {
    looked_at.push_back(at);
    return !near_from_now_on;
}

// A rank looks at its own buffers only, at none that is short or fresh, nor at a result that the call before has stored
// non-temporally, if that is all there is, and at no more once one is near. What is far is stored non-temporally.
TEST(looks_at_buffers) {
    World world(1);
    ThreadMemory memory(world);
    Settings mine = settings(1);
    Recorder recorder(1, 64, 64);
    mine.recorder = &recorder;
    mine.is_far = asked;
    mine.tunables.far_past_bytes = 256 << 10;
    Communicator communicator(0, 1, memory, {}, mine);
    const auto plan_of = [&](std::vector<Operand> sources, u32 last, Place result = kOutput) {
        Writer writer(0, 1, 1, 0, 1);
        writer.block();
        writer.step(sources, {{result, 0}}, {}, last);
        return std::make_unique<Plan>(communicator, writer.words(), 1, "alone");
    };
    const auto sums = plan_of({{kInput, 0}, {kInput, 0}}, 1), copies = plan_of({{kInput, 0}}, 1);
    const auto reads_again = plan_of({{kInput, 0}}, 0), in_place = plan_of({{kInput, 0}, {kInput, 0}}, 1, kInput);
    constexpr u64 kLong = (256 << 10) / sizeof(float);
    std::vector<float> input(kLong, 1), output(kLong);
    bool streams = false;
    const auto looks_into = [&](Plan& plan, u64 n, bool near, bool fresh, float* to) {
        looked_at.clear();
        near_from_now_on = near;
        char* const x = reinterpret_cast<char*>(input.data());
        char* const out = reinterpret_cast<char*>(to);
        Call call{x, out, nullptr, nullptr, 0, n, 0, type_named("float32"), 0, true};
        call.fresh = fresh;
        CHECK(communicator.run(plan, call).fault == Fault::kNone);
        for (const char* at : looked_at)
            CHECK((at >= x && at < x + n * sizeof(float)) || (out && at >= out && at < out + n * sizeof(float)));
        streams = recorder.calls.events().back().streams;
        return looked_at.size();
    };
    const auto looks = [&](Plan& plan, u64 n, bool near, bool fresh) {
        return looks_into(plan, n, near, fresh, output.data());
    };
    CHECK(looks(*sums, kLong, false, false) == 4 && streams);
    for (u64 i = 0; i < kLong; ++i) CHECK(output[i] == 2);
    CHECK(looks(*sums, kLong, false, false) == 4 && streams);
    CHECK(looks(*sums, kLong, true, false) == 1 && !streams);
    for (int round = 0; round < 2; ++round) {
        CHECK(looks_into(*in_place, kLong, false, false, nullptr) == 2 && streams);
        CHECK(looks_into(*in_place, kLong, false, false, nullptr) == 0 && !streams);
    }
    CHECK(looks(*sums, kLong, false, true) == 0 && !streams);
    CHECK(looks(*sums, kLong - 1, false, false) == 0 && !streams);
    CHECK(looks(*sums, 0, false, false) == 0 && !streams);
    CHECK(looks(*copies, kLong, false, false) == 4 && streams);
    CHECK(looks(*reads_again, kLong, false, false) == 0);
}

}  // namespace
}  // namespace hocket::test
