#include "device/clock.h"

#include <fstream>
#include <string>

namespace hocket {

Clock::Clock() : counts_(trusted()) { made_ = now(); }

bool Clock::trusted() {
    std::string source;
    std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
    return source == "tsc";
}

Clock::Pair Clock::now() const {
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

}  // namespace hocket
