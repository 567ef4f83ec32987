#include "policy/tunables.h"

#include <stdexcept>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/interpreter.h"
#include "device/kernels.h"
#include "policy/distance.h"
#include "policy/residency.h"
#include "policy/select.h"
#include "protocol/waiting.h"
#include "transport/arena.h"
#include "transport/cma.h"

namespace hocket {

static u64 Default::* this_processor() {
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) return &Default::intel;
    u32 about = 0, unused = 0;
    __get_cpuid(1, &about, &unused, &unused, &unused);
    const u32 family = (about >> 8 & 0xf) + (about >> 20 & 0xff);
    if (__builtin_cpu_is("amd") && family >= 0x1a) return &Default::zen5;
#endif
    return &Default::zen;
}

std::span<const Tunable> tunables() {
    static const auto mine = this_processor();
#define HOCKET_TUNABLE(name, unit, scope, value, source, reason) \
    {#name, &unit, Scope::scope, (value).*mine, &Tunables::name, source, reason},
#define HOCKET_FIXED(name, unit, value, source, reason) {#name, &unit, Scope::kFixed, value, nullptr, source, reason},
    static const Tunable rows[] = {
#include "policy/tunables.def"
    };
    return rows;
}

Tunables tunables_with(const std::map<std::string, u64>& given) {
    Tunables found;
    u64 known = 0;
    for (const Tunable& row : tunables()) {
        if (row.field == nullptr) continue;
        const auto set = given.find(row.name);
        known += set != given.end();
        const u64 value = set != given.end() ? set->second : row.value;
        if (value < row.unit->least || value > row.unit->most)
            throw std::invalid_argument(std::string(row.name) + " is out of range");
        found.*row.field = value;
    }
    if (known != given.size()) throw std::invalid_argument("there is no such tunable");
    return found;
}

}  // namespace hocket
