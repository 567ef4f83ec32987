// Memory orders of a CPU, and which of them publish and observe what ranks say in the control region.
//
// Every order can be weakened by its name, -DHOCKET_RELAX="...", for the tests that show that it is needed
// (tests/native). A publish and its observe are one pair; relaxing either side breaks it.
#pragma once

#include "core/plan.h"

#ifndef HOCKET_RELAX
#define HOCKET_RELAX ""
#endif

namespace hocket {

// Whether this build weakens what has that name.
consteval bool is_weakened(const char* name) {
    const char* weakened = HOCKET_RELAX;
    while (*name != 0 && *name == *weakened) ++name, ++weakened;
    return *name == *weakened;
}
consteval int order(const char* name, int strong) { return is_weakened(name) ? __ATOMIC_RELAXED : strong; }

// The call header: its fields, and all that its rank did in earlier calls. Also part of going to sleep.
inline void publish_header(u64* call, u64 value) {  // pairs with observe_header
    __atomic_store_n(call, value, order("HEADER_PUBLISH", __ATOMIC_SEQ_CST));
}
inline u64 observe_header(const u64* call) {  // pairs with publish_header
    return __atomic_load_n(call, order("HEADER_OBSERVE", __ATOMIC_SEQ_CST));
}

// The end of a call in two rounds: what a rank has read and written in buffers of others. Part of going to sleep too.
inline void publish_done(u64* done, u64 call) {  // pairs with observe_done
    __atomic_store_n(done, call, order("DONE_PUBLISH", __ATOMIC_SEQ_CST));
}
inline u64 observe_done(const u64* done) {  // pairs with publish_done
    return __atomic_load_n(done, order("DONE_OBSERVE", __ATOMIC_SEQ_CST));
}

// Why a rank failed or left: `culprit` and `text`. Looked for between sleeps: a lost wake-up only costs one.
inline void publish_state(u64* state, u64 value) {  // pairs with observe_state
    __atomic_store_n(state, value, order("STATE_PUBLISH", __ATOMIC_RELEASE));
}
inline u64 observe_state(const u64* state) {  // pairs with publish_state
    return __atomic_load_n(state, order("STATE_OBSERVE", __ATOMIC_ACQUIRE));
}

}  // namespace hocket
