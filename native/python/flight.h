// Calls in the background.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "python/member.h"

namespace hocket {

// What Python is told of a call: nothing, where all went well and through slots.
std::optional<Outcome> told(Outcome outcome);

// A call that is made in the background. It holds what the call uses until it has seen that the call has ended.
class Flight {
  public:
    // `body` makes the call, on the thread of the member's queue, and uses nothing of Python there; it is destroyed
    // with the GIL. `result` is what the call returns.
    Flight(nanobind::object member, std::function<Outcome(Communicator&)> body,
           nanobind::object result = nanobind::none());
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

    bool done();
    // Throws nanobind::python_error where a signal handler raises.
    std::optional<Outcome> wait();
    nanobind::object result() const { return result_; }

    // Waits until one of several has ended: the first such.
    static u64 wait_any(const std::vector<Flight*>& flights);

  private:
    void land();

    nanobind::object member_, result_;  // the member is null once the call has ended
    Queue::Job job_;
    std::atomic<bool> ended_{false};
    Outcome outcome_;
};

void bind_flight(nanobind::module_& module);

}  // namespace hocket
