// The residency probe: whether the buffers of a call are in a cache near this core, to go by how long it takes to load
// a byte of them. Where all are in none, results soon would be too: they are better stored non-temporally. And others
// seldom gain by attaching to them (select.h: least_attached), nor by another loop than memcpy's (copy_ahead_for).
#pragma once

#include <algorithm>
#include <span>

#include "policy/tunables.h"

namespace hocket {

// Whether a byte is in no cache near this core, to go by whether it takes more than `near` ticks to load it. Never,
// where no clock is as fine. Another rank may be storing there: the value is not used.
inline bool is_far([[maybe_unused]] const char* at, [[maybe_unused]] u64 near) {
#if defined(__SSE2__)
    __builtin_ia32_lfence();
    const u64 begin = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    (void)*static_cast<const volatile char*>(at);
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc() - begin > near;
#else
    return false;
#endif
}

constexpr u64 kCallsBetweenProbes = 5;  // about so many

// Whether a rank looks again, in that call, at buffers that have been in no cache. Spread by the golden ratio, so that
// calls that come in every so many have their turn, too.
inline bool looks_again(u64 call) { return u32(call * 0x9e3779b9) < ~u32(0) / kCallsBetweenProbes; }

// A number that depends on an address. A rank that looked at equal distances in buffers one after another, all in no
// cache, found one near on a Zen 5, as if a prefetcher had learned where it looks (benchmarks/results/processors.md).
constexpr u64 scattered(u64 address) {
    constexpr u64 odd = 0x9e3779b97f4a7c15;
    const u64 product = address * odd;
    return (product ^ product >> 32) * odd >> 32;
}

struct ResidencyProbe {
    std::span<const char> input, output;
    bool (*is_far)(const char*, u64) = nullptr;  // as above; null: the probe does nothing
    bool far = false;                            // what it found, or is taken for granted: all buffers are

    bool near() const { return is_far != nullptr && !far; }  // it looked, and they are not
    u64 larger() const { return std::max(input.size(), output.size()); }

    void take_for_far() {
        is_far = nullptr;
        far = true;
    }
    void look(u32 rank, u32 ranks, const Tunables& tuned) {
        if (is_far != nullptr) far = all_far(input, rank, ranks, tuned) && all_far(output, rank, ranks, tuned);
    }

  private:
    // Two places where a call ends that had the same buffers: the end of this rank's share, as others work on the rest
    // of a shared array, and of the buffer, or its middle. Not so near to an end that another buffer begins there, nor
    // to where this call begins; but where a prefetcher does not expect it. Apart, so that short calls stay small.
    [[gnu::noinline]] bool all_far(std::span<const char> buffer, u32 rank, u32 ranks, const Tunables& tuned) const {
        const u64 margin = tuned.probe_margin_bytes, whole = buffer.size();
        if (whole < 2 * margin) return true;
        const u64 own = whole / ranks * (rank + 1);
        const auto is_far_before = [&](u64 end) {
            const char* const last = &buffer[std::max(end, 2 * margin) - margin];
            return is_far(last - scattered(reinterpret_cast<u64>(last)) % margin, tuned.near_ticks);
        };
        return is_far_before(own) && is_far_before(rank + 1 < ranks ? whole : whole / 2);
    }
};

}  // namespace hocket
