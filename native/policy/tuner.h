// Which of two ways that a call can go is faster: found out by trying.
#pragma once

#include <algorithm>
#include <bit>

#include "core/plan.h"

namespace hocket {

// Takes the faster of two ways, and tries the other for a few calls now and then, ever more seldom while that changes
// nothing. A few (`run`), because a way leaves caches in another state: only calls that follow one another the same way
// show how fast it is. More, after many that went the other way, and, where a way may have to fill caches (`fills`),
// while they become faster: those that are nearly full take some twenty long calls. Fewer, where they take much longer
// than the other way ever did at its best. A call need not go the way that is asked for. Ranks that make the same calls
// and are told the same come to the same.
class Contest {
  public:
    explicit Contest(u32 run = 1, bool fills = false) : run_(run), patience_(fills ? kFruitless : 0), left_(run) {}

    // Whether the next call is to go the second way.
    bool second() const { return trying_ ? tried_ : favours_second(); }

    // Whether ranks look at their buffers in the next call, where that takes time.
    bool looks() const { return calls_ % kSeldom == 0; }

    // It was made.
    void next() {
        ++calls_;
        if (left_ > 0) --left_;
        if (left_ > 0 || (trying_ && fruitless_ < patience_)) return;
        const bool favourite = favours_second(),
                   begun = tried_ || ticks_[1] != kUnknown;  // the first way is tried first
        trying_ = !trying_ || !begun;
        if (!trying_) {
            pause_ = favourite != favoured_ ? kShortest : std::min(2 * pause_, kLongest);
            favoured_ = favourite;
        }
        tried_ = !favourite;
        left_ = trying_ ? std::max(run_, pause_ / kShare) : pause_;
        slower_ = fruitless_ = 0;
        least_ = kUnknown;
    }

    // What a call took that went one way. Remembers how fast it can be rather than how fast it is in the mean, as
    // whatever else the machine does only slows it; forgets that, slowly, where it is so no more.
    void took(bool second, u64 ticks) {
        if (trying_) {
            const u64 best = ticks_[!tried_];
            const bool faster = second == tried_ && ticks < least_ - least_ / kFaster;
            fruitless_ = faster ? 0 : fruitless_ + 1;
            slower_ = second == tried_ && ticks > best + best / 2 && !faster ? slower_ + 1 : 0;
            if (slower_ == kHopeless) left_ = 0;
            if (faster) least_ = ticks;
        }
        u64& known = ticks_[second];
        known = ticks < known ? ticks : known + (std::min(ticks, 2 * known) - known + kSlowly - 1) / kSlowly;
    }

  private:
    static constexpr u32 kShortest = 16, kLongest = 1024;
    static constexpr u32 kShare = 64;     // of many calls, one in so many is a trial
    static constexpr u32 kHopeless = 3;   // calls in succession that are much slower: no more are tried
    static constexpr u32 kFruitless = 3;  // calls in succession that are not faster than the least of the trial
    static constexpr u32 kFaster = 64;    // by such a part at least
    static constexpr u32 kSlowly = 64;    // of calls after a change of way, a few are slow too
    static constexpr u32 kSeldom = 8;     // of so many calls ranks look in one
    static constexpr u64 kUnknown = ~u64(0) / 2;

    bool favours_second() const { return ticks_[1] < ticks_[0]; }

    u64 ticks_[2] = {kUnknown, kUnknown}, least_ = kUnknown;  // of either way; of a trial
    u32 run_, patience_, left_, pause_ = kShortest / 2, slower_ = 0, fruitless_ = 0, calls_ = 0;
    bool trying_ = true, tried_ = false, favoured_ = false;
};

// Those of one schedule: by the size of a unit, and by whether buffers are in no cache, as when it was looked last. The
// longer calls are, the fewer it takes until caches are in the state that a way leaves them in.
class Contests {
  public:
    Contests() {
        for (const bool far : {false, true})
            for (int bits = 0; bits < 64; ++bits)
                of_[far][bits] = Contest(bits < kLong ? 2 * (kLong - bits) : 2, !far && bits < kHuge);
    }

    // Whether ranks look, in the next call, at whether their buffers are in a cache. Long calls do not notice.
    bool looks(u64 unit) { return std::bit_width(unit) >= kLong || next(unit).looks(); }

    Contest& next(u64 unit) { return of_[far_[std::bit_width(unit)]][std::bit_width(unit)]; }
    bool far(u64 unit) const { return far_[std::bit_width(unit)]; }
    void took(u64 unit, bool far, bool second, u64 ticks) {
        far_[std::bit_width(unit)] = far;
        next(unit).took(second, ticks);
    }

  private:
    static constexpr int kLong = 21;  // bits of a length that is long: 1 MB and more
    static constexpr int kHuge = 27;  // and of one that is in no cache, wherever its ends are: 64 MB and more

    Contest of_[2][64];
    bool far_[64] = {};
};

}  // namespace hocket
