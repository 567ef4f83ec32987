// A network that takes longer than what is below it, for experiments: a node sends one message after another, at so
// many bytes a second, and each comes some time later. Who sends holds a message back until then; nothing is lost.
#pragma once

#include <algorithm>
#include <deque>

#include "transport/wire.h"

namespace hocket {

class EmulatedNetwork {
  public:
    // `free_at`: when the node has sent what its ranks have given, which share this, in nanoseconds of `now`. It, and
    // the context of the wire below, outlive this.
    EmulatedNetwork(Wire below, u64 latency, double nanoseconds_per_byte, u64* free_at, u64 (*now)())
        : below_(below),
          latency_(latency),
          nanoseconds_per_byte_(nanoseconds_per_byte),
          free_at_(free_at),
          now_(now) {}
    EmulatedNetwork& operator=(EmulatedNetwork&&) = delete;

    Wire wire() { return {this, send, receive, take, test, drop, describe}; }

  private:
    struct Held {
        u64 due;
        const void* data;
        u64 bytes;
        u32 rank, tag;
        Ticket* ticket;
    };

    static EmulatedNetwork& of(void* self) { return *static_cast<EmulatedNetwork*>(self); }

    static int send(void* self, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
        EmulatedNetwork& its = of(self);
        its.held_.push_back({its.sent_at(bytes) + its.latency_, data, bytes, rank, tag, &ticket});
        return its.release();
    }
    static int receive(void* self, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
        return of(self).below_.receive(of(self).below_.context, data, bytes, rank, tag, ticket);
    }
    static int take(void* self, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found) {
        EmulatedNetwork& its = of(self);
        if (const int error = its.release()) return error;
        return its.below_.take(its.below_.context, data, bytes, tag, ticket, found);
    }
    static int test(void* self, Ticket& ticket, bool& done) {
        EmulatedNetwork& its = of(self);
        done = false;
        if (const int error = its.release()) return error;
        return its.find(ticket) != its.held_.end() ? 0 : its.below_.test(its.below_.context, ticket, done);
    }
    static void drop(void* self, Ticket& ticket) {
        EmulatedNetwork& its = of(self);
        const auto found = its.find(ticket);
        if (found != its.held_.end()) its.held_.erase(found);
        else its.below_.drop(its.below_.context, ticket);
    }
    static std::string describe(void* self, int error) {
        return of(self).below_.describe(of(self).below_.context, error);
    }

    // When the node has sent a message that it is given now, after all before it.
    u64 sent_at(u64 bytes) const {
        const u64 now = now_(), takes = u64(double(bytes) * nanoseconds_per_byte_);
        u64 before = __atomic_load_n(free_at_, __ATOMIC_RELAXED), after = 0;
        do after = std::max(before, now) + takes;
        while (!__atomic_compare_exchange_n(free_at_, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return after;
    }

    // Hands what is due to the wire below. Messages are due in the order in which they were sent.
    int release() {
        while (!held_.empty() && held_.front().due <= now_()) {
            const Held message = held_.front();
            held_.pop_front();
            if (const int error = below_.send(below_.context, message.data, message.bytes, message.rank, message.tag,
                                              *message.ticket))
                return error;
        }
        return 0;
    }

    std::deque<Held>::iterator find(const Ticket& ticket) {
        return std::find_if(held_.begin(), held_.end(), [&](const Held& message) { return message.ticket == &ticket; });
    }

    const Wire below_;
    const u64 latency_;  // nanoseconds
    const double nanoseconds_per_byte_;
    u64* const free_at_;
    u64 (*const now_)();
    std::deque<Held> held_;
};

}  // namespace hocket
