// The Python module hocket._native. Thin: arguments are checked in Python (hocket/runtime).
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

#include "arena.h"
#include "known.h"
#include "member.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hocket;

namespace {

std::vector<u32> words_of(const nb::bytes& bytes) {
    std::vector<u32> words(bytes.size() / sizeof(u32));
    std::memcpy(words.data(), bytes.data(), words.size() * sizeof(u32));
    return words;
}

// The memory of a contiguous array, held while it is used.
class Held {
  public:
    explicit Held(nb::handle array) {
        if (!array.is_none() && PyObject_GetBuffer(array.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~Held() { PyBuffer_Release(&view_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    char* data() const { return static_cast<char*>(view_.buf); }
    u64 bytes() const { return u64(view_.len); }
    void need(u64 bytes) const {
        if (u64(view_.len) < bytes) throw std::invalid_argument("an array is smaller than the plan's buffer");
    }

  private:
    Py_buffer view_{};
};

// Throws std::invalid_argument where the table has none.
Kernel kernel_of(const KernelTable& table, u32 type, u32 op) {
    if (type >= kTypes || op >= kOperators || table.reduce[type][op] == nullptr)
        throw std::invalid_argument("this type does not have this operator");
    return table.reduce[type][op];
}

// The plans of kLent, or None, the input and the output.
using OfferTuple = std::tuple<std::array<nb::object, std::size(kLent)>, nb::object, nb::object>;

// An offer, and the arrays and plans that it is of.
class HeldOffer {
  public:
    // Throws std::invalid_argument where an array is too short for units of so many bytes.
    HeldOffer(OfferTuple given, u64 unit)
        : given_(std::move(given)), in_(std::get<1>(given_)), out_(std::get<2>(given_)) {
        offer.input = in_.data();
        offer.output = out_.data();
        for (const Way way : kLent) {
            const nb::object& plan = std::get<0>(given_)[way - kLent[0]];
            if (plan.is_none()) continue;
            const PlanHeader& h = (offer.plans[way] = nb::cast<Plan*>(plan))->header();
            if (offer.input != nullptr) in_.need(unit * h.input_blocks);
            if (offer.output != nullptr) out_.need(unit * h.output_blocks);
        }
    }

    std::array<PyObject*, 2> arrays() const { return {std::get<1>(given_).ptr(), std::get<2>(given_).ptr()}; }

    Offer offer;

  private:
    const OfferTuple given_;
    Held in_, out_;
};

// One call on arrays, which it holds.
struct Request {
    // Throws std::invalid_argument for what could lead outside the arrays.
    Request(Plan& plan, nb::handle input, nb::handle output, std::optional<u64> n, u32 type, u32 op, u64 tile,
            nb::handle initial, u64 initial_place, const Units* given, std::optional<OfferTuple> offered)
        : plan(plan), in(input), out(output), from(initial) {
        if (op >= kOperators || (tile & (tile - 1)) || (tile && tile < kAlign))
            throw std::invalid_argument("operator or tile");
        if (n && plan.combines()) kernel_of(kernels(), type, op);
        const u64 unit = n.value_or(0) * type_bytes(type);
        if (given != nullptr) units = *given;  // the call may be in the background
        if (!input.is_none()) in.need(end(kInput, unit, plan.header().input_blocks));
        if (!output.is_none()) out.need(end(kOutput, unit, plan.header().output_blocks));
        char* to = nullptr;
        if (!initial.is_none()) {
            Held& whole = input.is_none() ? out : in;
            whole.need(initial_place + from.bytes());
            to = whole.data() + initial_place;
        }
        call = {in.data(), out.data(), from.data(), to,            from.bytes(),              n.value_or(0),
                tile,      type,       op,          n.has_value(), units ? &*units : nullptr};
        if (!offered && plan.lends()) throw std::invalid_argument("a plan that lends is offered");
        if (!offered) return;
        held.emplace(std::move(*offered), unit);
        call.offer = &held->offer;
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    Outcome run(Communicator& communicator) {
        if (held) exposed_.emplace(held->arrays());
        Outcome outcome = communicator.run(plan, call);
        if (held) exposed_->exposed = outcome.exposed;
        return outcome;
    }

    Plan& plan;
    Held in, out, from;
    std::optional<HeldOffer> held;
    std::optional<Units> units;
    Call call{};

  private:
    std::optional<Exposed> exposed_;

    // Bytes of a buffer. Throws std::invalid_argument for units that are not those of the plan, or too long.
    u64 end(Place place, u64 unit, u64 blocks) const {
        if (!units) return unit * blocks;
        const std::vector<u64>& bounds = units->bounds[place];
        bool good = bounds.size() == blocks + 1 && bounds[0] == 0;
        for (u64 u = 0; good && u < blocks; ++u)
            good = bounds[u] <= bounds[u + 1] && bounds[u + 1] - bounds[u] <= unit;
        if (!good) throw std::invalid_argument("units");
        return bounds[blocks];
    }
};

// A call that is made in the background. It is kept until it is done, and outlives neither its member nor its plan.
class Flight {
  public:
    // A barrier without a request.
    Flight(Member& member, std::unique_ptr<Request> request) : member_(member), request_(std::move(request)) {
        submit([this] {
            Communicator& communicator = *member_.communicator;
            return request_ ? request_->run(communicator) : communicator.barrier();
        });
    }
    // Says in the order of calls that this rank refuses one.
    Flight(Member& member, std::string why) : member_(member) {
        submit([this, why = std::move(why)] { return member_.communicator->refuse(why); });
    }
    ~Flight() {
        if (member_.queue == nullptr) return;
        nb::gil_scoped_release released;
        while (!member_.queue->wait(job_, 1)) continue;
    }
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

    bool done() { return member_.queue == nullptr || member_.queue->done(job_); }

    std::optional<Outcome> wait() {
        if (member_.queue == nullptr) return Outcome{Fault::kDead, 0, "is another process"};
        for (;;) {
            {
                nb::gil_scoped_release released;
                if (member_.queue->wait(job_, kSignalSeconds)) break;
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        if (outcome_.fault == Fault::kNone && outcome_.way == kThroughSlots) return std::nullopt;
        return outcome_;
    }

  private:
    static constexpr double kSignalSeconds = 0.05;

    void submit(std::function<Outcome()> call) {
        ++member_.flights;
        job_.body = [this, call = std::move(call)] {
            {
                const std::lock_guard<Busy> held(member_.busy);
                outcome_ = call();
            }
            --member_.flights;
        };
        member_.queue->submit(job_);
    }

    Member& member_;
    std::unique_ptr<Request> request_;
    Queue::Job job_;
    Outcome outcome_;
};

int loan_buffer(PyObject* self, Py_buffer* view, int flags) {
    const Loan& loan = *nb::inst_ptr<Loan>(self);
    return PyBuffer_FillInfo(view, self, loan.data(), Py_ssize_t(loan.bytes()), 0, flags);
}

PyType_Slot loan_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(loan_buffer)}, {0, nullptr}};

// Without the GIL, and not in two threads at once.
template <class Body> std::optional<Outcome> alone(Member& member, Body body) {
    Outcome outcome;
    {
        nb::gil_scoped_release released;
        std::unique_lock<Busy> lock(member.busy, std::try_to_lock);
        outcome = lock.owns_lock() ? body() : Outcome{Fault::kBusy, 0, {}};
    }
    if (PyErr_Occurred()) throw nb::python_error();
    if (outcome.fault == Fault::kNone && outcome.way == kThroughSlots) return std::nullopt;
    return outcome;
}

template <u32 N> nb::tuple names(const char* const (&table)[N]) {
    nb::list list;
    for (const char* name : table) list.append(name);
    return nb::tuple(list);
}

// The types that kernels combine, each with its operators.
nb::dict operators_of_types() {
    nb::dict found;
    for (u32 type = 0; type < kTypes; ++type) {
        nb::list operators;
        for (u32 op = 0; op < kOperators; ++op)
            if (kernels().reduce[type][op] != nullptr) operators.append(kOperatorNames[op]);
        found[kTypeNames[type]] = nb::tuple(operators);
    }
    return found;
}

// What another process finds in this one's memory, if it may look there.
constexpr u64 kWitness = 0x686f636b65742072;

const KernelTable& kernels_for(const std::string& name) {
    for (const Isa* isa = isas(); isa->name != nullptr; ++isa)
        if (isa->name == name) return *isa->kernels;
    throw std::invalid_argument("this processor does not have this instruction set");
}

#define HOCKET_NAME(field) fields.append(#field);
#define HOCKET_RECORD(name, record) \
    {                               \
        nb::list fields;            \
        record(HOCKET_NAME);        \
        layout[name] = nb::tuple(fields); \
    }

nb::dict plan_layout() {
    nb::dict layout;
    HOCKET_RECORD("header", HOCKET_PLAN_HEADER)
    HOCKET_RECORD("block", HOCKET_PLAN_BLOCK)
    HOCKET_RECORD("step", HOCKET_PLAN_STEP)
    HOCKET_RECORD("operand", HOCKET_PLAN_OPERAND)
    HOCKET_RECORD("wait", HOCKET_PLAN_WAIT)
    HOCKET_RECORD("connection", HOCKET_PLAN_CONNECTION)
    HOCKET_RECORD("multicast", HOCKET_PLAN_MULTICAST)
    return layout;
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("PLAN_MAGIC") = kPlanMagic;
    m.attr("PLAN_LAYOUT") = plan_layout();
    m.attr("MOST_READERS") = kMostReaders;
    if (chosen_isa() == nullptr) throw std::runtime_error("HOCKET_ISA names no instruction set of this processor");
    m.attr("ISA") = chosen_isa()->name;
    nb::list all;
    for (const Isa* isa = isas(); isa->name != nullptr; ++isa) all.append(isa->name);
    m.attr("ISAS") = nb::tuple(all);
    m.attr("TYPES") = names(kTypeNames);
    m.attr("OPERATORS_OF") = operators_of_types();
    m.attr("OPERATORS") = names(kOperatorNames);
    m.attr("EAGER") = kEager;
    m.attr("FILE_BYTES") = kFileBytes;
    m.attr("STAMP") = kStamp;
    m.attr("WITNESS") = reinterpret_cast<u64>(&kWitness);
    m.def(
        "reaches",
        [](pid_t process, u64 witness) {
            u64 found = 0;
            char* const to = reinterpret_cast<char*>(&found);
            return pull_from(process, reinterpret_cast<const char*>(witness), to, sizeof found) == 0 && found == kWitness;
        },
        "process"_a, "witness"_a);
    m.def("reserve_control", &reserve_control, "descriptor"_a, "ranks"_a);
    m.attr("MOST_CONNECTIONS") = kMostWindows;
    m.attr("PROTOCOL") = std::to_string(kPlanMagic) + "." + std::to_string(sizeof(RankBlock)) + "." +
                         std::to_string(offsetof(CallHeader, text));

    nb::enum_<Fault>(m, "Fault")
        .value("NONE", Fault::kNone)
        .value("MISMATCH", Fault::kMismatch)
        .value("REFUSED", Fault::kRefused)
        .value("MEMORY", Fault::kMemory)
        .value("PEER", Fault::kPeer)
        .value("TIMEOUT", Fault::kTimeout)
        .value("INTERRUPTED", Fault::kInterrupted)
        .value("DEAD", Fault::kDead)
        .value("BUSY", Fault::kBusy);

    nb::class_<Outcome>(m, "Outcome")
        .def_ro("fault", &Outcome::fault)
        .def_ro("rank", &Outcome::rank)
        .def_prop_ro("way", [](const Outcome& outcome) { return u32(outcome.way); })
        .def_ro("text", &Outcome::text)
        .def_ro("waited", &Outcome::waited)
        .def_prop_ro("stall", [](const Outcome& outcome) -> std::optional<std::tuple<u32, u32, u64, u32>> {
            if (!outcome.stalled) return std::nullopt;
            return std::make_tuple(outcome.stall.block, outcome.stall.step, outcome.stall.tile, outcome.stall.peer);
        })
        .def_ro("said", &Outcome::said);

    nb::class_<CallHeader>(m, "CallHeader")
        .def_prop_ro("digest", [](const CallHeader& header) { return header.terms.digest; })
        .def_prop_ro("n", [](const CallHeader& header) { return header.terms.n; })
        .def_prop_ro("tile", [](const CallHeader& header) { return header.terms.tile; })
        .def_prop_ro("type", [](const CallHeader& header) { return header.terms.type; })
        .def_prop_ro("op", [](const CallHeader& header) { return header.terms.op; })
        .def_prop_ro("counts", [](const CallHeader& header) { return header.terms.counts; })
        .def_prop_ro("counted", [](const CallHeader& header) { return (header.terms.flags & kCounted) != 0; })
        .def_prop_ro("pairwise", [](const CallHeader& header) { return (header.terms.flags & kPairwise) != 0; })
        .def_prop_ro("size_known", [](const CallHeader& header) { return !(header.terms.flags & kSizeUnknown); })
        .def_prop_ro("text", [](const CallHeader& header) { return nb::bytes(header.text); });

    nb::class_<Plan>(m, "Plan").def_prop_ro("number", &Plan::number);

    nb::class_<CallEvent>(m, "CallEvent")
        .def_ro("number", &CallEvent::number)
        .def_ro("plan", &CallEvent::plan)
        .def_ro("begin", &CallEvent::begin)
        .def_ro("agreed", &CallEvent::agreed)
        .def_ro("end", &CallEvent::end)
        .def_ro("unit", &CallEvent::unit)
        .def_ro("tile", &CallEvent::tile)
        .def_ro("tiles", &CallEvent::tiles)
        .def_ro("threads", &CallEvent::threads)
        .def_ro("rounds", &CallEvent::rounds)
        .def_prop_ro("streams", [](const CallEvent& event) { return Past(event.past) != Past::kNothing; })
        .def_prop_ro("fault", [](const CallEvent& event) -> std::optional<Fault> {
            if (Fault(event.fault) == Fault::kNone) return std::nullopt;
            return Fault(event.fault);
        });

    nb::class_<StepEvent>(m, "StepEvent")
        .def_ro("call", &StepEvent::call)
        .def_ro("begin", &StepEvent::begin)
        .def_ro("end", &StepEvent::end)
        .def_ro("tile", &StepEvent::tile)
        .def_ro("bytes", &StepEvent::bytes)
        .def_ro("block", &StepEvent::block)
        .def_ro("step", &StepEvent::step);

    m.attr("BARRIER") = Communicator::kBarrier;
    nb::class_<Recorder>(m, "Recorder")
        .def(nb::init<u32, u64, u64>(), "threads"_a, "most_calls"_a, "most_steps"_a)
        .def("read",
             [](const Recorder& recorder) {
                 const Clock& clock = recorder.clock;
                 const Clock::Pair now = clock.now();
                 std::vector<CallEvent> calls = recorder.calls.events();
                 for (CallEvent& call : calls)
                     for (u64* ticks : {&call.begin, &call.agreed, &call.end})
                         if (*ticks != 0) *ticks = clock.nanoseconds(*ticks, now);
                 std::vector<std::vector<StepEvent>> steps;
                 for (const Tape<StepEvent>& tape : recorder.steps) {
                     steps.push_back(tape.events());
                     for (StepEvent& step : steps.back())
                         for (u64* ticks : {&step.begin, &step.end}) *ticks = clock.nanoseconds(*ticks, now);
                 }
                 return std::make_tuple(std::move(calls), std::move(steps));
             })
        .def_prop_ro("dropped", [](const Recorder& recorder) {
            u64 steps = 0;
            for (const Tape<StepEvent>& tape : recorder.steps) steps += tape.dropped();
            return std::make_tuple(recorder.calls.dropped(), steps);
        });

    nb::class_<Candidate>(m, "Candidate")
        .def_prop_ro("tile", [](const Candidate& candidate) { return candidate.geometry.tile; })
        .def_prop_ro("tiles", [](const Candidate& candidate) { return candidate.geometry.tiles; })
        .def_ro("slots", &Candidate::slots)
        .def_prop_ro("one_round", &Candidate::in_one_round);

    nb::class_<Units>(m, "Units")
        .def(
            "__init__",
            [](Units* self, std::vector<u64> input, std::vector<u64> output, std::optional<u64> digest,
               std::string text) {
                new (self) Units{{std::move(input), std::move(output)}, digest, std::move(text)};
            },
            "input"_a, "output"_a, "digest"_a.none(), "text"_a);

    nb::class_<Arena>(m, "Arena")
        .def(nb::init<int>(), "descriptor"_a)
        .def_prop_ro("descriptor", &Arena::descriptor)
        .def(
            "allocate", [](Arena& arena, u64 bytes) { return new Loan(arena, bytes); }, "bytes"_a,
            nb::keep_alive<0, 1>())
        .def(
            "holds",
            [](const Arena& arena, nb::handle array) { return arena.place(Held(array).data()) != kNowhere; },
            "array"_a)
        .def("forked", &Arena::forked);

    nb::class_<Loan>(m, "Loan", nb::type_slots(loan_slots));

    nb::class_<Flight>(m, "Flight").def("done", &Flight::done).def("wait", &Flight::wait);

    nb::class_<Member>(m, "Member")
        .def(nb::init<u32, u32, int, std::vector<int>, std::vector<int>, Arena&, std::vector<pid_t>, bool, u32, u32, double,
                      u32, u64, bool, Recorder*>(),
             "rank"_a, "size"_a, "descriptor"_a, "lifelines"_a, "arenas"_a, "arena"_a, "processes"_a,
             "always_reaches"_a, "spins"_a, "yields"_a, "timeout"_a, "threads"_a = 1,
             "cache_bytes"_a = Settings{}.cache_bytes, "looks"_a = false, "recorder"_a.none() = nb::none(),
             nb::keep_alive<1, 7>(), nb::keep_alive<1, 16>())
        .def(
            "plan",
            [](Member& member, const nb::bytes& words, u64 digest, std::string name) {
                return new Plan(*member.communicator, words_of(words), digest, std::move(name));
            },
            "words"_a, "digest"_a, "name"_a, nb::keep_alive<0, 1>())
        .def(
            "run",
            [](Member& member, Plan& plan, nb::handle input, nb::handle output, std::optional<u64> n, u32 type, u32 op,
               u64 tile, nb::handle initial, u64 initial_place, const Units* units, std::optional<OfferTuple> offer) {
                Request request(plan, input, output, n, type, op, tile, initial, initial_place, units, std::move(offer));
                return alone(member, [&] { return request.run(*member.communicator); });
            },
            "plan"_a, "input"_a.none(), "output"_a.none(), "n"_a.none(), "type"_a, "op"_a, "tile"_a,
            "initial"_a.none() = nb::none(), "initial_place"_a = 0, "units"_a.none() = nb::none(),
            "offer"_a.none() = nb::none())
        .def(
            "candidate",
            [](Member& member, Plan& plan, u64 n, u32 type, u64 tile) {
                Candidate candidate{{}, &plan};
                member.communicator->settle(candidate, n, type, tile, true);
                return candidate;
            },
            "plan"_a, "n"_a, "type"_a, "tile"_a, nb::keep_alive<0, 2>())
        .def(
            "touched",
            [](Member& member, const Candidate& candidate, bool input, bool output) {
                return member.communicator->touched(candidate, input, output);
            },
            "candidate"_a, "input"_a, "output"_a)
        .def(
            "threads",
            [](Member& member, const Candidate& candidate) { return member.communicator->wanted_threads(candidate); },
            "candidate"_a)
        .def("barrier", [](Member& member) { return alone(member, [&] { return member.communicator->barrier(); }); })
        .def(
            "exchange",
            [](Member& member, const std::string& word) -> nb::object {
                std::vector<std::string> words;
                const auto outcome = alone(member, [&] {
                    Outcome found = member.communicator->exchange(word);
                    if (found.fault == Fault::kNone)
                        for (u32 r = 0; r < member.communicator->size(); ++r)
                            words.emplace_back(member.communicator->said(r).text);
                    return found;
                });
                return outcome ? nb::cast(*outcome) : nb::cast(words);
            },
            "word"_a)
        .def(
            "refuse",
            [](Member& member, const std::string& why) {
                return alone(member, [&] { return member.communicator->refuse(why); });
            },
            "why"_a)
        .def(
            "start",
            [](Member& member, Plan& plan, nb::handle input, nb::handle output, std::optional<u64> n, u32 type, u32 op,
               u64 tile, nb::handle initial, u64 initial_place, const Units* units, std::optional<OfferTuple> offer) {
                return new Flight(member, std::make_unique<Request>(plan, input, output, n, type, op, tile, initial,
                                                                    initial_place, units, std::move(offer)));
            },
            "plan"_a, "input"_a.none(), "output"_a.none(), "n"_a.none(), "type"_a, "op"_a, "tile"_a,
            "initial"_a.none() = nb::none(), "initial_place"_a = 0, "units"_a.none() = nb::none(),
            "offer"_a.none() = nb::none(), nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>())
        .def(
            "start_barrier", [](Member& member) { return new Flight(member, std::unique_ptr<Request>()); },
            nb::keep_alive<0, 1>())
        .def(
            "start_refusal", [](Member& member, std::string why) { return new Flight(member, std::move(why)); },
            "why"_a, nb::keep_alive<0, 1>())
        .def("traffic",
             [](const Member& member) {
                 const Traffic moved = member.communicator->traffic();
                 return std::make_tuple(moved.loaded, moved.stored);
             })
        .def("leave", [](Member& member) { member.communicator->leave(); })
        .def("forked", &Member::forked)
        .def("fail",
             [](Member& member, u32 culprit, const std::string& why) { member.communicator->fail(culprit, why); },
             "culprit"_a, "why"_a);

    bind_known(m);

    m.def(
        "divide",
        [](nb::handle array, u32 type, u32 p, const std::string& isa) {
            const Divide divide = type < kTypes ? kernels_for(isa).divide[type] : nullptr;
            if (divide == nullptr) throw std::invalid_argument("this type has no division");
            const Held held(array);
            nb::gil_scoped_release released;
            divide(held.data(), held.bytes(), p);
        },
        "array"_a, "type"_a, "p"_a, "isa"_a = std::string(chosen_isa()->name));

    // For tests: one kernel call.
    m.def(
        "reduce",
        [](const std::vector<nb::object>& destinations, const std::vector<nb::object>& sources, u32 type, u32 op,
           const std::string& isa, u32 last, bool by_lines) {
            const Kernel kernel = kernel_of(kernels_for(isa), type, op);
            std::vector<char*> pointers[2];
            std::vector<std::unique_ptr<Held>> held;
            for (const auto* arrays : {&destinations, &sources})
                for (const nb::object& array : *arrays) {
                    held.push_back(std::make_unique<Held>(array));
                    held.back()->need(held.front()->bytes());
                    pointers[arrays == &sources].push_back(held.back()->data());
                }
            if (pointers[0].empty() || pointers[1].empty()) throw std::invalid_argument("no arrays");
            kernel(pointers[0].data(), u32(pointers[0].size()), pointers[1].data(), u32(pointers[1].size()),
                   held.front()->bytes(), last, by_lines ? Manner::kLines : Manner::kBlocks);
        },
        "destinations"_a, "sources"_a, "type"_a, "op"_a, "isa"_a, "last"_a = 0, "by_lines"_a = false);

    // For tests: how sizes cut a buffer. (chunk bytes, tile bytes, tiles), and piece (offset, bytes).
    m.def(
        "cut",
        [](u64 n, u64 itemsize, u64 chunks, u64 widest, u64 most, u64 tile, u64 work, u64 depth) {
            const Geometry g = cut(n, itemsize, chunks, widest, most, tile, work, depth);
            return std::make_tuple(g.chunk, g.tile, g.tiles);
        },
        "n"_a, "itemsize"_a, "chunks"_a, "widest"_a, "most"_a, "tile"_a, "work"_a = 1, "depth"_a = 1);
    m.def(
        "piece",
        [](u64 n, u64 itemsize, u32 chunks, u64 tile_bytes, u64 unit, u64 position, u64 skip, u64 tile,
           const std::vector<u64>& bounds) {
            const Geometry g = cut(n, itemsize, chunks, 1, 0, tile_bytes);
            const u64* table = bounds.empty() ? nullptr : bounds.data();
            const Piece piece = piece_of(g, {nullptr, g.unit, chunks, table}, unit, position, skip, tile);
            return std::make_tuple(piece.offset, piece.bytes);
        },
        "n"_a, "itemsize"_a, "chunks"_a, "tile_bytes"_a, "unit"_a, "position"_a, "skip"_a, "tile"_a,
        "bounds"_a = std::vector<u64>());
}
