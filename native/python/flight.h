// Calls in the background.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>
#include <memory>

#include "python/member.h"

namespace hocket {

struct Handle;

// A call that is made in the background, and what it uses until it has ended. It is posted, or a job in the member's
// queue. Of a posted call, whose messages fit the header, the others have all that they need of this rank, so it can
// rest until somebody asks for its result or the next call comes. A member has one posted call at most. All methods are
// called with the GIL.
class Flight : public std::enable_shared_from_this<Flight> {
  public:
    // Makes the call, or completes one that is posted. Uses nothing of Python, and is destroyed with the GIL.
    using Body = std::function<Outcome(Communicator&)>;

    // `result` is what the call returns; `owner._raise(outcome)` raises what went wrong.
    Flight(nanobind::object member, nanobind::object owner, nanobind::object result, Body body)
        : member_(std::move(member)),
          owner_(std::move(owner)),
          result_(std::move(result)),
          body_(std::move(body)) {}
    Flight& operator=(Flight&&) = delete;

    // `begin` posts it; false where it could not.
    template <class Begin> bool post(Begin begin) {
        Member& used = member();
        const std::unique_lock<Busy> lock(used.busy, std::try_to_lock);
        if (!lock.owns_lock() || used.flights != 0 || !begin()) return false;
        ++used.flights;  // before another thread may enter a call
        used.posted = this;
        return true;
    }
    // Gives it to the member's queue. Throws nanobind::python_error where there is no thread for it.
    void queue();

    // Whether it has ended. If not, it goes on without the caller.
    bool done();
    // Has `callback` called with `handle`, the one of this, once it has ended: at once where it has, else by a thread
    // of Python's (hocket/runtime/callbacks.py). Throws nanobind::python_error where that cannot be started.
    void call_back(nanobind::object handle, nanobind::object callback);
    // For that thread: waits for callbacks of calls that have ended. None: there are no more.
    static nanobind::list ready_callbacks();
    // Makes the call here, if its turn has come and no thread makes it. Throws nanobind::python_error for a call that
    // has failed, in a signal handler that interrupts a call, and where one raises, which ends the communicator.
    nanobind::object wait();
    // Nobody holds it any more: it goes on.
    void abandon();

    // Makes way for the next call of a member: completes a posted one if all ranks have entered it.
    static void make_way(Member& member);
    // Waits for all of a member.
    static void land(Member& member);
    // Waits until one of several has ended: the first such.
    static u64 wait_any(const std::vector<Handle*>& handles);
    // Forgets those that have ended.
    static void sweep();

  private:
    Member& member() const { return *nanobind::inst_ptr<Member>(member_); }
    bool posted() const { return member_ && member().posted == this; }
    bool is_over();
    void hand_over(bool wake = true);
    bool complete(u32 spins);
    void must_not_interrupt() const {
        if (member().interrupts()) owner_.attr("_raise")(Outcome{Fault::kBusy, 0});
    }
    void help();
    void finish();
    void release();

    nanobind::object member_;  // null once the call has ended
    nanobind::object owner_, result_;
    Body body_;
    Queue::Job job_;
    std::atomic<bool> ended_{false};
    Outcome outcome_;
};

// What Python holds of it.
struct Handle {
    explicit Handle(std::shared_ptr<Flight> flight) : flight(std::move(flight)) {}
    Handle(Handle&&) = default;
    ~Handle() {
        if (flight != nullptr) flight->abandon();
    }

    std::shared_ptr<Flight> flight;
};

// Begins a call in the member's queue, which returns nothing.
Handle queued(nanobind::object member, nanobind::object owner, Flight::Body body);

// Makes a call without the GIL, and not in two threads at once, nor before calls in the background have ended. Returns
// what went wrong. Throws nanobind::python_error where a signal handler raised.
template <class Body> std::optional<Outcome> alone(Member& member, Body body) {
    Outcome outcome;
    ++member.calls;
    {
        const Gil gil;
        std::unique_lock<Busy> lock(member.busy, std::try_to_lock);
        outcome = lock.owns_lock() && member.flights == 0 ? body() : Outcome{Fault::kBusy, 0};
    }
    if (outcome.fault == Fault::kBusy) --member.calls;
    if (PyErr_Occurred()) throw nanobind::python_error();
    if (outcome.fault == Fault::kNone) return std::nullopt;
    return outcome;
}

}  // namespace hocket
