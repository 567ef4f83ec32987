#include "policy/select.h"

#include <algorithm>
#include <bit>

#include "device/kernels.h"
#include "transport/memory.h"

namespace hocket {
namespace {

// The same on all ranks, as the tile follows from it.
u64 most_of_slot(const PlanHeader& plan, u64 slots, const Tunables& tuned) {
    if (plan.widest == 0) return tuned.lent_tile_bytes;
    const u64 share = tuned.rank_slots_bytes * plan.widest / (plan.fan * slots);
    return std::min(tuned.slot_bytes, std::max(share, tuned.least_slot_bytes));
}

}  // namespace

Shape settle(const PlanHeader& plan, u64 n, u32 type, u64 tile, bool may_be_eager, const Tunables& tuned) {
    Shape found{};
    const u64 widest = std::max(plan.widest, 1u), item = type_bytes(type);
    u64& slots = found.slots;
    slots = std::bit_ceil(std::max<u64>(plan.slots, tuned.slots));
    const u64 room = std::bit_floor((kWindowStride - kPage) / (slots * widest));  // of a window, for one tile
    if (plan.widest != 0 && tile > room) tile = std::max(room, kAlign);
    Geometry& geometry = found.geometry;
    geometry = cut(n, item, plan.chunks, widest, kEager, tile);
    const bool one = plan.eager != 0 && geometry.tiles == 1 && plan.eager * geometry.tile <= kEager && may_be_eager;
    found.rounds = one ? Rounds::kOne : plan.two_rounds != 0 ? Rounds::kTwo : Rounds::kMany;
    if (one) return found;
    geometry = cut(n, item, plan.chunks, widest, most_of_slot(plan, slots, tuned), tile, plan.work, plan.depth);
    return found;
}

u64 touched_bytes(const PlanView& plan, const Shape& shape, bool input, bool output) {
    const PlanHeader& h = *plan.header;
    const Geometry& geometry = shape.geometry;
    u64 chunks = 0;
    for (u32 c = 0; c < h.connections; ++c) chunks += plan.connections[c].width;
    const u64 blocks = (input ? h.input_blocks : 0) + (output ? h.output_blocks : 0);
    const u64 own = blocks * geometry.unit + h.scratch * geometry.chunk;
    return h.ranks * (own + shape.slots * chunks * geometry.tile / 2);  // a connection has two ends
}

u32 threads_for(const PlanHeader& plan, const Geometry& geometry, u32 most, u64 team_bytes) {
    const u64 larger = std::max(plan.input_blocks, plan.output_blocks) * geometry.unit;
    return larger < team_bytes ? 1 : std::max(1u, std::min(most, plan.blocks));
}

}  // namespace hocket
