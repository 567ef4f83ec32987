// Going to sleep and being woken, between processes.
//
// A rank has one bell, for whichever of its threads sleep. It is raised while one sleeps or is about to; its strikes
// are the futex word. The handshake is the classical one:
//     sleeper:    seen = strikes; raised = 1; look once more for work; sleep while strikes == seen
//     publisher:  counter = new; if raised == 1: raised = 0, strikes += 1, wake all
// Of "raised = 1, look" and "counter = new, look at raised" one side must see the other's store, so all four are
// sequentially consistent: with anything weaker both loads could pass both stores and the wake-up would be lost.
// Whoever lowers the bell strikes it afterwards, so that a sleeper whose bell was lowered by a publisher of something
// else does not fall asleep either. tests/native/test_sleep.py walks through all interleavings. The sleep has a limit
// all the same, because a dead peer rings no bell.
//
// std::atomic::wait uses a futex private to the process in GCC 12; ours is shared.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>

#include "device/clock.h"

namespace hocket {

constexpr long kNapNanoseconds = 50'000'000;  // how long a fault can go unnoticed by a sleeper

struct Bell {
    u32 raised;
    u32 strikes;
};

inline void ring(Bell& bell) {
    if (__atomic_load_n(&bell.raised, __ATOMIC_SEQ_CST) == 0) return;  // pairs with `lie_down`
    __atomic_store_n(&bell.raised, 0, __ATOMIC_RELAXED);               // ordered by the strike
    __atomic_fetch_add(&bell.strikes, 1, __ATOMIC_RELEASE);            // pairs with `lie_down`: not lowered thereafter
    ::syscall(SYS_futex, &bell.strikes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns the strikes so far, for `nap`.
inline u32 lie_down(Bell& bell) {
    const u32 seen = __atomic_load_n(&bell.strikes, __ATOMIC_ACQUIRE);  // pairs with the strike in `ring`
    __atomic_store_n(&bell.raised, 1, __ATOMIC_SEQ_CST);                // pairs with `ring`
    return seen;
}

inline void nap(Bell& bell, u32 seen, long nanoseconds) {
    const timespec limit{0, nanoseconds};
    ::syscall(SYS_futex, &bell.strikes, FUTEX_WAIT, seen, &limit, nullptr, 0);  // wakes early for a signal too
}

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

inline double seconds() { return 1e-9 * double(Clock::monotonic()); }

// Whether this thread is one of the library's own (runtime/team.h): signals are for others.
constinit inline thread_local bool worker_thread = false;

// What else the process must get on with while a rank waits, as an MPI library with messages of its own. Called when a
// thread has spun in vain and before each sleep, with no lock and no GIL, and never by a thread of the library's own.
// It must not use a communicator that is in a call.
struct Progressor {
    void (*call)(void* context) = nullptr;
    void* context = nullptr;
};

// How long to spin and to yield before sleeping. Spinning is for ranks that have a core each.
struct Patience {
    u32 spins;
    u32 yields;
};

}  // namespace hocket
