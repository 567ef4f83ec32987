// Going to sleep and being woken, between processes.
//
// A rank has one bell, a futex word: 1 while it sleeps or is about to. The handshake is the classical one:
//     sleeper:    bell = 1; look once more for work; sleep while bell == 1
//     publisher:  counter = new; if bell == 1: bell = 0, wake
// Of "bell = 1, look" and "counter = new, look at bell" one side must see the other's store, so all four are
// sequentially consistent: with anything weaker both loads could pass both stores and the wake-up would be lost. The
// sleep has a limit all the same, because a dead peer rings no bell.
//
// std::atomic::wait uses a futex private to the process in GCC 12; ours is shared.
#pragma once

#include <cerrno>
#include <ctime>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../core/plan.h"

namespace hocket {

constexpr long kNapNanoseconds = 50'000'000;  // how long a fault can go unnoticed by a sleeper

inline void ring(u32* bell) {
    if (__atomic_load_n(bell, __ATOMIC_SEQ_CST) == 0) return;  // pairs with `lie_down`
    __atomic_store_n(bell, 0, __ATOMIC_RELAXED);               // ordered by the system call, which reads it again
    ::syscall(SYS_futex, bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

inline void lie_down(u32* bell) { __atomic_store_n(bell, 1, __ATOMIC_SEQ_CST); }  // pairs with `ring`

inline void nap(u32* bell) {
    const timespec limit{0, kNapNanoseconds};
    ::syscall(SYS_futex, bell, FUTEX_WAIT, 1, &limit, nullptr, 0);  // wakes early for a signal too
}

inline void get_up(u32* bell) { __atomic_store_n(bell, 0, __ATOMIC_RELAXED); }  // a hint: at worst one needless wake

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

inline double seconds() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// How long to spin and to yield before sleeping. Spinning is for ranks that have a core each.
struct Patience {
    u32 spins;
    u32 yields;
};

}  // namespace hocket
