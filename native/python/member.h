// A communicator as Python holds it.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mpi/wire.h"
#include "policy/arms.h"
#include "python/gil.h"
#include "runtime/communicator.h"
#include "transport/emulated.h"
#include "transport/shared_memory.h"

namespace hocket {

// Taken by whoever is in a call. Less than std::mutex, which would cost a short call some per cent more.
class Busy {
  public:
    bool try_lock() {
        if (taken_.test_and_set(std::memory_order_acquire)) return false;
        holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
        return true;
    }
    void lock() {
        while (!try_lock()) taken_.wait(true, std::memory_order_relaxed);
    }
    void unlock() {
        holder_.store({}, std::memory_order_relaxed);
        taken_.clear(std::memory_order_release);
        taken_.notify_one();
    }
    // Whether the calling thread has taken it.
    bool is_mine() const { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  private:
    std::atomic_flag taken_;
    std::atomic<std::thread::id> holder_{};
};

struct Lifelines {
    std::vector<int> descriptors;  // by rank, -1 where there is none

    ~Lifelines() { close(); }
    void close() {
        for (const int descriptor : descriptors)
            if (descriptor >= 0) ::close(descriptor);
        descriptors.clear();
    }
};

class Flight;

// When ranks exchange what they have timed: a merge (hocket/tuner/online.py) at the call `at`, and before that, from
// the call `look_at` on, looks: one word of each on whether any calls take another time than before. If so, they merge.
struct Merges {
    std::vector<std::shared_ptr<KeyArms>> watched{};
    u64 at = ~u64(0), look_at = ~u64(0), between_looks = 0;  // numbers of calls
    u64 look_ticks = 0;                                      // of the look that took least

    // Not the call before a merge that is due: after an alarm there, the merge would not be early (online.py).
    void next_look(u64 calls) { look_at = calls + between_looks + 1 < at ? calls + between_looks : at; }
};

// Together with the memory and the descriptors it uses, which belong to it, and the calls that are made in the
// background. `nodes`: by rank, none where all are on one; else `mpi` is where the handle is of a communicator of MPI
// for these ranks, which nobody else uses, and `latency`, in seconds, and `bandwidth`, in bytes a second, those that an
// emulated network has, 0 for none.
struct Member {
    Member(u32 rank, u32 size, int descriptor, std::vector<int> lifelines, std::vector<int> arenas, Arena& arena,
           std::vector<pid_t> processes, bool always_attaches, bool crowded, u32 spins, u32 yields, double timeout,
           u32 threads, u64 team_bytes, u64 cache_bytes, bool looks, Recorder* recorder,
           const std::map<std::string, u64>& tuned, std::vector<u32> nodes, u64 mpi, double latency, double bandwidth)
        : memory(descriptor, size, !nodes.empty(), std::move(arenas), arena, processes) {
        Settings settings{{{spins, yields}, timeout, python_interrupted, Gil::let_go}};
        if (!processes.empty()) settings.cma_use = always_attaches ? CmaUse::kAlways : CmaUse::kWhereFaster;
        settings.crowded = crowded;
        settings.threads = threads;
        settings.team_bytes = team_bytes;
        settings.cache_bytes = cache_bytes;
        if (looks && Clock::trusted()) settings.is_far = is_far;
        settings.recorder = recorder;
        settings.tunables = tunables = tunables_with(tuned);
        if (!nodes.empty()) {
            wire.emplace(reinterpret_cast<const void*>(mpi));
            Wire used = wire->wire();
            if (latency > 0 || bandwidth > 0) {
                const auto first = std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin();
                used = emulated
                           .emplace(used, u64(latency * 1e9), bandwidth > 0 ? 1e9 / bandwidth : 0,
                                    &memory.control()[first].sent_at, Clock::monotonic)
                           .wire();
            }
            network = std::make_unique<Network>(rank, std::move(nodes), memory.control(), used);
            settings.network = network.get();
        }
        communicator = std::make_unique<Communicator>(rank, size, memory, lifelines, settings);
        this->lifelines.descriptors = std::move(lifelines);
    }
    // Memory that MPI may still use, after a call that failed, is never used again, and stays.
    ~Member() {
        if (network && wire->is_over()) network->abandon();
        if (!network || !network->is_busy()) return;
        (void)network.release();
        memory.leave_control();
    }
    Member& operator=(Member&&) = delete;

    // Has ranks of other nodes hear of the end of this one, unless a call that goes on does.
    void tell() {
        const std::unique_lock<Busy> lock(busy, std::try_to_lock);
        if (network && wire->is_over()) network->abandon();
        if (network && lock.owns_lock()) network->finish();
    }

    void watch(std::shared_ptr<KeyArms> arms) { merges.watched.push_back(std::move(arms)); }
    void next_merge(u64 at, u64 between_looks) {
        merges.at = at;
        merges.between_looks = between_looks;
        merges.next_look(calls);
    }

    // Ends the communicator on every rank.
    void fail(u32 culprit, const std::string& why) {
        communicator->control().fail(culprit, why);
        tell();
    }

    // In a child after fork. Its threads are not here: nothing may wait for them. Nor may it hide the end of its
    // parent.
    void forked() {
        lifelines.close();
        (void)communicator.release();
        (void)network.release();
        (void)queue.release();
        posted = nullptr;
    }

    // Whether the calling thread is in a call: it is a signal handler that interrupts it, and must not wait for its
    // end.
    bool interrupts() const { return busy.is_mine(); }

    Tunables tunables;
    // Calls of a plan so far, also those that were refused: each is counted where it is made, and the same on all
    // ranks.
    u64 calls = 0;
    Merges merges;
    SharedMemory memory;
    std::optional<mpi::MpiWire> wire;
    std::optional<EmulatedNetwork> emulated;
    std::unique_ptr<Network> network;  // to ranks of other nodes
    Lifelines lifelines;               // closed last of all: a call in the background may shut the own one down
    std::unique_ptr<Communicator> communicator;
    Busy busy;
    std::atomic<u32> flights{0};  // calls in the background that have not ended
    Flight* posted = nullptr;     // one of these that is in no queue
    std::unique_ptr<Queue> queue = std::make_unique<Queue>();
};

}  // namespace hocket
