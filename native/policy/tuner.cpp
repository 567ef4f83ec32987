#include "policy/tuner.h"

namespace hocket {

Tuner::Advice TunedCalls::advise(u64 schedule, u64 unit) {
    begun_ = control_.clock().ticks();
    return tuner_->advise(schedule, unit);
}

bool TunedCalls::agreed(u64 schedule, u64 unit, bool timed) {
    if (latest_.pending) learn();
    bool any = false;
    for (u32 r = 0; r < control_.size(); ++r) any = any || control_.said(r).buffers.tuned;
    if (any) tuner_->entered(schedule, unit);
    if (timed) agreed_ = control_.clock().ticks();
    return any;
}

// The slowest to enter, which is when all that is eager is sent, and the slowest after. All ranks come to the same.
void TunedCalls::learn() {
    u32 before = 0, after = 0;
    bool far = true;
    for (u32 r = 0; r < control_.size(); ++r) {
        const CallTiming timing = control_.said(r).buffers.timing;
        if (timing.after == 0) continue;
        before = std::max(before, timing.before);
        after = std::max(after, u32(timing.after));
        far = far && timing.far;
    }
    tuner_->took(latest_.schedule, latest_.unit, far, latest_.zero_copy, u64(before) + after);
    latest_ = {};
}

void TunedCalls::ended(u64 schedule, u64 unit, bool zero_copy, u64 said, bool probed, bool far) {
    latest_ = {schedule, unit, true, zero_copy, {}};
    if (said == 0) return;
    static constexpr u64 kMost = (u64(1) << 31) - 1;
    const auto ticks = [](u64 from, u64 to) { return u32(std::clamp<u64>((to - from) / 16, 1, kMost)); };
    latest_.timing.before = ticks(begun_, said);
    latest_.timing.after = ticks(agreed_, control_.clock().ticks());
    latest_.timing.far = probed ? far : tuner_->far(schedule, unit);
}

}  // namespace hocket
