// The tuned numbers: one table (policy/tunables.def), from which follow their defaults, their listing and what may be
// said of them in HOCKET_TUNABLES (hocket/tunables.py, which has those of Python).
#pragma once

#include <map>
#include <span>
#include <string>

#include "core/plan.h"

namespace hocket {

// What a number counts, and the least and the most that it may be.
struct Unit {
    const char* name;
    u64 least, most;
};
constexpr u64 kNeverBytes = u64(1) << 40;  // no buffer has as many
constexpr Unit kBytes{"bytes", 0, kNeverBytes}, kSomeBytes{"bytes", 1, kNeverBytes};
constexpr Unit kSlotCount{"slots", 1, 1 << 10}, kCalls{"calls", 1, 1 << 20};
constexpr u64 kNeverTicks = u64(1) << 40;
constexpr Unit kVisits{"visits", 2, 1 << 30}, kTicks{"ticks", 1, kNeverTicks};
constexpr Unit kCount{"", 0, 1 << 10}, kNanoseconds{"nanoseconds", 0, u64(1) << 40};

// Who must have the same value: all ranks of a communicator, or nobody; one that is fixed is part of the code, and the
// same on all ranks too.
enum class Scope { kCommon, kLocal, kFixed };

// A default, where it differs by the processor that it is for. Those that are not Intel's are taken to be like Zen;
// `zen5` counts from that generation on.
struct Default {
    u64 zen, intel, zen5;
    explicit constexpr Default(u64 every) : Default(every, every) {}
    constexpr Default(u64 zen, u64 intel) : Default(zen, intel, zen) {}
    constexpr Default(u64 zen, u64 intel, u64 zen5) : zen(zen), intel(intel), zen5(zen5) {}
};

// Those that can be set, here with Zen's defaults: `tunables_with` has this processor's. Whoever uses one reads its
// member.
struct Tunables {
#define HOCKET_TUNABLE(name, unit, scope, value, source, reason) u64 name = (value).zen;
#define HOCKET_FIXED(name, unit, value, source, reason)
#include "policy/tunables.def"
};

// A row of the table. `value`: the default on this processor. `field`: null for one that is fixed.
struct Tunable {
    const char* name;
    const Unit* unit;
    Scope scope;
    u64 value;
    u64 Tunables::* field;
    const char* source;
    const char* reason;
};
std::span<const Tunable> tunables();

// The defaults on this processor, but for what is given by name. Throws std::invalid_argument for a name that cannot be
// set, and for a value that its unit does not allow.
Tunables tunables_with(const std::map<std::string, u64>& given);

}  // namespace hocket
