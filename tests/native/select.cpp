// Which path a call takes, and how, as it follows from a plan, a size and the tuned numbers alone.

#include "policy/select.h"
#include "device/kernels.h"
#include "policy/residency.h"
#include "runner.h"

namespace hocket::test {
namespace {

// Of a plan of two ranks whose messages are one chunk each.
PlanHeader header(u32 eager = 1) {
    PlanHeader found{};
    found.ranks = 2;
    found.chunks = found.input_blocks = found.slots = found.widest = found.fan = found.work = found.depth = 1;
    found.blocks = 3;
    found.eager = eager;
    return found;
}

constexpr u32 kByte = kTypes + 1;  // an opaque element of one byte

// With no more slots than needed.
Shape settled(const PlanHeader& plan, u64 bytes, u64 most_eager = kEager, u64 tile = 0) {
    Tunables tuned;
    tuned.rotated_bytes = 0;
    return settle(plan, bytes, kByte, tile, most_eager, tuned);
}

// Tiles of a batched chunk go together.
TEST(tiles_a_message) {
    const auto found = [&](Storage storage, u64 tile) {
        ConnectionRecord connection{};
        connection.storage = storage;
        return tiles_a_message(connection, {0, 0, tile, 0}, {});
    };
    CHECK(found(kBatched, 64 << 10) == 16 && found(kBatched, 1 << 20) == 1 && found(kBatched, 2 << 20) == 1);
    CHECK(found(kDirect, 64 << 10) == 1);
}

TEST(paths_by_size) {
    const auto path = [](const PlanHeader& plan, u64 bytes, u64 most_eager = kEager) {
        return select(plan, settled(plan, bytes, most_eager), 0, 0).path;
    };
    CHECK(path(header(), kInlined) == Path::kInlineEager);
    CHECK(path(header(), kInlined + 1) == Path::kEager);
    CHECK(path(header(2), kInlined) == Path::kEager);  // two messages do not fit into the header
    CHECK(path(header(), kEager) == Path::kEager);
    CHECK(path(header(), kEager + 1) == Path::kFifo);
    CHECK(path(header(2), kEager / 2) == Path::kEager && path(header(2), kEager / 2 + 64) == Path::kFifo);
    CHECK(path(header(0), 8) == Path::kFifo);  // the schedule takes more than one round
    CHECK(path(header(), 8, 0) == Path::kFifo);
    CHECK(path(header(), 1024, 1024) == Path::kEager && path(header(), 1025, 1024) == Path::kFifo);
    CHECK(most_eager(8, true, true, true) == 0 && most_eager(8, false, false, true) == kEager);
    CHECK(most_eager(2, false, true, true) == kMostEager && most_eager(64, false, true, true) == kExchanged / 64);
    CHECK(most_eager(2, false, true, false) == kUsuallyEager);
    CHECK(most_eager(64, false, true, false) == kUsuallyExchanged / 64);
    CHECK(path(header(), 2 * kEager, 2 * kEager) == Path::kEager);
    CHECK(path(header(3), 5 << 10) == Path::kEager);  // chunks of any length
    CHECK(settled(header(), 5 << 10, kEager, 8 << 10).eager() && !settled(header(), 5 << 10, kEager, 4 << 10).eager());
    CHECK(settled(header(), kInlined).tiny() && settled(header(2), kInlined).tiny());
    CHECK(!settled(header(), kInlined + 1).tiny() && !settled(header(), 8, 0).tiny());
}

// What all offer is taken, whatever else some do. What only some offer is not, and then nothing was sent eagerly.
TEST(paths_by_what_ranks_offer) {
    for (const PlanHeader& plan : {header(0), header()}) {
        const Shape shape = settled(plan, 8);
        for (const Variant variant : kZeroCopy) {
            const u32 only = u32(1) << variant;
            const Selection taken = select(plan, shape, only, ~u32(0)), refused = select(plan, shape, 0, only);
            CHECK(taken.path == Path::kZeroCopy && taken.variant == variant);
            CHECK(refused.path == Path::kFifo && refused.variant == kBuffered);
        }
    }
}

TEST(rounds_by_plan) {
    PlanHeader plan = header(0);
    CHECK(settled(plan, 8).rounds == Rounds::kMany);
    plan.two_rounds = 1;
    CHECK(settled(plan, 8).rounds == Rounds::kTwo);
    CHECK(settled(header(), 8).rounds == Rounds::kOne);
}

// Messages rotate through as many slots as there is room for, unless they are short, and through no fewer than needed.
TEST(rotated_slots) {
    PlanHeader plan = header(0);
    plan.fan = 2;
    Tunables tuned;
    const auto slots = [&](u64 bytes) { return settle(plan, bytes, kByte, 0, 0, tuned).slots; };
    CHECK(slots(4 << 10) == 4);
    CHECK(slots(8 << 10) == 128 && slots(32 << 10) == 32 && slots(256 << 10) == 4);
    tuned.rotated_slot_bytes = 4 << 10;
    CHECK(slots(4 << 10) == 256);
    tuned.rotated_bytes = 0;
    CHECK(slots(4 << 10) == 4 && slots(32 << 10) == 4);
    plan.slots = 5;
    CHECK(slots(32 << 10) == 8);
    tuned.rotated_bytes = kNeverBytes;
    CHECK(slots(32 << 10) * (32 << 10) <= kWindowStride - kPage);
}

// At least as many as the plan needs, a power of two.
TEST(slots_by_size) {
    const Tunables tuned;
    PlanHeader plan = header(0);
    CHECK(settled(plan, 64).slots == tuned.slots && settled(plan, 64 << 20).slots == tuned.slots);
    plan.slots = u32(tuned.slots) + 1;
    for (u64 bytes = 1; bytes < 64 << 20; bytes = bytes * 3 + 1) {
        const Shape found = settled(plan, bytes);
        CHECK(found.slots == 2 * tuned.slots);
        CHECK(found.geometry.tile <= tuned.slot_bytes && found.geometry.tile * found.geometry.tiles >= bytes);
    }
    CHECK(settled(plan, 1 << 20, kEager, 4096).geometry.tile == 4096);
}

TEST(preferences) {
    const auto set = [](auto... variants) { return ((u32(1) << variants) | ...); };
    CHECK(preferred(0) == kBuffered && preferred(set(kBuffered)) == kBuffered);
    for (const Variant variant : kZeroCopy) CHECK(preferred(set(variant)) == variant);
    CHECK(preferred(set(kInPlace, kApart)) == kInPlace);
}

TEST(threads_by_size) {
    const PlanHeader plan = header();
    const auto threads = [&](u64 bytes, u32 most) {
        return threads_for(plan, settled(plan, bytes).geometry, most, 4096);
    };
    CHECK(threads(4095, 8) == 1);
    CHECK(threads(4096, 8) == plan.blocks);
    CHECK(threads(4096, 2) == 2);
    CHECK(threads(4096, 1) == 1);
}

TEST(what_is_stored_past) {
    const PlanHeader plan = header(0);
    const PlanView view{&plan, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, false, false, true};
    const Tunables tuned{.far_past_bytes = 1000};
    const Shape long_one = settled(plan, 1 << 20);
    CHECK(touched_bytes(view, long_one, true, false) == 2 << 20);
    const auto streams = [&](u64 caches, bool far, u64 bytes) {
        return streams_for(view, long_one, true, false, caches, far, bytes, tuned);
    };
    CHECK(!streams(2 << 20, false, 5000) && streams((2 << 20) - 1, false, 5000));
    CHECK(!streams(2 << 20, true, 999) && streams(2 << 20, true, 1000));
    CHECK(!streams_for(view, settled(header(), 64), true, false, 0, true, 5000, tuned));
}

// From which size on private buffers are offered: by which way messages go, residency and pages, and whether
// ranks share cores or their cores no cache.
TEST(what_is_attached) {
    PlanHeader plan = header(0);
    Tunables tuned{.attached_bytes = 5,
                   .attached_exchange_bytes = 4,
                   .attached_one_way_bytes = 3,
                   .attached_far_bytes = 7,
                   .attached_far_apart_bytes = 9,
                   .attached_small_pages_bytes = 6,
                   .attached_small_pages_apart_bytes = 0};
    const auto least = [&](bool far, bool huge, bool crowded = false, bool apart = false) {
        return least_attached(plan, far, huge, crowded, apart, tuned);
    };
    CHECK(least(false, true) == 5 && least(false, false) == 6);
    CHECK(least(true, true) == kNeverBytes && least(true, false) == kNeverBytes);
    plan.exchanges = 1;
    CHECK(least(false, true) == 4 && least(false, false) == 6);
    CHECK(least(true, true) == kNeverBytes && least(true, false) == kNeverBytes);
    plan.exchanges = 0;
    CHECK(least(false, false, false, true) == 6);
    plan.one_way = 1;
    for (const bool huge : {false, true})
        CHECK(least(false, huge, false, true) == 3 && least(true, huge, false, true) == 9);
    CHECK(least(false, true, true, true) == 3 && least(false, false, true, true) == 6);
    tuned.attached_small_pages_apart_bytes = 8;
    CHECK(least(false, true, false, true) == 3 && least(false, false, false, true) == 8);
    CHECK(least(true, true, false, true) == 9 && least(true, false, false, true) == 9);
    CHECK(least(false, false, true, true) == 6 && least(false, false) == 6);
    CHECK(least(false, true) == 3 && least(false, false) == 6);
    CHECK(least(true, true) == 7 && least(true, false) == 7);
    CHECK(least(false, true, true) == 3 && least(true, true, true) == kNeverBytes);
}

TEST(attached_where_most_pages_are_huge) {
    CHECK(are_attached(0, 1) && are_attached(0, 2) && are_attached(1, 3) && are_attached(1, 4));
    CHECK(!are_attached(1, 1) && !are_attached(1, 2) && !are_attached(2, 3) && !are_attached(2, 4));
}

TEST(what_long_copies_prefetch) {
    PlanHeader plan = header(0);
    ConnectionRecord connection{};
    PlanView view{};
    view.header = &plan;
    view.connections = &connection;
    const Tunables tuned{.copy_ahead_bytes = 9};
    for (const Path path : {Path::kFifo, Path::kEager, Path::kZeroCopy})
        for (u32 bits = 0; bits < 32; ++bits) {
            const bool near = (bits & 1) != 0, apart = (bits & 2) != 0;
            plan.one_way = bits >> 2 & 1;
            connection.sends = bits >> 3 & 1;
            plan.connections = bits >> 4;
            const bool ahead = path == Path::kFifo && bits == 21;
            CHECK(copy_ahead_for(view, path, near, apart, tuned) == (ahead ? 9 : 0));
        }
    ResidencyProbe probe;
    CHECK(!probe.near());  // it has not looked
    probe.is_far = [](const char*, u64) { return true; };
    CHECK(probe.near());
    probe.far = true;
    CHECK(!probe.near());
}

}  // namespace
}  // namespace hocket::test
