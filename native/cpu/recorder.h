// What a rank does, for a timeline (hocket/runtime/trace.py): the calls of a communicator, and the steps of its threads.
//
// All memory is there from the beginning; what comes when it is full is only counted. A tape has one writer at a time and
// may be read meanwhile.
#pragma once

#include <vector>

#include "hardware.h"

namespace hocket {

// Times are of CLOCK_MONOTONIC, which all processes of a machine share.
inline u64 nanoseconds() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return u64(now.tv_sec) * 1'000'000'000 + u64(now.tv_nsec);
}

// A call. `number` is the same on all ranks. `plan`: the number of what is called (Communicator). `agreed`: when all
// ranks had entered it; 0 if it was not carried out. `unit` and `tile` in bytes (interpreter.h).
struct CallEvent {
    u64 number, plan, begin, agreed, end, unit, tile, tiles;
    u32 threads, fault;
    bool one_round, streams;
};

// A step on one tile. `bytes` is the length of its operands in this tile.
struct StepEvent {
    u64 call, begin, end, tile, bytes;
    u32 block, step;
};

template <class Event> class Tape {
  public:
    explicit Tape(u64 capacity) : events_(capacity) {}

    void record(const Event& event) {
        if (used_ == events_.size()) {
            __atomic_store_n(&dropped_, dropped_ + 1, __ATOMIC_RELAXED);  // a number alone
            return;
        }
        events_[used_] = event;
        __atomic_store_n(&used_, used_ + 1, __ATOMIC_RELEASE);  // pairs with `events`
    }

    bool full() const { return used_ == events_.size(); }
    std::vector<Event> events() const {
        const u64 used = __atomic_load_n(&used_, __ATOMIC_ACQUIRE);  // pairs with `record`
        return {events_.begin(), events_.begin() + long(used)};
    }
    u64 dropped() const { return __atomic_load_n(&dropped_, __ATOMIC_RELAXED); }

  private:
    std::vector<Event> events_;
    alignas(kLine) u64 used_ = 0;
    u64 dropped_ = 0;
};

struct Recorder {
    Recorder(u32 threads, u64 most_calls, u64 most_steps) : calls(most_calls), steps(threads, Tape<StepEvent>(most_steps)) {}

    Tape<CallEvent> calls;
    std::vector<Tape<StepEvent>> steps;  // of each thread
};

// A CPU that records the steps it executes.
struct WatchedCpu : Cpu {
    Tape<StepEvent>& tape;
    StepEvent now;

    WatchedCpu(const Cpu& cpu, Tape<StepEvent>& steps, u64 call) : Cpu(cpu), tape(steps), now{.call = call} {}

    void begins() {
        now.bytes = 0;
        now.begin = nanoseconds();
    }
    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, u32 last) {
        now.bytes += bytes;
        Cpu::reduce(dsts, m, srcs, k, bytes, last);
    }
    void executed(u32 block, u32 step, u64 tile) {
        now.end = nanoseconds();
        now.block = block;
        now.step = step;
        now.tile = tile;
        tape.record(now);
    }
};

}  // namespace hocket
