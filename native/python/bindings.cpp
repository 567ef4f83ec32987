// The Python module hocket._native. Thin: arguments are checked in Python (hocket/runtime).
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <variant>

#include "policy/caches.h"
#include "python/bindings.h"
#include "python/prepared_call.h"
#include "transport/arena.h"
#include "transport/cma.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

// Texts that ranks tell each other are UTF-8: what else a string of Python may hold, lone surrogates, is escaped, and
// what a rank hears it can always show.
std::string to_utf8(nb::str text) {
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
    if (!bytes) throw nb::python_error();
    return {PyBytes_AS_STRING(bytes.ptr()), size_t(PyBytes_GET_SIZE(bytes.ptr()))};
}
nb::str from_utf8(const std::string& text) {
    nb::str found = nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace"));
    if (!found) throw nb::python_error();
    return found;
}

int loan_buffer(PyObject* self, Py_buffer* view, int flags) {
    const Loan& loan = *nb::inst_ptr<Loan>(self);
    return PyBuffer_FillInfo(view, self, loan.data(), Py_ssize_t(loan.bytes()), 0, flags);
}

PyType_Slot loan_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(loan_buffer)}, {0, nullptr}};

#define HOCKET_NAME(field) #field,

void bind_constants(nb::module_& m) {
    m.attr("PLAN_MAGIC") = kPlanMagic;
    nb::dict layout;
    layout["header"] = names({HOCKET_PLAN_HEADER(HOCKET_NAME)});
    layout["block"] = names({HOCKET_PLAN_BLOCK(HOCKET_NAME)});
    layout["step"] = names({HOCKET_PLAN_STEP(HOCKET_NAME)});
    layout["operand"] = names({HOCKET_PLAN_OPERAND(HOCKET_NAME)});
    layout["wait"] = names({HOCKET_PLAN_WAIT(HOCKET_NAME)});
    layout["connection"] = names({HOCKET_PLAN_CONNECTION(HOCKET_NAME)});
    layout["multicast"] = names({HOCKET_PLAN_MULTICAST(HOCKET_NAME)});
    m.attr("PLAN_LAYOUT") = layout;
    m.attr("MOST_READERS") = kMostReaders;
    m.attr("FILE_BYTES") = kFileBytes;
    m.attr("PLANS") = kPlans;
    m.attr("STAMP") = kStamp;
    m.attr("ADOPTED") = kAdopted;
    m.attr("SPLIT") = kSplit;
    m.attr("ADOPT") = kAdopt;
    m.attr("USE") = kUse;
    m.attr("LOOK") = kLook;
    m.attr("WITNESS") = witness_place();
    m.def("can_attach", &may_access, "process"_a, "witness"_a,
          "Whether this process may read what another has at its WITNESS, and store it there again.");
    m.def("reserve_control", &reserve_control, "descriptor"_a, "ranks"_a, "on_several_nodes"_a,
          "Make sure that there is memory for the control region. Returns 0 or an errno.");
    m.attr("MOST_CONNECTIONS") = kMostWindows;
    m.attr("PROTOCOL") = std::to_string(kPlanMagic) + "." + std::to_string(sizeof(RankBlock)) + "." +
                         std::to_string(offsetof(CallHeader, text)) + "." + std::to_string(kTypes) + "." +
                         std::to_string(kOperators);
}

void bind_caches(nb::module_& m) {
    nb::class_<Caches::Level>(m, "CacheLevel", "The bytes of one cache, and how many there are.")
        .def_ro("bytes", &Caches::Level::bytes)
        .def_ro("instances", &Caches::Level::instances);
    nb::class_<Caches>(m, "Caches")
        .def_ro("second", &Caches::second)
        .def_ro("third", &Caches::third)
        .def("bytes", &Caches::bytes, "ranks"_a, "What those of so many ranks hold together (YHCCL, section 4).");
    m.def("find_caches", &find_caches, "processors"_a, "cpus"_a, "Those of so many processors.");
}

constexpr const char* kScopes[] = {"common", "local", "fixed"};  // by Scope

void bind_tunables(nb::module_& m) {
    nb::class_<Tunable>(m, "Tunable", "A tuned number, with its default on this processor.")
        .def_ro("name", &Tunable::name)
        .def_prop_ro("unit", [](const Tunable& row) { return row.unit->name; })
        .def_prop_ro("least", [](const Tunable& row) { return row.unit->least; })
        .def_prop_ro("most", [](const Tunable& row) { return row.unit->most; })
        .def_prop_ro(
            "scope", [](const Tunable& row) { return kScopes[u32(row.scope)]; },
            nb::sig("def scope(self) -> typing.Literal['common', 'local', 'fixed']"), "Who must have the same value.")
        .def_ro("value", &Tunable::value)
        .def_ro("source", &Tunable::source)
        .def_ro("reason", &Tunable::reason);
    m.attr("TUNABLES") = nb::cast(std::vector<Tunable>(tunables().begin(), tunables().end()));
}

void bind_outcome(nb::module_& m) {
    nb::enum_<Fault>(m, "Fault")
        .value("NONE", Fault::kNone)
        .value("MISMATCH", Fault::kMismatch)
        .value("REFUSED", Fault::kRefused)
        .value("DECLINED", Fault::kDeclined)
        .value("MEMORY", Fault::kMemory)
        .value("PEER", Fault::kPeer)
        .value("TIMEOUT", Fault::kTimeout)
        .value("INTERRUPTED", Fault::kInterrupted)
        .value("DEAD", Fault::kDead)
        .value("BUSY", Fault::kBusy);

    nb::class_<Stall>(m, "Stall", "Where a call stood, and the rank that it waited for.")
        .def_ro("block", &Stall::block)
        .def_ro("step", &Stall::step)
        .def_ro("peer", &Stall::peer);

    nb::class_<Outcome>(m, "Outcome")
        .def_ro("fault", &Outcome::fault)
        .def_ro("rank", &Outcome::rank)
        .def_prop_ro(
            "variant", [](const Outcome& outcome) { return u32(outcome.variant); },
            "How the call went: 0 through slots or eagerly, else 1 + that of VARIANTS.")
        .def_prop_ro("text", [](const Outcome& outcome) { return from_utf8(outcome.why().text); })
        .def_prop_ro("waited", [](const Outcome& outcome) { return outcome.why().waited; })
        .def_prop_ro("stall", [](const Outcome& outcome) { return outcome.why().stall; })
        .def_prop_ro(
            "said", [](const Outcome& outcome) { return outcome.why().said; },
            "With MISMATCH: what every rank called, in rank order.");

    nb::class_<CallHeader>(m, "CallHeader")
        .def_prop_ro("digest", [](const CallHeader& header) { return header.terms.digest; })
        .def_prop_ro("n", [](const CallHeader& header) { return header.terms.n; })
        .def_prop_ro("tile", [](const CallHeader& header) { return header.terms.tile; })
        .def_prop_ro("type", [](const CallHeader& header) { return header.terms.type; })
        .def_prop_ro(
            "element", [](const CallHeader& header) { return header.terms.element; },
            "A hash of what elements are whose type has no number, or of what is made of a sum.")
        .def_prop_ro("op", [](const CallHeader& header) { return header.terms.op; })
        .def_prop_ro("counts", [](const CallHeader& header) { return header.terms.counts; })
        .def_prop_ro("counted", [](const CallHeader& header) { return (header.terms.flags & kCounted) != 0; })
        .def_prop_ro("pairwise", [](const CallHeader& header) { return (header.terms.flags & kPairwise) != 0; })
        .def_prop_ro("size_known", [](const CallHeader& header) { return !(header.terms.flags & kSizeUnknown); })
        .def_prop_ro(
            "text", [](const CallHeader& header) { return from_utf8(header.text); },
            "The schedule's name; on further lines the counts, and what ``element`` is a hash of.");
}

void bind_events(nb::module_& m) {
    nb::class_<CallEvent>(m, "CallEvent",
                          "A call that has ended. Times are nanoseconds of CLOCK_MONOTONIC, sizes bytes.")
        .def_ro("number", &CallEvent::number, "The same on all ranks.")
        .def_ro("plan", &CallEvent::plan, "The number of a plan; BARRIER; 0: an exchange of words.")
        .def_ro("begin", &CallEvent::begin)
        .def_ro("agreed", &CallEvent::agreed, "When all ranks had entered it; 0 if it was not carried out.")
        .def_ro("end", &CallEvent::end)
        .def_ro("unit", &CallEvent::unit)
        .def_ro("tile", &CallEvent::tile)
        .def_ro("tiles", &CallEvent::tiles)
        .def_ro("threads", &CallEvent::threads)
        .def_ro("rounds", &CallEvent::rounds)
        .def_ro("streams", &CallEvent::streams)
        .def_prop_ro("fault", [](const CallEvent& event) { return Fault(event.fault); });

    nb::class_<StepEvent>(m, "StepEvent", "A step on one tile, in a call of this number.")
        .def_ro("call", &StepEvent::call)
        .def_ro("begin", &StepEvent::begin)
        .def_ro("end", &StepEvent::end)
        .def_ro("tile", &StepEvent::tile)
        .def_ro("bytes", &StepEvent::bytes, "The length of its operands in this tile.")
        .def_ro("block", &StepEvent::block)
        .def_ro("step", &StepEvent::step);
}

struct Recorded {
    std::vector<CallEvent> calls;
    std::vector<std::vector<StepEvent>> steps;
    u64 dropped_calls, dropped_steps;
};

void bind_recorder(nb::module_& m) {
    m.attr("BARRIER") = ControlPlane::kBarrier;
    nb::class_<Recorded>(m, "Recorded", "What there was room for, the steps by thread, and how many others there were.")
        .def_ro("calls", &Recorded::calls)
        .def_ro("steps", &Recorded::steps)
        .def_ro("dropped_calls", &Recorded::dropped_calls)
        .def_ro("dropped_steps", &Recorded::dropped_steps);
    nb::class_<Recorder>(m, "Recorder",
                         "What a communicator does. Calls and steps that do not fit are counted as dropped.")
        .def(nb::init<u32, u64, u64>(), "threads"_a, "most_calls"_a, "most_steps"_a, "``most_steps``: of each thread.")
        .def("read", [](const Recorder& recorder) {
            const Clock& clock = recorder.clock;
            const Clock::Pair now = clock.now();
            Recorded found{recorder.calls.events(), {}, recorder.calls.dropped(), 0};
            for (CallEvent& call : found.calls)
                for (u64* ticks : {&call.begin, &call.agreed, &call.end})
                    if (*ticks != 0) *ticks = clock.nanoseconds(*ticks, now);
            for (const Tape<StepEvent>& tape : recorder.steps) {
                found.steps.push_back(tape.events());
                found.dropped_steps += tape.dropped();
                for (StepEvent& step : found.steps.back())
                    for (u64* ticks : {&step.begin, &step.end}) *ticks = clock.nanoseconds(*ticks, now);
            }
            return found;
        });
}

void bind_plan(nb::module_& m) {
    nb::class_<Plan>(m, "Plan").def_prop_ro("number", &Plan::number, "No other plan of its communicator has it.");

    nb::class_<Outlook>(m, "Outlook", "How a call would run. Sizes in bytes; ``slots`` of a connection.")
        .def_prop_ro("tile", [](const Outlook& outlook) { return outlook.geometry.tile; })
        .def_prop_ro("tiles", [](const Outlook& outlook) { return outlook.geometry.tiles; })
        .def_ro("slots", &Outlook::slots)
        .def_ro("one_round", &Outlook::one_round, "Whether it is eager, where no rank offers its arrays.")
        .def_ro(
            "attached_bytes", &Outlook::attached_bytes,
            "The fewest of a rank's larger buffer, in a cache and in huge pages, with which others may attach to it.")
        .def_ro("touched", &Outlook::touched, "On all ranks.")
        .def_ro("streams", &Outlook::streams, "Whether it stores non-temporally, as no cache holds what it touches.")
        .def_ro("threads", &Outlook::threads);

    nb::class_<Units>(m, "Units")
        .def(nb::init<std::vector<u64>, std::vector<u64>, std::optional<u64>, std::string>(), "input"_a, "output"_a,
             "digest"_a.none(), "text"_a,
             "Bounds of units in bytes; ``digest``: of all units of all ranks, None where a rank knows only its own.");
}

void bind_arena(nb::module_& m) {
    nb::class_<Arena>(m, "Arena")
        .def(nb::init<int>(), "descriptor"_a, "Takes the descriptor over.")
        .def_prop_ro("descriptor", &Arena::descriptor)
        .def(
            "allocate", [](Arena& arena, u64 bytes) { return new Loan(arena, bytes); }, "bytes"_a,
            nb::keep_alive<0, 1>())
        .def("forked", &Arena::forked);

    nb::class_<Loan>(m, "Loan", nb::type_slots(loan_slots));
}

// Calls in which nothing moves.
void bind_calls(nb::class_<Member>& member) {
    member
        .def(
            "barrier",
            [](Member& member, double timeout) {
                return alone(member, [&] { return member.communicator->barrier(timeout); });
            },
            "timeout"_a, "``timeout``: 0 for that of the communicator.")
        .def(
            "exchange",
            [](Member& member, nb::str word, u64 digest) -> std::variant<Outcome, nb::typed<nb::list, nb::str>> {
                std::vector<std::string> words;
                const auto outcome = alone(member, [&, mine = to_utf8(word)] {
                    Outcome found = member.communicator->exchange(mine, digest);
                    if (found.fault == Fault::kNone)
                        for (u32 r = 0; r < member.communicator->size(); ++r)
                            words.emplace_back(member.communicator->control().said(r).text);
                    return found;
                });
                if (outcome) return *outcome;
                nb::typed<nb::list, nb::str> all{nb::list()};
                for (const std::string& said : words) all.append(from_utf8(said));
                return all;
            },
            "word"_a, "digest"_a, "What every rank said, in rank order. ``digest``: SPLIT, ADOPT or USE.")
        .def(
            "refuse",
            [](Member& member, nb::str why, bool declines) {
                const CallFlag how = declines ? kDeclined : kRefused;
                const auto refuse = [&, why = to_utf8(why)] { return member.communicator->control().refuse(why, how); };
                return alone(member, refuse).value();
            },
            "why"_a, "declines"_a = false)
        .def(
            "start_barrier",
            [](nb::object member, nb::object owner, double timeout) {
                return queued(std::move(member), std::move(owner),
                              [timeout](Communicator& communicator) { return communicator.barrier(timeout); });
            },
            "owner"_a, "timeout"_a, nb::sig("def start_barrier(self, owner: object, timeout: float) -> Handle[None]"))
        .def(
            "start_refusal",
            [](nb::object member, nb::object owner, nb::str why) {
                return queued(std::move(member), std::move(owner), [why = to_utf8(why)](Communicator& communicator) {
                    return communicator.control().refuse(why);
                });
            },
            "owner"_a, "why"_a, nb::sig("def start_refusal(self, owner: object, why: str) -> Handle[None]"))
        .def_ro("calls", &Member::calls, "Made so far, and the same on all ranks.")
        .def("watch", &Member::watch, "arms"_a, "From now on looks take these into account.")
        .def("next_merge", &Member::next_merge, "at"_a, "between_looks"_a,
             "The number of calls at which ranks merge at the latest, and the calls between looks until then.")
        .def_prop_ro(
            "look_ticks", [](const Member& member) { return member.merges.look_ticks; },
            "Of the look that took least: of others some is waiting.")
        .def_prop_ro(
            "tick",
            [](const Member& member) {
                const Clock& clock = member.communicator->control().clock();
                return clock.rate(clock.now()) / 1e9;
            },
            "Seconds of a tick of the clock that calls are timed with.")
        .def("land", &Flight::land, "Waits for the calls in the background.");
}

// Memory that others made. With the GIL, so that nobody looks for a place meanwhile, and not while a call goes on.
template <class Body> std::optional<Outcome> between_calls(Member& member, Body body) {
    const std::unique_lock<Busy> lock(member.busy, std::try_to_lock);
    if (!lock.owns_lock() || member.flights != 0) return Outcome{Fault::kBusy, 0};
    body(member.memory);
    return std::nullopt;
}

// What another rank has adopted, from `skip` bytes into `pages` on; released, where there are none.
struct Adoption {
    u32 rank;
    u64 place;
    std::shared_ptr<SharedPages> pages;
    u64 skip;
};

void bind_adoption(nb::module_& m, nb::class_<Member>& member) {
    nb::class_<SharedPages>(m, "SharedPages", "Pages of a file, mapped as long as this lives.")
        .def(nb::init<int, u64, u64>(), "descriptor"_a, "place"_a, "bytes"_a);
    nb::class_<Adoption>(m, "Adoption", "What another rank has adopted, or released: then there are no pages.")
        .def(nb::init<u32, u64, std::shared_ptr<SharedPages>, u64>(), "rank"_a, "place"_a,
             "pages"_a.none() = nb::none(), "skip"_a = 0);
    member
        .def(
            "holds",
            [](const Member& member, u64 address) {
                return member.memory.place(reinterpret_cast<const char*>(address)) != kNowhere;
            },
            "address"_a, "Whether it lies in memory that the other ranks can access: this rank's arena, or adopted.")
        .def(
            "adopt",
            [](Member& member, const std::vector<Adoption>& others, u64 place, u64 address, u64 bytes) {
                return between_calls(member, [&](SharedMemory& memory) {
                    for (const auto& [rank, there, pages, skip] : others)
                        if (pages) memory.adopt_of(rank, there, pages->data() + skip, pages);
                        else memory.release_of(rank, there);
                    if (bytes != 0) memory.adopt(place, reinterpret_cast<char*>(address), bytes);
                });
            },
            "others"_a, "place"_a, "address"_a, "nbytes"_a,
            "The last three are of what this rank adopts; no bytes: nothing.")
        .def(
            "release",
            [](Member& member, u64 place) {
                return between_calls(member, [&](SharedMemory& memory) { memory.release(place); });
            },
            "place"_a);
}

// What a member says of itself and the others, and how it ends.
void bind_life(nb::module_& m, nb::class_<Member>& member) {
    nb::class_<Traffic>(m, "Traffic").def_ro("loaded", &Traffic::loaded).def_ro("stored", &Traffic::stored);
    member
        .def_prop_ro(
            "network_bytes",
            [](const Member& member) {
                return member.network ? __atomic_load_n(&member.network->moved().bytes, __ATOMIC_RELAXED) : 0;
            },
            "Of messages that this rank has sent to ranks of other nodes.")
        .def(
            "traffic", [](const Member& member) { return member.communicator->traffic(); },
            "That of the kernels in all calls that have ended.")
        .def("leave",
             [](Member& member) {
                 member.communicator->control().leave(!std::unique_lock(member.busy, std::try_to_lock).owns_lock());
                 member.tell();
             })
        .def("forked", &Member::forked)
        .def(
            "ended",
            [](const Member& member, u32 rank) -> std::optional<Outcome> {
                const Outcome found = member.communicator->control().ended(rank);
                return found.fault == Fault::kNone ? std::nullopt : std::optional(found);
            },
            "rank"_a,
            "Why a rank will make no more calls, and whose fault that is; None if it may. Local: no other takes part.")
        .def(
            "fail", [](Member& member, u32 culprit, nb::str why) { member.fail(culprit, to_utf8(why)); }, "culprit"_a,
            "why"_a);
}

void bind_member(nb::module_& m) {
    nb::class_<Member> member(m, "Member");
    member
        .def(nb::init<u32, u32, int, std::vector<int>, std::vector<int>, Arena&, std::vector<pid_t>, bool, bool, u32,
                      u32, double, u32, u64, u64, bool, Recorder*, const std::map<std::string, u64>&, std::vector<u32>,
                      u64, double, double>(),
             "rank"_a, "size"_a, "descriptor"_a, "lifelines"_a, "arenas"_a, "arena"_a, "processes"_a,
             "always_attaches"_a, "crowded"_a, "spins"_a, "yields"_a, "timeout"_a, "threads"_a = 1, "team_bytes"_a = 0,
             "cache_bytes"_a = Settings{}.cache_bytes, "looks"_a = false, "recorder"_a.none() = nb::none(),
             "tunables"_a = std::map<std::string, u64>(), "nodes"_a = std::vector<u32>(), "mpi"_a = 0,
             "latency"_a = 0.0, "bandwidth"_a = 0.0, nb::keep_alive<1, 7>(), nb::keep_alive<1, 18>())
        .def(
            "plan",
            [](Member& member, const nb::bytes& given, u64 digest, nb::str name) {
                std::vector<u32> words(given.size() / sizeof(u32));
                std::memcpy(words.data(), given.data(), words.size() * sizeof(u32));
                return new Plan(*member.communicator, std::move(words), digest, to_utf8(name));
            },
            "words"_a, "digest"_a, "name"_a, nb::keep_alive<0, 1>())
        .def(
            "outlook",
            [](Member& member, const Plan& plan, u64 n, u32 type, u64 tile, bool input, bool output) {
                return member.communicator->outlook(plan, n, type, tile, input, output);
            },
            "plan"_a, "n"_a, "type"_a, "tile"_a, "input"_a, "output"_a,
            "How a call of n elements a unit would run, with an array for the input, for the output. Local.");
    bind_calls(member);
    bind_life(m, member);
    bind_adoption(m, member);
}

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // a thread that is in a call when the process ends keeps what it holds (gil.h)
    bind_constants(m);
    bind_kernels(m);
    bind_caches(m);
    bind_tunables(m);
    bind_outcome(m);
    bind_events(m);
    bind_recorder(m);
    bind_plan(m);
    bind_arena(m);
    bind_flight(m);
    bind_member(m);
    bind_prepared_call(m);
    bind_call_cache(m);
    bind_pattern(m);
}
