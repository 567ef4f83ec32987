#include "python/flight.h"

#include <nanobind/stl/vector.h>
#include <nanobind/typing.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

struct Callback {
    std::shared_ptr<Flight> flight;
    nb::object handle, callee;
};

// Where threads wait for calls in the background, all at one place: a thread may wait for several. `callbacks` and
// whether a thread is there for them are used with the GIL; `asked` counts them.
struct Landing {
    std::mutex lock;
    std::condition_variable ended;
    std::vector<Callback> callbacks;
    bool called = false;
    u64 asked = 0;
};

// A child after fork has one of its own: in its parent, another thread may have held the lock.
Landing* landing = [] {
    ::pthread_atfork(nullptr, nullptr, [] { landing = new Landing; });
    return new Landing;
}();

// Those in queues, oldest first, whoever holds them: until they have ended, they keep what they use.
std::vector<std::shared_ptr<Flight>>& all_queued() {
    static auto* const all = new std::vector<std::shared_ptr<Flight>>;  // never destroyed: Python may be gone by then
    return *all;
}

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

void Flight::make_way(Member& member) {
    sweep();
    if (member.posted != nullptr) member.posted->shared_from_this()->complete(0);
}

void Flight::queue() {
    make_way(member());
    if (Flight* const before = member().posted) before->hand_over();  // calls have one order
    ++member().flights;
    hand_over();
}

void Flight::hand_over(bool wake) {
    Member& used = member();
    used.posted = nullptr;
    job_.body = [this, &used] {
        {
            using Lock = std::unique_lock<Busy>;
            const Lock held = used.busy.is_mine() ? Lock(used.busy, std::adopt_lock) : Lock(used.busy);  // by `help`
            outcome_ = body_(*used.communicator);
        }
        {
            const std::lock_guard<std::mutex> held(landing->lock);
            --used.flights;
            ended_ = true;
        }
        landing->ended.notify_all();
    };
    try {
        all_queued().push_back(shared_from_this());
        used.queue->submit(job_, wake);
    } catch (const std::exception& error) {
        std::erase(all_queued(), shared_from_this());
        --used.flights;
        outcome_ = {Fault::kDead, 0, "had no thread"};
        ended_ = true;
        job_.body = nullptr;
        owner_.attr("_no_thread")(error.what());
        throw std::runtime_error("the lack of a thread did not raise");
    }
}

// Completes a posted call once all ranks have entered it, or this one has left: then nothing is left to wait for. Looks
// so many times.
bool Flight::complete(u32 spins) {
    Communicator& communicator = *member().communicator;
    while (!communicator.control().all_entered() && !communicator.control().dead()) {
        if (spins-- == 0) return false;
        relax();
    }
    Member& used = member();
    {
        const std::lock_guard<Busy> held(used.busy);
        outcome_ = body_(communicator);
    }
    used.posted = nullptr;
    --used.flights;
    ended_ = true;
    release();
    return true;
}

bool Flight::done() {
    if (posted() && !complete(0)) abandon();  // the queue's thread also notices what goes wrong
    return is_over();
}

bool Flight::is_over() {
    if (!member_) return true;
    if (!ended_ && member().queue == nullptr) {
        outcome_ = {Fault::kDead, 0, "is another process"};
        ended_ = true;
    }
    if (!ended_) return false;
    release();
    return true;
}

// Lets go of what the call used. The queue is about to be done with the job; nobody else uses it.
void Flight::release() {
    const nb::object member = std::move(member_);  // what ends here may run Python, and so this
    if (!member) return;
    Queue* const queue = nb::inst_ptr<Member>(member)->queue.get();
    if (job_.body && queue != nullptr) queue->wait(job_);
    const nb::object owner = outcome_.fault == Fault::kNone ? std::move(owner_) : nb::object();
    const Body body = std::move(body_);  // goes before the owner, which keeps what it refers to
}

// Unless another thread is in a call: then it would wait for that where no signal is heard.
void Flight::help() {
    const nb::object held = member_;  // `release` on another thread lets go of it
    Member& used = member();
    if (!used.busy.try_lock()) return used.queue->wake();  // it may sleep
    {
        const Gil gil;
        used.queue->help(job_);
        if (used.busy.is_mine()) used.busy.unlock();  // there was nothing to do
    }
    if (PyErr_Occurred()) throw nb::python_error();
}

// Waits until it has ended. For a posted call it first spins, as a call that is made here does before it yields: no
// other thread takes part then. Where a signal handler raises meanwhile, the communicator ends, as in any call.
void Flight::finish() {
    if (!is_over()) must_not_interrupt();
    if (posted()) {
        const WaitPolicy& waiting = member().communicator->control().waiting();
        const u64 spins = std::min<u64>(waiting.patience.spins, waiting.visits_between_looks);
        if (!complete(u32(spins))) hand_over(false);
    }
    try {
        if (!is_over()) help();
        if (!is_over()) await([this] { return ended_.load(); });
    } catch (nb::python_error&) {
        if (!is_over()) member().fail(member().communicator->rank(), "was interrupted");
        throw;
    }
    is_over();
}

nb::object Flight::wait() {
    finish();
    sweep();
    if (outcome_.fault != Fault::kNone) owner_.attr("_raise")(outcome_);
    return result_;
}

void Flight::call_back(nb::object handle, nb::object callback) {
    if (done()) {  // else it has been handed over, and does not rest until somebody asks
        callback(handle);
        return;
    }
    landing->callbacks.push_back({shared_from_this(), std::move(handle), callback});
    {
        const std::lock_guard<std::mutex> held(landing->lock);
        ++landing->asked;
    }
    landing->ended.notify_all();
    if (landing->called) return;
    landing->called = true;  // the thread may end before `start` returns
    try {
        nb::module_::import_("hocket.runtime.callbacks").attr("start")();
    } catch (nb::python_error&) {
        landing->called = false;
        std::erase_if(landing->callbacks,
                      [&](const Callback& other) { return other.flight.get() == this && other.callee.is(callback); });
        throw;
    }
}

// With each round of waiting it also comes to know of those that were asked for meanwhile.
nb::list Flight::ready_callbacks() {
    nb::list ready;
    while (ready.size() == 0 && !landing->callbacks.empty()) {
        const std::vector<Callback> pending = landing->callbacks;
        const u64 asked = landing->asked;
        await([&] {
            const auto ended = [](const Callback& callback) { return callback.flight->ended_.load(); };
            return landing->asked != asked || std::any_of(pending.begin(), pending.end(), ended);
        });
        std::vector<Callback> over;  // what ends with these may run Python, and so this
        std::erase_if(landing->callbacks, [&](const Callback& callback) {
            const bool ended = callback.flight->ended_;  // once: it may end now
            if (ended) over.push_back(callback);
            return ended;
        });
        for (const Callback& callback : over) {
            callback.flight->done();
            ready.append(nb::module_::import_("functools").attr("partial")(callback.callee, callback.handle));
        }
    }
    if (ready.size() == 0) landing->called = false;
    return ready;
}

void Flight::abandon() {
    if (!posted()) return;
    try {
        hand_over();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("a call in the background");
    }
}

void Flight::land(Member& member) {
    if (member.interrupts()) return;  // what it would wait for ends once it has returned
    if (member.posted != nullptr) member.posted->shared_from_this()->finish();
    for (const std::shared_ptr<Flight>& flight : std::vector(all_queued()))  // which may change meanwhile
        if (flight->member_ && &flight->member() == &member) flight->finish();
    sweep();
}

void Flight::sweep() {
    std::vector<std::shared_ptr<Flight>> ended;  // what ends with these may run Python, and so this
    std::erase_if(all_queued(), [&](const std::shared_ptr<Flight>& flight) {
        const bool over = flight->ended_ || !flight->member_ || flight->member().queue == nullptr;
        if (over) ended.push_back(flight);
        return over;
    });
    for (const std::shared_ptr<Flight>& flight : ended) flight->done();
}

u64 Flight::wait_any(const std::vector<Handle*>& handles) {
    std::vector<std::shared_ptr<Flight>> flights;
    for (const Handle* handle : handles) {
        if (handle == nullptr) throw nb::type_error("a handle is None");
        flights.push_back(handle->flight);
    }
    for (u64 f = 0; f < flights.size(); ++f)
        if (flights[f]->done()) return f;
    for (const std::shared_ptr<Flight>& flight : flights) flight->must_not_interrupt();
    u64 found = 0;
    await([&] {
        found = u64(std::ranges::find_if(flights, [](const auto& f) { return f->ended_.load(); }) - flights.begin());
        return found != flights.size();
    });
    return found;
}

Handle queued(nb::object member, nb::object owner, Flight::Body body) {
    ++nb::cast<Member&>(member).calls;
    auto flight = std::make_shared<Flight>(std::move(member), std::move(owner), nb::none(), std::move(body));
    flight->queue();
    return Handle(std::move(flight));
}

void bind_flight(nb::module_& module) {
    module.attr("Result") = nb::type_var("Result");
    nb::class_<Handle>(module, "Handle", nb::is_generic(), nb::sig("class Handle(typing.Generic[Result])"),
                       "A call that goes on in the background. Its arrays are the call's until it is done.")
        .def(
            "done", [](Handle& handle) { return handle.flight->done(); },
            "Whether the call has ended: ``wait`` does not wait any more. Does not raise.")
        .def(
            "wait", [](Handle& handle) { return handle.flight->wait(); }, nb::sig("def wait(self) -> Result"),
            "Wait for the end of the call. Returns and raises what the call would, as often as it is asked.")
        .def(
            "add_done_callback",
            [](nb::handle_t<Handle> handle, nb::object callback) {
                if (!PyCallable_Check(callback.ptr())) throw nb::type_error("a callback is callable");
                nb::inst_ptr<Handle>(handle)->flight->call_back(nb::borrow(handle), std::move(callback));
            },
            "callback"_a.none(),
            nb::sig("def add_done_callback(self, callback: Callable[[Handle[Result]], object]) -> None"),
            R"(Have ``callback`` called with this handle once the call has ended, as ``concurrent.futures`` does.

At once if it has ended, else on a thread that is there for callbacks, where what it raises is logged. Callbacks
that have not been called when the process ends are not called.)");
    module.def("ready_callbacks", &Flight::ready_callbacks,
               nb::sig("def ready_callbacks() -> list[Callable[[], object]]"),
               "Wait for callbacks of calls that have ended. None: there are no more.");
    module.def("let_go", &Flight::sweep, "Forgets the calls in the background that have ended.");
    module.def("wait_any", &Flight::wait_any, "handles"_a,
               nb::sig("def wait_any(handles: Sequence[Handle[Result]]) -> int"));
}

}  // namespace hocket
