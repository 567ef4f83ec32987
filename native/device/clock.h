// The clock that calls are timed with.
#pragma once

#include <ctime>
#include <fstream>
#include <string>

#include "core/plan.h"

namespace hocket {

// Tells time for half of what the kernel takes: by the counter of the processor, where the kernel itself trusts that to
// run evenly on all cores. Its ticks become nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share,
// along the line through what both said when the clock was made and say now.
class Clock {
  public:
    Clock() : counts_(trusted()) { made_ = now(); }
    // Whether the kernel tells time by the counter of the processor.
    static bool trusted() {
        std::string source;
        std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
        return source == "tsc";
    }
    u64 ticks() const {
#if defined(__x86_64__)
        if (counts_) return __builtin_ia32_rdtsc();
#endif
        return monotonic();
    }

    struct Pair {
        u64 ticks, nanoseconds;
    };
    // Both at one time.
    Pair now() const {
        Pair best{};
        u64 shortest = ~u64(0);
        for (int attempt = 0; attempt < 8; ++attempt) {  // one of them is not interrupted
            const u64 before = ticks(), nanoseconds = monotonic(), after = ticks();
            if (after - before >= shortest) continue;
            shortest = after - before;
            best = {before + shortest / 2, nanoseconds};
        }
        return best;
    }
    // Nanoseconds of a tick.
    double rate(const Pair& now) const {
        return double(now.nanoseconds - made_.nanoseconds) / double(now.ticks - made_.ticks);
    }
    u64 nanoseconds(u64 ticks, const Pair& now) const {
        return made_.nanoseconds + u64(double(ticks - made_.ticks) * rate(now));
    }

    static u64 monotonic() {
        timespec now;
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        return u64(now.tv_sec) * 1'000'000'000 + u64(now.tv_nsec);
    }

  private:
    bool counts_;
    Pair made_;
};

}  // namespace hocket
