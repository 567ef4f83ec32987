// The port of ranks that share memory: a queue of slots for each connection, with one writer and, but for multicast,
// one reader, and monotonic counters.
//
// `filled` is written by the sender only, each `freed` by one receiver only, each on a line of its own. They count
// messages since the communicator was made and are never reset: they may wrap. The readers of a multicast are others
// from call to call; so a reader that was none for a while knows from the schedules how many messages it has missed,
// and the first reader of a line goes on from where the last one left it. At the end of a call the two are equal, so
// that the next call may choose another number and size of slots: slot number `counter % slots` is the same on both
// ends. The number of slots is a power of two, so that messages just before and after a counter wraps lie in different
// slots.
//
// A FifoDevice supplies, beside what the interpreter asks of a device,
//   D::publish_filled / observe_filled   the sender's bytes in the slot  ->  the receiver's reads of them
//   D::publish_freed  / observe_freed    the receiver's reads of a slot  ->  the sender's next writes into it
//   device.wake(peer)                    after a counter that `peer` may be waiting for has moved
// Each publish releases and each observe acquires; they are also the store and the load of the handshake of going to
// sleep (see protocol/waiting.h), hence sequentially consistent on a CPU.
#pragma once

#include "core/port.h"

namespace hocket {

template <class D>
concept FifoDevice = requires(D& device, u64* counter, const u64* read, u64 value, u32 peer) {
    D::publish_filled(counter, value);
    { D::observe_filled(read) } -> Is<u64>;
    D::publish_freed(counter, value);
    { D::observe_freed(read) } -> Is<u64>;
    device.wake(peer);
};

// A line of a counter.
struct Counter {
    alignas(kLine) u64 count;
};

// The counters that ranks share for one connection: that of the sender, and one for each reader (multicast has
// several).
struct Counters {
    Counter filled;
    Counter freed[kMostReaders];
};
static_assert(sizeof(Counters) == 4096);

constexpr u64 kUnbounded = ~u64(0);

// One rank's end of a connection during a call; of a multicast the sender has an end for each reader, one after the
// other, of which the first one sends.
template <FifoDevice Device> struct Fifo {
    u64* filled;
    u64* freed;
    char* slots;  // of the first slot
    u64 slot_bytes;
    u64 capacity;  // slots: a power of two; kUnbounded where messages lie in buffers
    u32 peer;
    u32 more;                // ends of further readers
    u64 next = 0;            // messages sent, or received, so far
    u64 seen = 0;            // the other end's counter when last looked at
    u64 debt = 0;            // what `freed` lacks: messages of calls in which this reader was none
    u64* lengths = nullptr;  // of messages, by slot, where a network sends them

    // Of a connection between two ranks, before the call sends anything. The two ends differ in which counter is
    // theirs.
    void begin(bool sends) { next = seen = sends ? *filled : *freed; }

    // Of a multicast, on which `passed` messages have been sent so far.
    void begin_after(u64 passed) {
        next = seen = passed;
        debt = passed - *freed;
    }

    // For a message that is there, or has its place, all through the call: in one round, or in two.
    static Fifo open(char* message, bool sends, u32 peer) {
        return {nullptr, nullptr, message, 0, 1, peer, 0, 0, sends ? 0u : 1u};
    }

    char* data() const { return slots + (next & (capacity - 1)) * slot_bytes; }

    bool try_acquire() { return full() == nullptr; }

    bool try_receive() {
        if (next != seen) return true;
        seen = Device::observe_filled(filled);  // pairs with publish_filled in `commit`
        return next != seen;
    }

    void commit(Device& device, u64 bytes) {
        if (lengths != nullptr) [[unlikely]]
            lengths[next & (capacity - 1)] = bytes;
        Device::publish_filled(filled, ++next);  // pairs with observe_filled in `try_receive`
        for (const Fifo* reader = this; reader <= this + more; ++reader) device.wake(reader->peer);
    }

    void release(Device& device) {
        Device::publish_freed(freed, ++next - debt);  // pairs with observe_freed in `full` and `all_released`
        device.wake(peer);
    }

    u32 awaited() {
        const Fifo* reader = full();
        return reader != nullptr ? reader->peer : peer;
    }

    bool all_released() {
        if (next != seen) seen = Device::observe_freed(freed);  // pairs with publish_freed in `release`
        return next == seen;
    }

  private:
    // The reader for whom no slot is free; null if there is none.
    const Fifo* full() {
        for (Fifo* reader = this; reader <= this + more; ++reader) {
            if (next - reader->seen < capacity) continue;
            reader->seen =
                Device::observe_freed(reader->freed) + reader->debt;  // pairs with publish_freed in `release`
            if (next - reader->seen >= capacity) return reader;
        }
        return nullptr;
    }
};

}  // namespace hocket
