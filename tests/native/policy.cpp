// What a rank chooses: the path of a call, which stores are non-temporal, which buffers it looks at.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <set>

#include "plans.h"
#include "ranks.h"
#include "runner.h"

namespace hocket::test {
namespace {

std::atomic<bool> all_far;

// Private buffers are offered where they are long enough, in huge pages and, as the call before has found, in a cache.
// All ranks go the way of the one that offers least.
TEST(private_buffers_are_offered) {
    constexpr u32 kRanks = 3, kElements = 600;
    World world(kRanks);
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.cma_use = CmaUse::kWhereFaster;
        mine.tunables.attached_bytes = kElements * sizeof(int);
        mine.is_far = [](const char*, u64) { return all_far.load(); };
        Communicator communicator(rank, kRanks, memory, {}, mine);
        Plan slots(communicator, ring(rank, kRanks, 2, true), 1, "ring");
        Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
        CHECK(inplace.view().accessed[kInput] && !inplace.view().accessed[kOutput]);
        CHECK(!slots.view().accessed[kInput] && !slots.view().accessed[kOutput]);
        std::vector<int> data(2 * kElements);
        const auto variant = [&](u32 elements, bool offers = true) {
            CHECK(communicator.barrier().fault == Fault::kNone);
            char* const at = reinterpret_cast<char*>(data.data());
            std::ranges::fill(data, 1);
            const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
            Call call{at, nullptr, nullptr, nullptr, 0, elements, 0, type_code("int32"), 0, true};
            if (offers) call.offer = &offer;
            const Outcome outcome = communicator.run(slots, call);
            CHECK(outcome.fault == Fault::kNone);
            for (u32 i = 0; i < data.size(); ++i) CHECK(data[i] == (i < elements ? int(kRanks) : 1));
            return outcome.variant;
        };
        CHECK(variant(kElements) == kInPlace);
        CHECK(variant(kElements - 1) == kBuffered);
        CHECK(variant(kElements, rank != 1) == kBuffered);
        CHECK(communicator.barrier().fault == Fault::kNone);
        all_far = true;
        CHECK(variant(kElements) == kInPlace);
        CHECK(variant(kElements) == kBuffered);
        CHECK(variant(2 * kElements) == kInPlace);  // of such a size none has been found far
        CHECK(communicator.barrier().fault == Fault::kNone);
        all_far = false;
        CHECK(variant(kElements) == kBuffered);
        CHECK(variant(kElements) == kInPlace);
        CHECK(variant(2 * kElements) == kBuffered);  // found far before
        CHECK(variant(2 * kElements) == kInPlace);
        if (rank == 1) memory.huge = false;  // as it finds when it asks again
        for (u64 call = 2; call < kCallsBetweenScans; ++call) CHECK(variant(2 * kElements) == kInPlace);
        CHECK(variant(2 * kElements) == kBuffered);
        memory.huge = true;
        for (u64 call = 1; call < kCallsBetweenScans; ++call) CHECK(variant(2 * kElements) == kBuffered);
        CHECK(variant(2 * kElements) == kInPlace);
        if (rank == 1) memory.huge = false;
        CHECK(variant(2 * kElements) == kInPlace);
        CHECK(variant(2 * kElements - 1) == kBuffered);  // of another buffer it asks at once
        memory.huge = true;
        CHECK(variant(2 * kElements - 1) == kInPlace);  // and soon again
    });
}

// In an AllToAll buffers in small pages are offered too, and attached to if those of most ranks lie in huge ones.
TEST(offered_in_small_pages) {
    constexpr u32 kRanks = 3, kElements = 600;
    World world(kRanks);
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.cma_use = CmaUse::kWhereFaster;
        mine.tunables.attached_bytes = mine.tunables.attached_exchange_bytes = kElements * sizeof(int);
        mine.tunables.attached_small_pages_bytes = kNeverBytes;
        Communicator communicator(rank, kRanks, memory, {}, mine);
        for (const u32 exchanges : {0u, 1u})
            for (u32 small = 0; small <= kRanks; ++small) {
                std::vector<u32> words = ring(rank, kRanks, 2, true);
                words[offsetof(PlanHeader, exchanges) / sizeof(u32)] = exchanges;
                Plan slots(communicator, words, 1, "ring");
                Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
                memory.huge = rank >= small;
                std::vector<int> data(kElements, 1);
                char* const at = reinterpret_cast<char*>(data.data());
                const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
                Call call{at, nullptr, nullptr, nullptr, 0, kElements, 0, type_code("int32"), 0, true};
                call.offer = &offer;
                const Outcome outcome = communicator.run(slots, call);
                CHECK(outcome.fault == Fault::kNone && data == std::vector<int>(kElements, kRanks));
                const bool attaches = small == 0 || (exchanges != 0 && 2 * small < kRanks);
                CHECK(outcome.variant == (attaches ? kInPlace : kBuffered));
            }
    });
}

std::atomic<bool> cores_apart;

// Where messages go one way and cores share no cache, private buffers are offered in any pages. Ranks go on looking how
// far apart they are while they attach.
TEST(offered_where_cores_are_apart) {
    constexpr u32 kRanks = 2, kElements = 600, kEnough = 3 * kCallsBetweenTouches;
    World world(kRanks);
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        memory.huge = false;
        Settings mine = settings(2);
        mine.cma_use = CmaUse::kWhereFaster;
        mine.tunables.apart_ticks = 7;
        mine.tunables.apart_message_bytes = 128;
        mine.tunables.attached_small_pages_bytes = kNeverBytes;
        mine.tunables.attached_small_pages_apart_bytes = 0;
        mine.tunables.attached_one_way_bytes = kElements * sizeof(int);
        mine.is_far = [](const char*, u64 near) { return near == 7 && cores_apart; };
        Communicator communicator(rank, kRanks, memory, {}, mine);
        std::vector<u32> words = ring(rank, kRanks, 2, true);
        words[offsetof(PlanHeader, one_way) / sizeof(u32)] = 1;
        Plan slots(communicator, words, 1, "ring");
        Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
        std::vector<int> data(kElements);
        const auto attaches = [&](u32 elements) {
            char* const at = reinterpret_cast<char*>(data.data());
            std::ranges::fill(data, 1);
            const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
            Call call{at, nullptr, nullptr, nullptr, 0, elements, 0, type_code("int32"), 0, true};
            call.offer = &offer;
            const Outcome outcome = communicator.run(slots, call);
            CHECK(outcome.fault == Fault::kNone);
            for (u32 i = 0; i < kElements; ++i) CHECK(data[i] == (i < elements ? int(kRanks) : 1));
            return outcome.variant == kInPlace;
        };
        for (const bool apart : {false, true, false}) {
            CHECK(communicator.barrier().fault == Fault::kNone);
            cores_apart = apart;
            CHECK(communicator.barrier().fault == Fault::kNone);
            for (u32 call = 0; call < kEnough; ++call) attaches(kElements);
            CHECK(attaches(kElements) == apart && !attaches(kElements - 1));
        }
    });
}

thread_local u32 looks_taken;

// Buffers that are offered although they were in no cache are looked at in few calls, whatever other calls there are
// between; those that are not offered, or were in a cache, in each. So a rank finds out that they are in one again.
TEST(looks_seldom_where_far_buffers_are_offered) {
    constexpr u32 kRanks = 2, kElements = 600, kCalls = 100, kSoon = 32;
    for (u64 stride = 1; stride <= 16; ++stride) {
        u64 call = stride, unseen = 0;
        for (; call < 1000 * stride; call += stride) {
            unseen = looks_again(call) ? 0 : unseen + 1;
            CHECK(unseen < kSoon);
        }
    }
    World world(kRanks);
    all_far = true;
    on_threads(kRanks, [&](u32 rank) {
        ThreadMemory memory(world, rank);
        Settings mine = settings(2);
        mine.cma_use = CmaUse::kWhereFaster;
        mine.tunables.apart_ticks = kNeverTicks;
        mine.tunables.attached_one_way_bytes = kElements * sizeof(int);
        mine.tunables.attached_far_bytes = 2 * kElements * sizeof(int);
        mine.tunables.attached_small_pages_bytes = 0;
        mine.is_far = [](const char*, u64) {
            ++looks_taken;
            return all_far.load();
        };
        Communicator communicator(rank, kRanks, memory, {}, mine);
        std::vector<u32> words = ring(rank, kRanks, 2, true);
        words[offsetof(PlanHeader, one_way) / sizeof(u32)] = 1;
        Plan slots(communicator, words, 1, "ring");
        Plan inplace(communicator, direct(rank, kRanks, true, true), 2, "in place");
        std::vector<int> data(2 * kElements);
        const auto calls_that_look = [&](u32 elements, Variant variant, u32 calls) {
            u32 found = 0;
            for (u32 call = 0; call < calls; ++call) {
                char* const at = reinterpret_cast<char*>(data.data());
                const Offer offer{{nullptr, &inplace, nullptr}, at, nullptr};
                Call given{at, nullptr, nullptr, nullptr, 0, elements, 0, type_code("int32"), 0, true};
                given.offer = &offer;
                looks_taken = 0;
                const Outcome outcome = communicator.run(slots, given);
                CHECK(outcome.fault == Fault::kNone && outcome.variant == variant);
                found += looks_taken != 0;
            }
            return found;
        };
        CHECK(calls_that_look(2 * kElements, kInPlace, 1) == 1);
        const u32 looks = calls_that_look(2 * kElements, kInPlace, kCalls);
        CHECK(looks > kCalls / 10 && looks < kCalls / 2);
        CHECK(calls_that_look(kElements, kInPlace, 1) == 1);
        CHECK(calls_that_look(kElements, kBuffered, kCalls) == kCalls);  // too short to be offered then
        CHECK(communicator.barrier().fault == Fault::kNone);
        all_far = false;
        CHECK(communicator.barrier().fault == Fault::kNone);
        calls_that_look(2 * kElements, kInPlace, kSoon);
        CHECK(calls_that_look(2 * kElements, kInPlace, kCalls) == kCalls);
    });
}

Manner spied;
void spy(char* const*, u32, char* const*, u32, u64, const Manner& how) { spied = how; }

// Which stores are non-temporal, of those that may be: results where a call streams, messages from a size on. Where a
// call streams, kernels prefetch ahead.
TEST(non_temporal_stores) {
    RankBlock nobody{};
    for (const u64 least : {u64(1), u64(64), u64(65)}) {
        Cpu cpu{spy, &nobody, 0, false, false};
        cpu.apart_copied_bytes = least;
        cpu.apart_combined_bytes = 129 - least;
        cpu.reduce(nullptr, 3, nullptr, 1, 64, {1, 2, 4}, false);
        CHECK(spied.last == (least <= 64 ? 2u : 0u) + (129 - least <= 64 ? 4u : 0u));
    }
    for (const u32 last : {0u, 1u, 3u, ~0u})
        for (const bool streams : {false, true}) {
            Cpu cpu{spy, &nobody, 0, false, streams};
            cpu.ahead_bytes = 4096;
            cpu.copy_ahead_bytes = 2048;
            cpu.reduce(nullptr, 2, nullptr, 1, 64, {last, 0, 0}, false);
            CHECK(spied.last == (streams ? last : 0));
            CHECK(spied.ahead == (streams ? 4096 : 0));
            CHECK(spied.stored_ahead == 2048);
        }
}

// Notes which messages may be stored non-temporally, and how often that is drained.
struct Noting : Cpu {
    u32 far_peer, copied = 0, combined = 0, drained = 0;

    bool is_apart(u32 peer) const { return peer == far_peer; }
    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, Streamable some, bool whole) {
        const u32 messages = some.copied | some.combined;
        CHECK(messages == 0 || messages == u32(1) << (m - 1));  // a message is the last destination
        copied += some.copied != 0;
        combined += some.combined != 0;
        Cpu::reduce(dsts, m, srcs, k, bytes, some, whole);
    }
    void drain() { ++drained; }
};

// They are those to ranks that are apart, by what these do with them, and each is drained before it is published.
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
    std::vector<ConnectionRecord> connections(view.connections, view.connections + view.header->connections);
    view.connections = connections.data();
    for (const auto& [peer, combined] : {std::pair(1u, 0u), std::pair(1u, 1u), std::pair(2u, 0u)}) {
        for (ConnectionRecord& connection : connections) connection.combined = combined ^ (connection.sends ^ 1);
        Execution<Noting, Fifo<Noting>> execution(view, geometry, buffers, nullptr, cursors.data(), ends.data(),
                                                  Rounds::kTwo);
        Noting device{{kernels().types[type_code("uint8")].reduce[0], &nobody, 0, false, false}, peer};
        char* pointers[8];
        while (execution.advance(device, {pointers, nullptr}, 0, view.header->blocks) != Progress::kDone) {
        }
        const u32 found = peer == 1 ? sent : 0;  // it sends to no other
        CHECK(device.combined == combined * found && device.copied == found - device.combined);
        CHECK(device.drained == found);
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
                    slots, {at, nullptr, nullptr, nullptr, 0, elements, 0, type_code("int32"), 0, true});
                CHECK(outcome.fault == Fault::kNone);
                for (u32 i = 0; i < elements; ++i) CHECK(data[i] == int(kRanks * (i + call) + 1));
            }
        Plan lends(communicator, direct(rank, kRanks, true, true), 2, "lends");
        char* const lent = world.arena(rank);
        const Offer offer{{nullptr, &lends, nullptr}, lent, nullptr};
        for (u32 call = 0; call < 2 * kCallsBetweenTouches; ++call) {
            const Outcome outcome = communicator.run(lends, {lent, nullptr, nullptr, nullptr, 0, kElements, 0,
                                                             type_code("int32"), 0, true, nullptr, &offer});
            CHECK(outcome.fault == Fault::kNone && outcome.variant == kInPlace);
        }
    });
    CHECK(found_far == 2 * 5);  // of messages of 8 KB and 128 bytes, not of 64, nor where there are none
}

std::vector<const char*> looked_at;
bool near_from_now_on;
bool asked(const char* at, u64) {
    looked_at.push_back(at);
    return !near_from_now_on;
}

// Of the two places of a buffer at which a rank looks, one is in its own share, and none is near its begin.
TEST(looks_at_its_own_share) {
    near_from_now_on = false;
    const Tunables tuned{};
    const std::vector<char> output(10007);
    for (u32 ranks = 1; ranks <= 64; ++ranks)
        for (u32 rank = 0; rank < ranks; ++rank) {
            looked_at.clear();
            ResidencyProbe probe{{}, output, asked};
            probe.look(rank, ranks, tuned);
            CHECK(probe.far && looked_at.size() == 2);
            const u64 share = output.size() / ranks, margin = tuned.probe_margin_bytes;
            const u64 own = u64(output.data() + std::max((rank + 1) * share, 2 * margin) - looked_at[0]);
            CHECK(margin <= own && own < 2 * margin);
            const u64 other =
                u64(output.data() + (rank + 1 < ranks ? output.size() : output.size() / 2) - looked_at[1]);
            CHECK(margin <= other && other < 2 * margin);
        }
}

TEST(looks_at_no_byte_before_a_buffer) {
    near_from_now_on = false;
    const Tunables tuned{};
    const u64 margin = tuned.probe_margin_bytes;
    const std::vector<char> output(4 * margin);
    for (u64 bytes = 2 * margin; bytes <= output.size(); ++bytes)
        for (u32 rank = 0; rank < 3; ++rank) {
            looked_at.clear();
            ResidencyProbe probe{{}, {output.data(), bytes}, asked};
            probe.look(rank, 3, tuned);
            for (const char* at : looked_at) CHECK(output.data() <= at && at + margin <= output.data() + bytes);
        }
}

// Of buffers one after another, a rank looks at places in no pattern that a prefetcher could learn: from each to the
// next it is another number of lines, mostly.
TEST(looks_in_no_pattern) {
    near_from_now_on = false;
    constexpr u64 kBuffers = 64, kBytes = 4096;
    const std::vector<char> memory(kBuffers * kBytes);
    looked_at.clear();
    for (u64 i = 0; i < kBuffers; ++i) {
        ResidencyProbe probe{{}, {&memory[i * kBytes], kBytes}, asked};
        probe.look(0, 2, Tunables{});
    }
    std::map<std::ptrdiff_t, u64> steps;
    for (u64 i = 2; i < looked_at.size(); i += 2)
        ++steps[(looked_at[i] - looked_at[i - 2]) / std::ptrdiff_t(kCacheLine)];
    u64 most = 0;
    for (const auto& [lines, times] : steps) most = std::max(most, times);
    CHECK(looked_at.size() == 2 * kBuffers && most <= kBuffers / 2);
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
        Call call{x, out, nullptr, nullptr, 0, n, 0, type_code("float32"), 0, true};
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
