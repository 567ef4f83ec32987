#include "python/flight.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

// Where threads wait for calls in the background, all at one place: a thread may wait for several.
struct Landing {
    std::mutex lock;
    std::condition_variable ended;
};

// A child after fork has one of its own: in its parent, another thread may have held the lock.
Landing* landing = [] {
    ::pthread_atfork(nullptr, nullptr, [] { landing = new Landing; });
    return new Landing;
}();

constexpr auto kSignals = std::chrono::milliseconds(50);  // how long a signal may have to wait

// Waits without the GIL until `over` says so, which it is asked with the lock, after each call that has ended.
template <class Over> void await(Over over) {
    for (bool is_over = false; !is_over;) {
        {
            const Gil gil;
            std::unique_lock<std::mutex> held(landing->lock);
            is_over = landing->ended.wait_for(held, kSignals, over);
        }
        if (!is_over && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

}  // namespace

std::optional<Outcome> told(Outcome outcome) {
    if (outcome.fault == Fault::kNone && outcome.variant == kBuffered) return std::nullopt;
    return outcome;
}

Flight::Flight(nb::object member, std::function<Outcome(Communicator&)> body, nb::object result)
    : member_(std::move(member)),
      result_(std::move(result)) {
    Member& used = *nb::inst_ptr<Member>(member_);
    job_.body = [this, &used, body = std::move(body)] {
        {
            const std::lock_guard<Busy> held(used.busy);
            outcome_ = body(*used.communicator);
        }
        {
            const std::lock_guard<std::mutex> held(landing->lock);
            --used.flights;
            ended_ = true;
        }
        landing->ended.notify_all();
    };
    ++used.flights;
    try {
        used.queue->submit(job_);
    } catch (const std::system_error& error) {
        --used.flights;
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
}

Flight::~Flight() {
    if (!done()) {
        const Gil gil;
        std::unique_lock<std::mutex> held(landing->lock);
        landing->ended.wait(held, [this] { return ended_.load(); });
    }
    land();
}

bool Flight::done() {
    if (!member_) return true;
    if (nb::inst_ptr<Member>(member_)->queue == nullptr) outcome_ = {Fault::kDead, 0, "is another process"};
    else if (!ended_) return false;
    land();
    return true;
}

// Lets go of what the call used. The queue is about to be done with the job; nobody else uses it.
void Flight::land() {
    const nb::object member = std::move(member_);  // what ends here may run Python, and so this
    if (!member) return;
    Queue* const queue = nb::inst_ptr<Member>(member)->queue.get();
    while (queue != nullptr && !queue->wait(job_, 1)) continue;
    const std::function<void()> body = std::move(job_.body);
}

std::optional<Outcome> Flight::wait() {
    if (!done()) await([this] { return ended_.load(); });
    done();
    return told(outcome_);
}

u64 Flight::wait_any(const std::vector<Flight*>& flights) {
    u64 found = 0;
    const auto over = [&] {
        for (found = 0; found < flights.size(); ++found)
            if (flights[found]->ended_) return true;
        return false;
    };
    for (u64 f = 0; f < flights.size(); ++f)
        if (flights[f]->done()) return f;
    await(over);
    return found;
}

void bind_flight(nb::module_& module) {
    nb::class_<Flight>(module, "Flight")
        .def("done", &Flight::done)
        .def("wait", &Flight::wait)
        .def_prop_ro("result", &Flight::result);
    module.def("wait_any", &Flight::wait_any, "flights"_a);
}

}  // namespace hocket
