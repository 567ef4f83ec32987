// The slots of a connection: a queue with one writer, one reader and two monotonic counters.
//
// `filled` is written by the sender only, `freed` by the receiver only, each on a line of its own. Both count messages
// since the communicator was made and are never reset: they may wrap. At the end of a call the two are equal, so that
// the next call may choose another number and size of slots: slot number `counter % slots` is the same on both ends.
// The number of slots is a power of two, so that messages just before and after a counter wraps lie in different slots.
//
// The hardware layer H supplies the four atomic operations:
//   H::publish_filled / H::observe_filled   the sender's bytes in the slot  ->  the receiver's reads of them
//   H::publish_freed  / H::observe_freed    the receiver's reads of a slot  ->  the sender's next writes into it
// Each publish releases and each observe acquires; they are also the store and the load of the handshake of going to
// sleep (see cpu/waiting.h), hence sequentially consistent on a CPU.
#pragma once

#include "plan.h"

namespace hocket {

constexpr u64 kLine = 128;  // two cache lines: neighbours are fetched in pairs

// The words two ranks share for one connection.
struct Counters {
    alignas(kLine) u64 filled;
    alignas(kLine) u64 freed;
};

// One rank's end of a connection during a call. Private to the thread that runs its thread block.
struct End {
    Counters* shared;
    char* slots;     // of the first slot
    u64 slot_bytes;
    u64 capacity;    // slots: a power of two
    u64 next;        // messages sent, or received, so far
    u64 seen;        // the other end's counter when last looked at
    u32 peer;

    // The two ends differ in which counter is theirs.
    void begin(bool sends) { next = seen = sends ? shared->filled : shared->freed; }

    // For a message that is there, or has its place, all through the call: in one round.
    static End open(char* message, bool sends, u32 peer) { return {nullptr, message, 0, 1, 0, sends ? 0u : 1u, peer}; }

    char* slot() const { return slots + (next & (capacity - 1)) * slot_bytes; }

    template <class H> bool can_send() {
        if (next - seen < capacity) return true;
        seen = H::observe_freed(&shared->freed);  // pairs with H::publish_freed in `received`
        return next - seen < capacity;
    }

    template <class H> bool can_receive() {
        if (next != seen) return true;
        seen = H::observe_filled(&shared->filled);  // pairs with H::publish_filled in `sent`
        return next != seen;
    }

    template <class H> void sent() { H::publish_filled(&shared->filled, ++next); }
    template <class H> void received() { H::publish_freed(&shared->freed, ++next); }
};

}  // namespace hocket
