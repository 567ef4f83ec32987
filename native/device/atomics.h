// Memory orders of a CPU, and which of them publish and observe what ranks say in the control region.
//
// Every order can be weakened by a macro of its name, -DHOCKET_RELAX_..., for the tests that show that it is needed
// (tests/native). A publish and its observe are one pair; relaxing either side breaks it.
#pragma once

#include "core/plan.h"

#define HOCKET_STRONG_0(order) order
#define HOCKET_STRONG_1(order) __ATOMIC_RELAXED
#define HOCKET_PICK_(relaxed, order) HOCKET_STRONG_##relaxed(order)
#define HOCKET_PICK(relaxed, order) HOCKET_PICK_(relaxed, order)
#ifndef HOCKET_RELAX_FILLED_PUBLISH
#define HOCKET_RELAX_FILLED_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_FILLED_OBSERVE
#define HOCKET_RELAX_FILLED_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_FREED_PUBLISH
#define HOCKET_RELAX_FREED_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_FREED_OBSERVE
#define HOCKET_RELAX_FREED_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_SEMAPHORE_PUBLISH
#define HOCKET_RELAX_SEMAPHORE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_SEMAPHORE_OBSERVE
#define HOCKET_RELAX_SEMAPHORE_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_HEADER_PUBLISH
#define HOCKET_RELAX_HEADER_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_HEADER_OBSERVE
#define HOCKET_RELAX_HEADER_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_STATE_PUBLISH
#define HOCKET_RELAX_STATE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_STATE_OBSERVE
#define HOCKET_RELAX_STATE_OBSERVE 0
#endif
#ifndef HOCKET_RELAX_DONE_PUBLISH
#define HOCKET_RELAX_DONE_PUBLISH 0
#endif
#ifndef HOCKET_RELAX_DONE_OBSERVE
#define HOCKET_RELAX_DONE_OBSERVE 0
#endif

namespace hocket {

// The call header: its fields, and all that its rank did in earlier calls. Also part of going to sleep.
inline void publish_header(u64* call, u64 value) {  // pairs with observe_header
    __atomic_store_n(call, value, HOCKET_PICK(HOCKET_RELAX_HEADER_PUBLISH, __ATOMIC_SEQ_CST));
}
inline u64 observe_header(const u64* call) {  // pairs with publish_header
    return __atomic_load_n(call, HOCKET_PICK(HOCKET_RELAX_HEADER_OBSERVE, __ATOMIC_SEQ_CST));
}

// The end of a call in two rounds: what a rank has read and written in buffers of others. Part of going to sleep too.
inline void publish_done(u64* done, u64 call) {  // pairs with observe_done
    __atomic_store_n(done, call, HOCKET_PICK(HOCKET_RELAX_DONE_PUBLISH, __ATOMIC_SEQ_CST));
}
inline u64 observe_done(const u64* done) {  // pairs with publish_done
    return __atomic_load_n(done, HOCKET_PICK(HOCKET_RELAX_DONE_OBSERVE, __ATOMIC_SEQ_CST));
}

// Why a rank failed or left: `culprit` and `text`. Looked for between sleeps: a lost wake-up only costs one.
inline void publish_state(u64* state, u64 value) {  // pairs with observe_state
    __atomic_store_n(state, value, HOCKET_PICK(HOCKET_RELAX_STATE_PUBLISH, __ATOMIC_RELEASE));
}
inline u64 observe_state(const u64* state) {  // pairs with publish_state
    return __atomic_load_n(state, HOCKET_PICK(HOCKET_RELAX_STATE_OBSERVE, __ATOMIC_ACQUIRE));
}

}  // namespace hocket
