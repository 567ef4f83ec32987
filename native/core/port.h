// Ports: how the interpreter sends and receives.
//
// A connection carries messages from one rank to another, in order, and loses none. Each of the two has an end of it,
// private to the thread that runs its thread block for the length of a call. A port is a type of such ends: how
// messages get across, and how many can be on their way, is the transport's business.
//
//   the sender                                          the receiver
//   end.try_acquire()    is there a place to fill?      end.try_receive()    is the next message there?
//   end.data()           the place                      end.data()           the message
//   end.commit(device, bytes)  it is filled: send it    end.release(device)  it has been read: its place is free
//
// `device` is that of the execution (interpreter.h): a transport in shared memory wakes the peer through it.
//
// A port promises:
// - `try_...` takes nothing: it may be asked any number of times, and a yes stays one until commit or release.
// - None of these waits, and none fails. A transport that loses its peer has `try_...` say no, and the control plane
//   finds out why.
// - The receiver reads what lay in the place at commit, and until it releases the message nobody stores to it.
// - An end has at least `slots` places (plan.h), each of width * tile bytes, in a multicast by the width of its first
//   end: the proof that nothing deadlocks needs them. A message is the first `bytes` of the place: what comes behind
//   them means nothing. One of no bytes counts as any other.
// - What was committed or released gets across without another visit: after its last step nobody visits an end again.
//   A transport that must be driven is driven by who waits (protocol/nodes.h), until nothing is left to send.
//
// A port may rely on:
// - `commit` follows a `try_acquire` that said yes, and `release` such a `try_receive`. `data` is called only between
//   the two, and is valid from one to the other; of an EagerPort, at any time. A step names an end once at most.
// - One thread at a time uses an end. Several threads at once use ends of several connections to one peer.
// - All ranks have done all steps of a call before any commits in the next one. So all messages have been received and
//   released by then, and counts of them, which may outlive the call, are equal at both ends. Where a release arrives
//   later than it is made, a sender must not leave the call before it has (as with Network: FifoPath::finish).
// - The ends of a rank are an array in the order of its plan. In a multicast, the ends of further readers follow.
#pragma once

#include "core/plan.h"

namespace hocket {

template <class A, class B> constexpr bool kSame = false;
template <class A> constexpr bool kSame<A, A> = true;
template <class A, class B>
concept Is = kSame<A, B>;

// `peer`: the rank at the other end. An end may send to several readers at once: the plan then names the first of those
// ends, and the port sees to the others (plan.h: multicasts). `awaited`: of an end that has no place to fill, the
// reader that is to release one.
template <class P, class Device>
concept Port = requires(P& end, const P& fixed, Device& device, u64 bytes) {
    { end.try_acquire() } -> Is<bool>;
    { end.try_receive() } -> Is<bool>;
    { fixed.data() } -> Is<char*>;
    end.commit(device, bytes);
    end.release(device);
    { end.awaited() } -> Is<u32>;
    { fixed.peer } -> Is<const u32&>;
};

// What a port may be able to do besides. Whoever makes an execution sees to it that the plan needs no more.
//
// Zero-copy: a message may lie in a buffer of one of the two ranks. It is committed and released as any other, and
// `all_released` says whether all that was committed has been released: the sender may use its buffers again.
template <class P>
concept ZeroCopyPort = requires(P& end) {
    { end.all_released() } -> Is<bool>;
};

// Eager: `open` makes the end of a message that is there, or has its place, all through the call, so that the end is
// always ready. Calls in one round need it, and those in two, where `message` is null.
template <class P>
concept EagerPort = requires(char* message, bool sends, u32 peer) {
    { P::open(message, sends, peer) } -> Is<P>;
};

}  // namespace hocket
