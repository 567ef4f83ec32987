// What a rank chooses: the path of a call, which stores are non-temporal, which buffers it looks at.

#include <algorithm>
#include <atomic>
#include <set>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

// In how many of `calls` calls the second way is asked for, if each takes `ticks(second, alike)`, after so many alike,
// and the second way can be gone or not. What a call took is told in the next one, when it has been decided how that
// goes.
template <class Ticks> u32 seconds(OnlineTrial& trial, u32 calls, Ticks ticks, bool possible = true) {
    u32 found = 0, alike = 0;
    bool before = false;
    for (u32 call = 0; call < calls; ++call) {
        const bool asked = trial.second(), second = asked && possible;
        if (call > 0) trial.took(before, ticks(before, alike));
        trial.next();
        alike = call > 0 && second == before ? alike + 1 : 0;
        before = second;
        found += asked;
    }
    return found;
}

// Takes the faster way nearly always, whichever that is, and finds out when it is so no more.
TEST(trials) {
    OnlineTrial trial;
    for (const bool second_is_faster : {true, false, true}) {
        const auto ticks = [&](bool second, u32) { return second == second_is_faster ? 1000u : 1500u; };
        seconds(trial, 3000, ticks);
        const u32 found = seconds(trial, 3000, ticks);
        const u32 wrong = second_is_faster ? 3000 - found : found;
        CHECK(wrong > 20 && wrong < 90);  // two trials, or three, of a 64th of so many calls
    }
    OnlineTrial hopeless;
    const u32 tried = seconds(hopeless, 6000, [](bool second, u32) { return second ? 2000u : 1000u; });
    CHECK(tried > 20 && tried < 60);  // some ten trials
    OnlineTrial slow(true);           // to become fast: a trial goes on as long as it does
    const auto ticks = [](bool second, u32 alike) {
        return second ? 1700 - 50 * std::min(alike, 18u) : 1000 + 500 * (alike == 0);
    };
    seconds(slow, 100, ticks);
    CHECK(seconds(slow, 1000, ticks) > 900);
    OnlineTrial vain(true);  // it becomes faster, but not fast enough
    CHECK(seconds(vain, 1000, [&](bool second, u32 alike) { return ticks(second, alike) + 300 * second; }) < 200);
    for (const bool fills : {false, true}) {
        OnlineTrial never(fills);
        CHECK(seconds(never, 2000, ticks, false) < 60);
        OnlineTrial no_more(fills);
        seconds(no_more, 1000, [](bool second, u32) { return second ? 2000u : 1000u; });
        CHECK(seconds(no_more, 2000, [](bool, u32) { return 1000u; }, false) < 60);
    }
}

std::atomic<u32> looked;

// Ranks that find out by trying whether to reach each other's buffers all go one way, and both are gone, though what
// they see of their caches differs. They look in few calls.
TEST(online_trials) {
    constexpr u32 kRanks = 3, kCalls = 200, kElements = 600;
    World world(kRanks);
    std::vector<Variant> ways[kRanks];
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.cma_use = CmaUse::kWhereFaster;
        mine.is_far = [](const char*, u64) { return ++looked % 4 != 0; };
        Communicator communicator(rank, kRanks, memory, {}, mine);
        Plan slots(communicator, ring(rank, kRanks, 2, true), 1, "ring");
        Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
        std::vector<int> data(kElements);
        char* const at = reinterpret_cast<char*>(data.data());
        for (u32 call = 0; call < kCalls; ++call) {
            for (u32 i = 0; i < kElements; ++i) data[i] = int(i + call + rank);
            const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
            const Outcome outcome = communicator.run(
                slots, {at, nullptr, nullptr, nullptr, 0, kElements, 0, type_named("int32"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone);
            for (u32 i = 0; i < kElements; ++i) CHECK(data[i] == int(kRanks * (i + call) + kRanks * (kRanks - 1) / 2));
            ways[rank].push_back(outcome.variant);
            if (call % 3 == 0) CHECK(communicator.barrier().fault == Fault::kNone);
        }
    });
    for (const auto& found : ways) CHECK(found == ways[0]);
    CHECK(looked > 0);
    for (const Variant way : {kBuffered, kInPlace})
        CHECK(std::find(ways[0].begin(), ways[0].end(), way) != ways[0].end());
}

Manner spied;
void spy(char* const*, u32, char* const*, u32, u64, Manner how) { spied = how; }

// Which stores are non-temporal, of those that may be: results where a call streams, messages from a size on. Where a
// call streams, kernels prefetch ahead.
TEST(non_temporal_stores) {
    RankBlock nobody{};
    for (const u64 least : {u64(1), u64(64), u64(65)}) {
        Cpu cpu{spy, &nobody, 0, false, false};
        cpu.apart_bytes = least;
        cpu.reduce(nullptr, 3, nullptr, 1, 64, {1, 6}, false);
        CHECK(spied.last == (least <= 64 ? 6 : 0));
    }
    for (const u32 last : {0u, 1u, 3u, ~0u})
        for (const bool streams : {false, true}) {
            Cpu cpu{spy, &nobody, 0, false, streams};
            cpu.ahead_bytes = 4096;
            cpu.reduce(nullptr, 2, nullptr, 1, 64, {last, 0}, false);
            CHECK(spied.last == (streams ? last : 0));
            CHECK(spied.ahead == (streams ? 4096 : 0));
        }
}

// Notes which messages may be stored non-temporally, and how often that is drained.
struct Noting : Cpu {
    u32 far_peer, messages = 0, drained = 0;

    bool is_apart(u32 peer) const { return peer == far_peer; }
    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, Streamable some, bool whole) {
        CHECK(some.messages == 0 || some.messages == u32(1) << (m - 1));  // a message is the last destination
        messages += some.messages != 0;
        Cpu::reduce(dsts, m, srcs, k, bytes, some, whole);
    }
    void drain() { ++drained; }
};

// They are those to ranks that are apart, and each is drained before it is published.
TEST(messages_to_ranks_apart) {
    const std::vector<u32> words = ring(0, 3, 2, true);
    PlanView view{};
    CHECK(view_plan(words.data(), words.size(), view) == nullptr);
    constexpr u64 kUnit = 3 * kAlign;
    alignas(kAlign) static char memory[8][kUnit];
    const Geometry geometry = cut(kUnit, 1, view.header->chunks, 1, kUnit, 0);
    const Buffer buffers[3] = {{memory[0], kUnit, view.header->chunks}, {memory[1], kUnit, view.header->chunks}, {}};
    std::vector<Fifo<Noting>> ends;
    for (u32 c = 0; c < view.header->connections; ++c)
        ends.push_back(Fifo<Noting>::open(memory[2 + c], view.connections[c].sends != 0, view.connections[c].peer));
    u32 sent = 0;
    for (u32 s = 0; s < view.header->steps; ++s)
        for (u32 d = 0; d < view.steps[s].destinations; ++d)
            sent += view.operands[view.steps[s].first_operand + view.steps[s].sources + d].place == kSend;
    CHECK(sent > 1);
    RankBlock nobody{};
    std::vector<Cursor> cursors(view.header->blocks);
    for (const u32 peer : {1u, 2u}) {  // it sends to the first alone
        Execution<Noting, Fifo<Noting>> execution(view, geometry, buffers, nullptr, cursors.data(), ends.data(),
                                                  Rounds::kTwo);
        Noting device{{kernels().types[type_named("uint8")].reduce[0], &nobody, 0, false, false}, peer};
        char* pointers[8];
        while (execution.advance(device, {pointers, nullptr}, 0, view.header->blocks) != Progress::kDone) {
        }
        CHECK(device.messages == (peer == 1 ? sent : 0) && device.drained == device.messages);
    }
}

// One look may meet an interrupt, so it takes two to change what is known.
TEST(distance) {
    Distance distance;
    const auto after = [&](bool far) {
        distance.found(far);
        return distance.far();
    };
    CHECK(!distance.far());
    CHECK(!after(true) && after(true) && after(true));
    CHECK(after(false) && after(true) && after(false) && !after(false) && !after(false));
    CHECK(!after(true) && after(true));
    for (const u32 size : {2u, 3u, 8u}) {
        std::set<u32> seen;
        for (u64 turn = 0; turn + 1 < size; ++turn) seen.insert(Distance::whose(turn, 1, size));
        CHECK(seen.size() == size - 1 && !seen.contains(1));
    }
}

std::atomic<u32> found_far;
std::atomic<const char*> other_line;

// A rank finds out by a line of another, in few calls, that their cores share no cache; in none whose messages are
// short. What it stores is the same.
TEST(looks_at_others) {
    constexpr u32 kRanks = 2, kElements = 4096;
    World world(kRanks);
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        if (rank == 0) {
            other_line = reinterpret_cast<const char*>(&memory.control()[1].touched);
            mine.is_far = [](const char* at, u64 near) {
                CHECK(at == other_line && near == 7);
                ++found_far;
                return true;
            };
        }
        mine.tunables.apart_ticks = 7;
        mine.tunables.apart_message_bytes = 128;
        Communicator communicator(rank, kRanks, memory, {}, mine);
        Plan slots(communicator, ring(rank, kRanks, 2, true), 1, "ring");
        std::vector<int> data(kElements);
        char* const at = reinterpret_cast<char*>(data.data());
        for (const u32 elements : {kElements, 64u, 32u})
            for (u32 call = 0; call < 5 * kCallsBetweenTouches; ++call) {
                for (u32 i = 0; i < elements; ++i) data[i] = int(i + call + rank);
                const Outcome outcome = communicator.run(
                    slots, {at, nullptr, nullptr, nullptr, 0, elements, 0, type_named("int32"), 0, true});
                CHECK(outcome.fault == Fault::kNone);
                for (u32 i = 0; i < elements; ++i) CHECK(data[i] == int(kRanks * (i + call) + 1));
            }
    });
    CHECK(found_far == 2 * 5);  // of messages of 8 KB and 128 bytes, not of 64
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
