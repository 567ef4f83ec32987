// The online choice: whether a call on private arrays goes through buffers or, by cross-memory attach, with zero
// copies.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "policy/tunables.h"
#include "protocol/control_plane.h"

namespace hocket {

// Takes the faster of two ways, and tries the other for two calls now and then, ever more seldom while that changes
// nothing. Two, because a way leaves caches in another state. More, after many that went the other way, and, where a
// way may have to fill caches (`fills`), while they become faster. Fewer, where they take much longer than the other
// way ever did at its best. A call need not go the way that is asked for. Ranks that make the same calls and are told
// the same come to the same.
class OnlineTrial {
  public:
    explicit OnlineTrial(bool fills = false, const Tunables& tuned = kDefaults)
        : tuned_(&tuned),
          patience_(fills ? u32(tuned.choice_fruitless) : 0),
          pause_(u32(tuned.choice_least_pause) / 2) {}

    // Whether the next call is to go the second way.
    bool second() const { return trying_ ? tried_ : favours_second(); }

    // It was made.
    void next() {
        if (left_ > 0) --left_;
        if (left_ > 0 || (trying_ && fruitless_ < patience_)) return;
        const bool favourite = favours_second(),
                   begun = tried_ || ticks_[1] != kUnknown;  // the first way is tried first
        trying_ = !trying_ || !begun;
        if (!trying_) {
            pause_ = u32(favourite != favoured_ ? tuned_->choice_least_pause
                                                : std::min<u64>(2 * pause_, tuned_->choice_most_pause));
            favoured_ = favourite;
        }
        tried_ = !favourite;
        left_ = trying_ ? std::max(kRun, pause_ / u32(tuned_->choice_trial_part)) : pause_;
        slower_ = fruitless_ = 0;
        least_ = kUnknown;
    }

    // What a call took that went one way. Remembers how fast it can be rather than how fast it is in the mean, as
    // whatever else the machine does only slows it; forgets that, slowly, where it is so no more.
    void took(bool second, u64 ticks) {
        if (trying_) {
            const u64 best = ticks_[!tried_];
            const bool faster = second == tried_ && ticks < least_ - least_ / tuned_->choice_faster_part;
            fruitless_ = faster ? 0 : fruitless_ + 1;
            slower_ = second == tried_ && ticks > best + best / 2 && !faster ? slower_ + 1 : 0;
            if (slower_ == tuned_->choice_hopeless) left_ = 0;
            if (faster) least_ = ticks;
        }
        u64& known = ticks_[second];
        const u64 part = tuned_->choice_forgets_part;
        known = ticks < known ? ticks : known + (std::min(ticks, 2 * known) - known + part - 1) / part;
    }

  private:
    static constexpr Tunables kDefaults{};
    static constexpr u64 kUnknown = ~u64(0) / 2;
    static constexpr u32 kRun = 2;  // calls of a trial

    bool favours_second() const { return ticks_[1] < ticks_[0]; }

    const Tunables* tuned_;
    u64 ticks_[2] = {kUnknown, kUnknown}, least_ = kUnknown;  // of either way; of a trial
    u32 patience_, left_ = kRun, pause_, slower_ = 0, fruitless_ = 0;
    bool trying_ = true, tried_ = false, favoured_ = false;
};

// Those of one schedule: by the size of a unit, and by whether buffers are in no cache, as when it was looked last.
class OnlineTrials {
  public:
    explicit OnlineTrials(const Tunables& tuned) {
        const int huge = int(std::bit_width(tuned.choice_huge_bytes));
        for (const bool far : {false, true})
            for (int bits = 0; bits < 64; ++bits) of_[far][bits] = OnlineTrial(!far && bits < huge, tuned);
    }

    OnlineTrial& next(u64 unit) { return of_[far_[std::bit_width(unit)]][std::bit_width(unit)]; }
    bool far(u64 unit) const { return far_[std::bit_width(unit)]; }
    void took(u64 unit, bool far, bool second, u64 ticks) {
        far_[std::bit_width(unit)] = far;
        next(unit).took(second, ticks);
    }

  private:
    OnlineTrial of_[2][64];
    bool far_[64] = {};
};

// `timed`: whoever chose wants to know what the call took.
struct Advice {
    bool zero_copy, timed;
};

// The faster way for calls of a schedule, by its digest, on units of so many bytes. Told the same, it says the same on
// all ranks.
class OnlineChoice {
  public:
    explicit OnlineChoice(const Tunables& tuned) : tuned_(tuned) {}

    Advice advise(u64 schedule, u64 unit) { return {of(schedule).next(unit).second(), true}; }
    // All ranks have entered such a call, which is timed.
    void entered(u64 schedule, u64 unit) { of(schedule).next(unit).next(); }
    // What it took, and whether all buffers were in no cache near.
    void took(u64 schedule, u64 unit, bool far, bool zero_copy, u64 ticks) {
        of(schedule).took(unit, far, zero_copy, ticks);
    }
    // Whether they were when it was told last.
    bool far(u64 schedule, u64 unit) { return of(schedule).far(unit); }

  private:
    OnlineTrials& of(u64 schedule) {
        if (latest_ == nullptr || latest_->first != schedule) latest_ = &*trials_.try_emplace(schedule, tuned_).first;
        return latest_->second;
    }

    const Tunables& tuned_;
    std::map<u64, OnlineTrials> trials_;
    std::pair<const u64, OnlineTrials>* latest_ = nullptr;
};

// What a timed call took its slowest rank: each says, with the header of a later call, what it took itself. In each
// call the methods are called in this order.
class TimedCalls {
  public:
    // `chooses`: whether what is faster is found out by trying; else all calls that can go with zero copies do.
    TimedCalls(bool chooses, const Tunables& tuned, const ControlPlane& control) : control_(control) {
        if (chooses) choice_.emplace(tuned);
    }

    // For a call that this rank can make with zero copies by cross-memory attach.
    Advice advise(u64 schedule, u64 unit) {
        begun_ = control_.clock().ticks();
        return choice_ ? choice_->advise(schedule, unit) : Advice{true, false};
    }
    // What this rank tells the others.
    CallTiming timing() const { return latest_.timing; }
    // All ranks have entered the call, which is timed on this one or not. Whether it is on some rank.
    bool agreed(u64 schedule, u64 unit, bool timed) {
        if (latest_.pending) learn();
        bool any = false;
        for (u32 r = 0; r < control_.size(); ++r) any = any || control_.said(r).buffers.chooses;
        if (any && choice_) choice_->entered(schedule, unit);
        if (timed) agreed_ = control_.clock().ticks();
        return any;
    }
    // A call that is timed on some rank has ended. `said`: when this one had said that it enters, 0 if it is not timed
    // here; `probed`: whether it looked at its buffers, and found them `far`.
    void ended(u64 schedule, u64 unit, bool zero_copy, u64 said, bool probed, bool far) {
        latest_ = {schedule, unit, true, zero_copy, {}};
        if (said == 0) return;
        static constexpr u64 kMost = (u64(1) << 31) - 1;
        const auto ticks = [](u64 from, u64 to) { return u32(std::clamp<u64>((to - from) / 16, 1, kMost)); };
        latest_.timing.before = ticks(begun_, said);
        latest_.timing.after = ticks(agreed_, control_.clock().ticks());
        latest_.timing.far = probed ? far : choice_ && choice_->far(schedule, unit);
    }

  private:
    // The slowest to enter, which is when all that is eager is sent, and the slowest after. All ranks come to the same.
    void learn() {
        u32 before = 0, after = 0;
        bool far = true;
        for (u32 r = 0; r < control_.size(); ++r) {
            const CallTiming timing = control_.said(r).buffers.timing;
            if (timing.after == 0) continue;
            before = std::max(before, timing.before);
            after = std::max(after, u32(timing.after));
            far = far && timing.far;
        }
        if (choice_) choice_->took(latest_.schedule, latest_.unit, far, latest_.zero_copy, u64(before) + after);
        latest_ = {};
    }

    // The latest timed call, until all have said how long it took.
    struct Latest {
        u64 schedule, unit;
        bool pending, zero_copy;
        CallTiming timing;
    };

    std::optional<OnlineChoice> choice_;
    const ControlPlane& control_;
    Latest latest_{};
    u64 begun_ = 0, agreed_ = 0;
};

}  // namespace hocket
