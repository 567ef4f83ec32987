// How a call is cut and which path it takes: pure functions of the plan, the size, the tuned numbers and what all ranks
// have said. What all ranks know alike gives the same on all ranks.
//
// A call is eager if its messages are few: they travel with the call header, inline if they fit there. Otherwise they
// go through a fifo of slots for each connection, or, where all ranks can access each other's buffers, with zero
// copies. Which program a call runs, and which it offers for zero copies, hocket/tuning.py has decided before.
#pragma once

#include "core/interpreter.h"
#include "policy/tunables.h"
#include "protocol/header.h"

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

// How a plan runs on n elements a unit; `tile` 0: chosen from the size. It is eager only if that `may_be_eager`.
Shape settle(const PlanHeader& plan, u64 n, u32 type, u64 tile, bool may_be_eager, const Tunables& tuned);

// The best of a set of variants, a bit for each; kBuffered if it is empty.
constexpr Variant preferred(u32 variants) {
    for (const Variant variant : kZeroCopy)
        if (variants & u32(1) << variant) return variant;
    return kBuffered;
}

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

// The bytes that a call touches on all ranks (YHCCL, section 4: the working set), if each has the buffers that this one
// has.
u64 touched_bytes(const PlanView& plan, const Shape& shape, bool input, bool output);

// How many of `most` threads share the thread blocks of a call: one, unless its larger buffer has `team_bytes`.
u32 threads_for(const PlanHeader& plan, const Geometry& geometry, u32 most, u64 team_bytes);

// Whether results that may be are stored non-temporally: where a call touches more bytes than the caches hold, or where
// its buffers, of which the larger has `bytes`, are `far`, in no cache near, and that pays on this processor.
inline bool streams_for(const PlanView& plan, const Shape& shape, bool input, bool output, u64 cache_bytes, bool far,
                        u64 bytes, const Tunables& tuned) {
    if (shape.eager()) return false;
    return touched_bytes(plan, shape, input, output) > cache_bytes || (far && bytes >= tuned.far_past_bytes);
}

}  // namespace hocket
