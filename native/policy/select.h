// How a call is cut and which path it takes: pure functions of the plan, the size, the tuned numbers and what all ranks
// have said. What all ranks know alike gives the same on all ranks.
//
// A call is eager if its messages are few: they travel with the call header, inline if they fit there. Otherwise they
// go through a fifo of slots for each connection, or, where all ranks can access each other's buffers, with zero
// copies. Which program a call runs, and which it offers for zero copies, hocket/tuning.py has decided before.
#pragma once

#include <algorithm>
#include <bit>

#include "core/interpreter.h"
#include "device/kernels.h"
#include "policy/tunables.h"
#include "protocol/header.h"
#include "transport/memory.h"

namespace hocket {

enum class Path : u32 { kInlineEager, kEager, kFifo, kZeroCopy };

// How a plan runs on units of one length. `slots` of a connection.
struct Shape {
    Geometry geometry;
    u64 slots;
    Rounds rounds;

    bool eager() const { return rounds == Rounds::kOne; }
    // Its messages may be where a header would say what else a call can run.
    bool tiny() const { return eager() && geometry.unit <= kInlined; }
};

// The most bytes of a slot. The same on all ranks, as the tile follows from it.
inline u64 most_of_slot(const PlanHeader& plan, u64 slots, const Tunables& tuned) {
    if (plan.widest == 0) return tuned.lent_tile_bytes;
    const u64 share = tuned.rank_slots_bytes * plan.widest / (plan.fan * slots);
    return std::min(tuned.slot_bytes, std::max(share, tuned.least_slot_bytes));
}

// How a plan runs on n elements a unit; `tile` 0: chosen from the size. `most_eager`: as in header.h. In one round a
// chunk is one tile.
inline Shape settle(const PlanHeader& plan, u64 n, u32 type, u64 tile, u64 most_eager, const Tunables& tuned) {
    const u64 widest = std::max(plan.widest, 1u), item = type_bytes(type);
    Shape found{uncut(n, item, plan.chunks), std::bit_ceil(std::max<u64>(plan.slots, tuned.slots)), Rounds::kOne};
    auto& [geometry, slots, rounds] = found;
    const u64 room = std::bit_floor((kWindowStride - kPage) / (slots * widest));  // of a window, for one tile
    if (tile > room) tile = std::max(room, kAlign);
    const bool whole = tile == 0 || geometry.tile <= tile;
    if (plan.eager != 0 && whole && plan.eager * geometry.tile <= most_eager) return found;
    rounds = plan.two_rounds != 0 ? Rounds::kTwo : Rounds::kMany;
    geometry = cut(n, item, plan.chunks, widest, most_of_slot(plan, slots, tuned), tile, plan.work, plan.depth);
    const u64 slot = widest * geometry.tile;
    const u64 most = std::min(tuned.rotated_bytes / (plan.fan * geometry.tile), (kWindowStride - kPage) / slot);
    if (slot >= tuned.rotated_slot_bytes) slots = std::max(slots, std::bit_floor(most));
    return found;
}

// How many tiles of a direct chunk go in one message. Both ends find the same.
inline u64 tiles_a_message(const ConnectionRecord& connection, const Geometry& geometry, const Tunables& tuned) {
    return connection.storage == kBatched ? std::max<u64>(tuned.lent_tile_bytes / geometry.tile, 1) : 1;
}

// The best of a set of variants, a bit for each; kBuffered if it is empty.
constexpr Variant preferred(u32 variants) {
    for (const Variant variant : kZeroCopy)
        if (variants & u32(1) << variant) return variant;
    return kBuffered;
}

// Whether private buffers are attached to that all ranks offer, though those of `small` ranks lie in small pages.
constexpr bool are_attached(u32 small, u32 ranks) { return 2 * small < ranks; }

// The path that a call takes whose buffered plan runs in such a shape, and the variant of its plan. `all`: the variants
// that all ranks offer; `any`: those that some do. Who offers any has sent nothing eagerly.
struct Selection {
    Path path;
    Variant variant;
};
inline Selection select(const PlanHeader& plan, const Shape& shape, u32 all, u32 any) {
    const Variant variant = preferred(all);
    if (variant != kBuffered) return {Path::kZeroCopy, variant};
    if (!shape.eager() || any != 0) return {Path::kFifo, kBuffered};
    const bool is_inline = plan.eager == 1 && shape.geometry.unit <= kInlined;
    return {is_inline ? Path::kInlineEager : Path::kEager, kBuffered};
}

constexpr u64 kCallsBetweenScans = 64;  // with one buffer, after which a rank asks again whether it has huge pages

// The fewest bytes of a rank's larger buffer with which private ones are for others to access, by cross-memory attach.
// `far`: they were in no cache near; `huge`: those that others access lie in huge pages; `crowded`: ranks share cores;
// `apart`: some have cores that share no cache.
inline u64 least_attached(const PlanHeader& plan, bool far, bool huge, bool crowded, bool apart,
                          const Tunables& tuned) {
    if (far && (plan.one_way == 0 || crowded)) return kNeverBytes;
    const u64 least = far && apart          ? tuned.attached_far_apart_bytes
                      : far                 ? tuned.attached_far_bytes
                      : plan.one_way != 0   ? tuned.attached_one_way_bytes
                      : plan.exchanges != 0 ? tuned.attached_exchange_bytes
                                            : tuned.attached_bytes;
    const bool own_caches = apart && plan.one_way != 0 && !crowded;
    const u64 small = own_caches ? tuned.attached_small_pages_apart_bytes : tuned.attached_small_pages_bytes;
    return huge ? least : std::max(least, small);
}

// The bytes that a call touches on all ranks (YHCCL, section 4: the working set), if each has the buffers that this one
// has.
inline u64 touched_bytes(const PlanView& plan, const Shape& shape, bool input, bool output) {
    const PlanHeader& h = *plan.header;
    const Geometry& geometry = shape.geometry;
    u64 chunks = 0;
    for (u32 c = 0; c < h.connections; ++c)
        if (plan.connections[c].storage == kSlots) chunks += plan.connections[c].width;
    const u64 blocks = (input ? h.input_blocks : 0) + (output ? h.output_blocks : 0);
    const u64 own = blocks * geometry.unit + h.scratch * geometry.chunk;
    return h.ranks * (own + shape.slots * chunks * geometry.tile / 2);  // a connection has two ends
}

// How many of `most` threads share the thread blocks of a call: one, unless its larger buffer has `team_bytes`.
inline u32 threads_for(const PlanHeader& plan, const Geometry& geometry, u32 most, u64 team_bytes) {
    const u64 larger = std::max(plan.input_blocks, plan.output_blocks) * geometry.unit;
    return larger < team_bytes ? 1 : std::max(1u, std::min(most, plan.blocks));
}

// Whether results that may be are stored non-temporally: where a call touches more bytes than the caches hold, or where
// its buffers, of which the larger has `bytes`, are `far`, in no cache near, and that pays on this processor.
inline bool streams_for(const PlanView& plan, const Shape& shape, bool input, bool output, u64 cache_bytes, bool far,
                        u64 bytes, const Tunables& tuned) {
    if (shape.eager()) return false;
    return touched_bytes(plan, shape, input, output) > cache_bytes || (far && bytes >= tuned.far_past_bytes);
}

// By how many bytes long copies prefetch what they store to; 0: memcpy copies. That is faster but for a rank that only
// receives, in a call where none does both, through slots, where buffers are `near`, in a cache, and cores not `apart`.
inline u64 copy_ahead_for(const PlanView& plan, Path path, bool near, bool apart, const Tunables& tuned) {
    const PlanHeader& h = *plan.header;
    const bool only_receives = h.one_way != 0 && h.connections != 0 && plan.connections[0].sends == 0;
    return near && !apart && path == Path::kFifo && only_receives ? tuned.copy_ahead_bytes : 0;
}

}  // namespace hocket
