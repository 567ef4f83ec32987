// What a rank does in a call until the others have entered it.
#pragma once

#include "device/clock.h"
#include "policy/residency.h"

namespace hocket {

// Once, it looks whether its buffers are in a cache, and asks for the first lines of its output, unless they are in
// none or others store to it; and for where its next message will lie, if the next call is like this one: whoever read
// the last one there has the lines. Again and again, it asks for the first lines of a short message that comes to it.
struct Meanwhile {
    const Tunables& tuned;
    ResidencyProbe probe{};
    bool offered = false;  // others may store to the output
    std::span<const char> next_message{};
    const char* comes = nullptr;
    const Clock* clock = nullptr;  // tells when it began to wait, where that counts
    u64 begun = 0;

    void entered() {
        if (clock != nullptr) begun = clock->ticks();
        probe.look(tuned);
        const std::span<const char> output = probe.output;
        const u64 wanted = offered || probe.far ? 0 : std::min<u64>(output.size(), tuned.waiting_prefetch_bytes);
        for (u64 at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(&output[at], 1);
        for (u64 at = 0; at < next_message.size(); at += kCacheLine) __builtin_prefetch(&next_message[at], 1);
    }

    void waits() const {
        if (comes == nullptr) return;
        __builtin_prefetch(comes);
        __builtin_prefetch(comes + kCacheLine);
    }
};

}  // namespace hocket
