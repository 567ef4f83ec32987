// A port whose messages take their time, as in a network: the second transport, for tests.
//
// A message reaches its receiver some time after `commit`, and its place is free again some time after `release`:
// whoever runs the ranks says when, by `deliver`, and which comes next is drawn from a seed. Those of one connection
// stay in order, none is lost, and there are few places. What is no message yet, or no more, is overwritten.
//
// It can neither send to several readers at once, so an end with more of them sends to each, nor is it a ZeroCopyPort
// or an EagerPort.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "core/port.h"

namespace hocket::test {

class Network {
  public:
    explicit Network(u64 seed) : random_(seed) {}

    // Lets one message, or one place that was released, reach the other end. Whether there was any on its way.
    bool deliver() {
        const std::lock_guard<std::mutex> held(lock_);
        std::vector<std::pair<Connection*, bool>> coming;
        for (auto& [name, connection] : connections_) {
            if (connection.committed != connection.arrived) coming.emplace_back(&connection, true);
            if (connection.released != connection.freed) coming.emplace_back(&connection, false);
        }
        if (coming.empty()) return false;
        const auto [connection, is_message] = coming[random_() % coming.size()];
        if (is_message) {
            char* const from = connection->place(connection->sent, connection->arrived);
            std::memcpy(connection->place(connection->received, connection->arrived), from, connection->bytes);
            std::memset(from, kNothing, connection->bytes);
            ++connection->arrived;
        } else {
            ++connection->freed;
        }
        return true;
    }

  private:
    friend class DelayedEnd;

    static constexpr int kNothing = 0xee;

    struct Connection {
        u64 places = 0, bytes = 0;
        std::vector<char> sent, received;
        u64 committed = 0, arrived = 0, released = 0, freed = 0;  // messages so far

        char* place(std::vector<char>& side, u64 message) { return &side[message % places * bytes]; }
    };

    std::mutex lock_;
    std::mt19937_64 random_;
    std::map<std::array<u32, 3>, Connection> connections_;
};

class DelayedEnd {
  public:
    // Both ends of a connection, with the same places, are made before anything is sent.
    DelayedEnd(Network& network, u32 rank, const ConnectionRecord& record, u64 places, u64 bytes)
        : peer(record.peer),
          network_(&network),
          sends_(record.sends != 0),
          more_(record.more) {
        const u32 source = sends_ ? rank : peer, target = sends_ ? peer : rank;
        connection_ = &network.connections_[{source, target, record.channel}];
        connection_->places = places;
        connection_->bytes = bytes;
        for (std::vector<char>* side : {&connection_->sent, &connection_->received})
            side->assign(places * bytes, char(Network::kNothing));
    }

    u32 peer;

    bool try_acquire() { return awaited_end() == nullptr; }

    bool try_receive() {
        const std::lock_guard<std::mutex> held(network_->lock_);
        return next_ != connection_->arrived;
    }

    char* data() const { return connection_->place(sends_ ? connection_->sent : connection_->received, next_); }

    template <class Device> void commit(Device&, u64) {
        const std::lock_guard<std::mutex> held(network_->lock_);
        const char* const message = data();
        for (DelayedEnd* reader = this; reader <= this + more_; ++reader) {
            if (reader != this) std::memcpy(reader->data(), message, connection_->bytes);
            reader->connection_->committed = ++reader->next_;
        }
    }

    template <class Device> void release(Device&) {
        const std::lock_guard<std::mutex> held(network_->lock_);
        std::memset(data(), Network::kNothing, connection_->bytes);
        connection_->released = ++next_;
    }

    u32 awaited() {
        const DelayedEnd* end = awaited_end();
        return end != nullptr ? end->peer : peer;
    }

    // Whether nothing is on its way: all that was sent has been read, as far as its sender knows.
    bool idle() const {
        const std::lock_guard<std::mutex> held(network_->lock_);
        return connection_->committed == connection_->freed;
    }

  private:
    // The end, of those to all readers, that has no place to fill.
    const DelayedEnd* awaited_end() const {
        const std::lock_guard<std::mutex> held(network_->lock_);
        for (const DelayedEnd* reader = this; reader <= this + more_; ++reader)
            if (reader->next_ - reader->connection_->freed == reader->connection_->places) return reader;
        return nullptr;
    }

    Network* network_;
    Network::Connection* connection_;
    bool sends_;
    u32 more_;
    u64 next_ = 0;  // messages sent, or received, so far
};

}  // namespace hocket::test
