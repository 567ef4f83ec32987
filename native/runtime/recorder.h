// What a rank does, for a timeline (hocket/runtime/trace.py): the calls of a communicator, and the steps of its
// threads.
//
// All memory is there from the beginning; what comes when it is full is only counted. A tape has one writer at a time
// and may be read meanwhile.
#pragma once

#include <vector>

#include "device/clock.h"
#include "runtime/cpu.h"

namespace hocket {

// A call. Times are ticks; 0 is none. `number` is the same on all ranks. `plan`: the number of what is called
// (ControlPlane, Plan). `agreed`: when all ranks had entered it, none if it was not carried out. `unit` and `tile` in
// bytes.
struct CallEvent {
    u64 number = 0, plan = 0, begin = 0, agreed = 0, end = 0, unit = 0, tile = 0, tiles = 0;
    u32 threads = 0, fault = 0;
    u32 rounds = 0;  // a Rounds
    bool streams = false;
};

// A step on one tile. `bytes` is the length of its operands in this tile.
struct StepEvent {
    u64 call = 0, begin = 0, end = 0, tile = 0, bytes = 0;
    u32 block = 0, step = 0;
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
        __builtin_prefetch(events_.data() + used_ + 1, 1);  // by the next event this one's line has long left the cache
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
    Recorder(u32 threads, u64 most_calls, u64 most_steps)
        : calls(most_calls),
          steps(threads, Tape<StepEvent>(most_steps)) {}

    Clock clock;
    Tape<CallEvent> calls;
    std::vector<Tape<StepEvent>> steps;  // of each thread
};

// A CPU that records the steps it executes. A step that follows at once on what came before begins when that ended.
struct WatchedCpu : Cpu {
    const Clock& clock;
    Tape<StepEvent>& tape;
    StepEvent now;
    bool stalled;  // since `now.end`: the first thread begins at once, others when they are awake

    void begins() {
        now.bytes = 0;
        now.begin = stalled ? clock.ticks() : now.end;
        stalled = false;
    }
    void reduce(char* const* dsts, u32 m, char* const* srcs, u32 k, u64 bytes, Streamable some, bool whole) {
        now.bytes += bytes;
        Cpu::reduce(dsts, m, srcs, k, bytes, some, whole);
    }
    void reduce_attached(const Room& room, u32 sources, u32 used, u64 bytes, bool whole) {
        now.bytes += bytes;
        Cpu::reduce_attached(room, sources, used, bytes, whole);
    }
    void stalls() { stalled = true; }
    void executed(u32 block, u32 step, u64 tile) {
        now.end = clock.ticks();
        now.block = block;
        now.step = step;
        now.tile = tile;
        tape.record(now);
    }
};

}  // namespace hocket
