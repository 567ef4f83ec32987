// A wire between threads, whose messages take their time: each is copied when it arrives, at a moment drawn from a
// seed, and only then its sender may use its memory again; or, where it `buffers`, at once.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "runner.h"
#include "transport/wire.h"

namespace hocket::test {

class Post {
  public:
    Post(u32 ranks, u64 seed, bool buffers = false) : random_(seed), buffers_(buffers) {
        for (u32 r = 0; r < ranks; ++r) ends_.push_back({this, r});
    }

    Wire wire(u32 rank) { return {&ends_[rank], send, receive, take, test, drop, describe}; }

    // From now on, whatever this rank does fails.
    void cut(u32 rank) {
        const std::lock_guard<std::mutex> held(lock_);
        ends_[rank].cut = true;
    }

    // Messages that were sent and not received.
    u64 waiting() {
        const std::lock_guard<std::mutex> held(lock_);
        u64 found = 0;
        for (const auto& [route, messages] : sent_) found += messages.size();
        return found;
    }

    // Messages that have arrived, of whose tickets nobody knows.
    u64 forgotten() {
        const std::lock_guard<std::mutex> held(lock_);
        return arrived_.size();
    }

  private:
    struct End {
        Post* post;
        u32 rank;
        bool cut = false;
    };

    struct Message {
        u64 number;
        char* data;
        u64 bytes;
        std::vector<char> copy{};
    };
    using Route = std::array<u32, 3>;  // sender, receiver, tag

    static int send(void* end, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
        const End& from = *static_cast<End*>(end);
        char* const at = const_cast<char*>(static_cast<const char*>(data));
        return from.post->add(from, from.post->sent_, {from.rank, rank, tag}, {0, at, bytes}, ticket);
    }

    static int receive(void* end, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
        const End& to = *static_cast<End*>(end);
        char* const at = static_cast<char*>(data);
        return to.post->add(to, to.post->awaited_, {rank, to.rank, tag}, {0, at, bytes}, ticket);
    }

    static int take(void* end, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found) {
        const End& to = *static_cast<End*>(end);
        const std::optional<u32> from = to.post->sender(to.rank, tag);
        found = from.has_value();
        return found ? receive(end, data, bytes, *from, tag, ticket) : to.cut;
    }

    static int test(void* end, Ticket& ticket, bool& done) {
        const End& its = *static_cast<End*>(end);
        const std::lock_guard<std::mutex> held(its.post->lock_);
        if (its.cut) return 1;
        if (its.post->random_() % 2 != 0) its.post->deliver(its.rank);
        done = its.post->arrived_.erase(ticket.word) != 0;
        return 0;
    }

    static void drop(void* end, Ticket& ticket) {
        Post& post = *static_cast<End*>(end)->post;
        const std::lock_guard<std::mutex> held(post.lock_);
        for (auto* const all : {&post.sent_, &post.awaited_})
            for (auto& [route, messages] : *all)
                std::erase_if(messages, [&](const Message& message) { return message.number == ticket.word; });
        post.arrived_.erase(ticket.word);
    }

    static std::string describe(void*, int) { return "the line was cut"; }

    int add(const End& end, std::map<Route, std::deque<Message>>& all, const Route& route, Message message,
            Ticket& ticket) {
        const std::lock_guard<std::mutex> held(lock_);
        if (end.cut) return 1;
        message.number = ticket.word = ++numbers_;
        if (buffers_ && &all == &sent_) {
            message.copy.assign(message.data, message.data + message.bytes);
            arrived_.insert(message.number);
        }
        all[route].push_back(std::move(message));
        return 0;
    }

    // One that has sent a message to this rank which nothing awaits, if there is any.
    std::optional<u32> sender(u32 rank, u32 tag) {
        const std::lock_guard<std::mutex> held(lock_);
        std::vector<u32> found;
        for (const auto& [route, messages] : sent_)
            if (route[1] == rank && route[2] == tag && messages.size() > awaited_[route].size())
                found.push_back(route[0]);
        return found.empty() ? std::nullopt : std::optional(found[random_() % found.size()]);
    }

    // One message to or from this rank, if there is any that is both sent and awaited.
    void deliver(u32 rank) {
        std::vector<std::pair<std::deque<Message>*, std::deque<Message>*>> ready;
        for (auto& [route, messages] : sent_) {
            if (messages.empty() || (route[0] != rank && route[1] != rank)) continue;
            const auto found = awaited_.find(route);
            if (found != awaited_.end() && !found->second.empty()) ready.emplace_back(&messages, &found->second);
        }
        if (ready.empty()) return;
        const auto [from, to] = ready[random_() % ready.size()];
        CHECK(from->front().bytes <= to->front().bytes);
        const Message& message = from->front();
        const char* const at = buffers_ ? message.copy.data() : message.data;
        std::copy(at, at + message.bytes, to->front().data);  // also of none, which has no address
        arrived_.insert(to->front().number);
        if (!buffers_) arrived_.insert(message.number);
        from->pop_front();
        to->pop_front();
    }

    std::mutex lock_;
    std::mt19937_64 random_;
    const bool buffers_;
    std::vector<End> ends_;
    std::map<Route, std::deque<Message>> sent_, awaited_;
    std::set<u64> arrived_;  // messages, by number
    u64 numbers_ = 0;
};

}  // namespace hocket::test
