// Ranks as threads of one process: what they share in the place of memory that processes map, and how they start.
#pragma once

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communicator.h"

namespace hocket::test {

struct Free {
    void operator()(void* at) const { std::free(at); }
};
using Block = std::unique_ptr<void, Free>;

inline Block lines(u64 bytes) {
    bytes = (bytes + kPage - 1) / kPage * kPage;
    void* at = std::aligned_alloc(kPage, bytes);
    std::memset(at, 0, bytes);
    return Block(at);
}

// What the threads share. One address for each thing, whoever asks: sanitizers judge addresses.
struct World {
    static constexpr u64 kBytes = 1 << 20;  // of slots, for each connection
    static constexpr u64 kLent = 1 << 16;   // of each rank's arena

    // As if there had been `first` calls, and as many messages on each connection.
    explicit World(u32 ranks, u64 first = 0)
        : control(lines(std::max(control_bytes(ranks, false), control_bytes(ranks, true)))),
          lent(lines(ranks * kLent)),
          ranks(ranks),
          first(first) {
        for (u32 r = 0; r < ranks; ++r)
            for (const u64 call : {first - 1, first})
                static_cast<RankBlock*>(control.get())[r].headers[call % 2].call = call;
    }

    Counters* counters(u64 source, u64 destination, u64 channel) {
        const std::lock_guard<std::mutex> held(lock);
        Block& block = windows[(channel << 32) + (source << 16) + destination];
        if (block == nullptr) {
            block = lines(kPage + kBytes);
            Counters& counters = *static_cast<Counters*>(block.get());
            counters.filled.count = first;
            for (Counter& freed : counters.freed) freed.count = first;
        }
        return static_cast<Counters*>(block.get());
    }

    char* rotated(u64 bytes) {
        const std::lock_guard<std::mutex> held(lock);
        if (areas == nullptr) areas = lines(ranks * bytes);
        return static_cast<char*>(areas.get());
    }

    char* arena(u32 rank) { return static_cast<char*>(lent.get()) + rank * kLent; }

    Block control;
    Block lent;
    Block areas;
    const u32 ranks;
    const u64 first;
    std::mutex lock;
    std::map<u64, Block> windows;
};

class ThreadMemory final : public Memory {
  public:
    explicit ThreadMemory(World& world, u32 rank = 0) : world_(world), rank_(rank) {}
    RankBlock* control() override { return static_cast<RankBlock*>(world_.control.get()); }
    Window* window(u32 source, u32 destination, u32 channel) override {
        auto& window = windows_[{source, destination, channel}];
        if (window == nullptr)
            window = std::make_unique<Window>(
                Window{world_.counters(source, destination, channel), World::kBytes, world_.first});
        return window.get();
    }
    int reserve(Window*, u64) override { return EFBIG; }
    char* rotated(u32, u64 bytes) override { return world_.rotated(bytes); }
    u64 place(const char* at) const override {
        const u64 found = u64(at - world_.arena(rank_));
        return found < World::kLent ? found : kNowhere;
    }
    void keep(u64 place) override { kept.push_back(place); }
    char* arena(u32 rank, u64 bytes) override { return bytes <= World::kLent ? world_.arena(rank) : nullptr; }
    char* adopted(u32, u64) const override { return nullptr; }
    int pull(u32, const char* theirs, char* mine, u64 bytes) override {
        if (error == 0) std::memcpy(mine, theirs, bytes);
        return error;
    }
    int push(u32, char* theirs, const char* mine, u64 bytes) override { return pull(0, mine, theirs, bytes); }
    bool reachable(const char*) const override { return true; }
    bool in_huge_pages(const char*, u64) override { return huge; }
    bool is_accessible() const override { return true; }

    std::vector<u64> kept;
    int error = 0;     // of copies from and to others
    bool huge = true;  // its pages

  private:
    World& world_;
    u32 rank_;
    std::map<std::array<u32, 3>, std::unique_ptr<Window>> windows_;
};

template <class Body> void on_threads(u32 ranks, Body body) {
    std::vector<std::thread> threads;
    for (u32 r = 0; r < ranks; ++r) threads.emplace_back([r, &body] { body(r); });
    for (std::thread& thread : threads) thread.join();
}

inline Settings settings(u64 slots) {
    Settings found{{{50, 20}, 60.0}};
    found.tunables.slots = slots;
    found.tunables.slot_bytes = 64 << 10;
    found.tunables.rotated_bytes = 0;
    return found;
}

}  // namespace hocket::test
