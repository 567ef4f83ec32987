// Which of several arms a call takes: ways to make it, of which a tuner learns which is fastest (hocket/tuner).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "protocol/header.h"

namespace hocket {

constexpr u32 kArms = 16;

// What calls took by one arm: of log2 of their ticks.
struct Timings {
    u64 count = 0;
    double sum = 0, squares = 0;
};

// The arms of the calls of one key. All ranks have the same table and number calls alike, so each call takes the same
// arm on all of them, without a word. What is timed is a rank's own.
class KeyArms {
  public:
    // Of 2^16 windows, which are of 2^shift calls of the communicator, `until[a]` take arm a or one before it, the rest
    // the incumbent, dealt evenly. In a window the arm stays: an arm leaves caches in another state. Throws
    // std::invalid_argument.
    void set(u64 salt, u32 shift, u32 incumbent, const std::vector<u32>& until) {
        const u32 explored = until.empty() ? 0 : until.back();
        const bool good = incumbent < kArms && shift < 64 && until.size() <= kArms && explored <= kWindows;
        if (!good || !std::ranges::is_sorted(until)) throw std::invalid_argument("a table of arms");
        salt_ = mix(salt);
        shift_ = shift;
        if (incumbent != incumbent_) {
            known_ = apart_ = 0;
            time_all();
        }
        incumbent_ = incumbent;
        explored_ = explored;
        for (u64 a = 0; a < kArms; ++a) until_[a] = a < until.size() ? until[a] : explored_;
    }

    // That of the call of this number.
    u32 arm(u64 number) const {
        if (explored_ == 0) return incumbent_;
        const u32 drawn = u32((salt_ + (number >> shift_) * kGolden) % kWindows);
        if (drawn >= explored_) return incumbent_;
        return u32(std::ranges::upper_bound(until_, drawn) - until_.begin());
    }

    // Whether the next call, by this arm, is to be timed: not the first of a window, and not each by the incumbent,
    // unless what is usual of it is to be found anew.
    bool is_timed(u32 arm) const {
        return arm == latest_ && (arm != incumbent_ || calls_ % kUntimed == 0 || calls_ < timed_until_);
    }
    // A call by this arm is made.
    void enter(u32 arm) {
        ++calls_;
        latest_ = arm;
    }
    void took(u32 arm, u64 ticks) {
        const double bits = std::log2(double(ticks));
        Timings& timings = timings_[arm];
        ++timings.count;
        timings.sum += bits;
        timings.squares += bits * bits;
        if (arm != incumbent_) return;
        if (known_ >= kKnown) {
            const int apart = int(bits > usual_ + kApart) - int(bits < usual_ - kApart);
            const int back = int(apart_ < 0) - int(apart_ > 0);
            apart_ = std::clamp(apart_ + (apart != 0 ? apart : back), -kSure - 1, kSure + 1);
        }
        known_ = std::min(known_ + 1, kRemembered);
        usual_ += (bits - usual_) / known_;
    }

    // Whether the latest calls by the incumbent took longer than is usual, or less, by a factor of 2^kApart.
    bool differs() const { return std::abs(apart_) >= kSure; }
    // All ranks know that calls of some key differ, perhaps of this one, and merge now and 64 calls later. What is
    // usual is found anew, if they are of this one.
    void told() {
        if (differs()) known_ = apart_ = 0;
        time_all();
    }

    // What was noted since this was called last.
    struct Noted {
        u64 calls;
        std::array<Timings, kArms> timings;
    };
    Noted take() {
        const Noted found{calls_ - taken_, timings_};
        taken_ = calls_;
        timings_ = {};
        return found;
    }

  private:
    static constexpr u32 kWindows = 1 << 16;
    static constexpr u64 kGolden = 40503;  // kWindows by the golden ratio: multiples fall evenly (Knuth, 6.4)
    static constexpr u64 kUntimed = 8;     // the four looks at the clock take a short call some per cent
    static constexpr u64 kAllTimed = 64;  // calls of a key: until the merge after an alarm (LEAST_BETWEEN in online.py)
    // Chosen. A call is apart by a factor of 1.4; a look finds a change where kSure more of the latest are apart one
    // way than not, so hiccups bring few merges. What is usual is a mean of the 16 to 64 calls that were timed last.
    static constexpr double kApart = 0.5;
    static constexpr int kSure = 3, kKnown = 16, kRemembered = 64;

    void time_all() { timed_until_ = calls_ + kAllTimed; }

    u64 salt_ = 0;
    u32 shift_ = 0, incumbent_ = 0, explored_ = 0, latest_ = kArms;
    std::array<u32, kArms> until_{};
    u64 calls_ = 0, taken_ = 0, timed_until_ = 0;
    std::array<Timings, kArms> timings_{};
    double usual_ = 0;  // what the incumbent's calls take, a running mean of log2 of their ticks
    int known_ = 0;     // how many it is of, up to kRemembered; from kKnown on calls are compared with it
    int apart_ = 0;     // calls that took longer lately, less those that took less: a saturating counter
};

}  // namespace hocket
