#define HOCKET_IMPORTS_NUMPY
#include "python/prepared_call.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "python/arrays.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

// Not of a list, of which it is not known yet where it lies.
bool overlap(const Argument& x, const Argument& out) {
    return x.data != nullptr && x.bytes != 0 && out.bytes != 0 && x.data < out.data + out.bytes &&
           out.data < x.data + x.bytes;
}

// Where the parts of a list lie, if each begins where the one before it ends, else null. Of several in the arena others
// would not know to keep all.
char* in_one_piece(const std::vector<Argument>& parts) {
    char *begin = nullptr, *end = nullptr;
    for (const Argument& part : parts) {
        if (part.bytes == 0) continue;
        if (part.shared || (begin != nullptr && part.data != end)) return nullptr;
        if (begin == nullptr) begin = part.data;
        end = part.data + part.bytes;
    }
    return begin;
}

}  // namespace

PreparedCall::PreparedCall(nb::object member, nb::object plan, Terms terms, Operands operands, const Binding& binding,
                           std::optional<Alternatives> alternatives, bool only_shared, nb::object counted)
    : held_(nb::make_tuple(member, plan, counted, alternatives ? nb::cast(alternatives->plans) : nb::none())),
      member_(nb::cast<Member*>(member)),
      plan_(nb::cast<Plan*>(plan)),
      terms_(std::move(terms)),
      scale_{terms_.factor.value_or(1), terms_.factor ? 1 : member_->communicator->size()},
      operands_(std::move(operands)),
      binding_(binding),
      alternatives_(std::move(alternatives)),
      only_shared_(only_shared) {
    const Terms& t = terms_;
    check(plan_->header(), binding.input, binding.output);
    for (u32 v = 0; alternatives_ && v < std::size(kZeroCopy); ++v)
        if (const Plan* const other = alternatives_->plans[v])
            check(other->header(), alternatives_->input, alternatives_->output);
    const Source first = binding.input != Source::kNothing ? binding.input : binding.output;
    if (binding.place + length(binding.initial) > length(first) && binding.initial != Source::kNothing)
        throw std::invalid_argument("what is copied first is longer than its buffer");
    if (binding.taken && *binding.taken + length(binding.result) > length(binding.input))
        throw std::invalid_argument("the result is longer than the buffer that it is taken from");
    call_.initial_bytes = length(binding.initial);
    call_.n = t.n.value_or(0);
    call_.tile = t.tile;
    call_.type = t.type;
    call_.op = t.op;
    call_.size_known = t.n.has_value();
    call_.timeout = t.timeout;
    if (t.units) call_.units = &*t.units;
    if (!counted.is_none()) {
        call_.counted = nb::cast<Plan*>(counted);
        check(call_.counted->header(), binding.input, binding.output);
    }
    if (t.element) call_.element = &*t.element;
    if (t.op == kAverage) call_.scale = &scale_;
    call_.finish.bytes = length(binding.result);
    brief_ = std::max(length(Source::kX), length(Source::kOut)) <= member_->tunables.gil_held_bytes;
}

u64 PreparedCall::length(Source source) const {
    if (source == Source::kNothing) return 0;
    const std::optional<Operand>& operand = source == Source::kOut ? operands_.out : operands_.x;
    return operand ? operand->bytes : 0;
}

void PreparedCall::check(const PlanHeader& header, Source input, Source output) const {
    const u64 unit = terms_.n.value_or(0) * type_bytes(terms_.type);
    if ((input != Source::kNothing && length(input) < end(kInput, unit, header.input_blocks)) ||
        (output != Source::kNothing && length(output) < end(kOutput, unit, header.output_blocks)))
        throw std::invalid_argument("an array is smaller than the plan's buffer");
}

// Bytes of a buffer. Throws std::invalid_argument for units that are not those of the plan, or too long.
u64 PreparedCall::end(Place which, u64 unit, u64 blocks) const {
    if (!terms_.units) return unit * blocks;
    const std::vector<u64>& bounds = terms_.units->bounds[which];
    bool good = bounds.size() == blocks + 1 && bounds[0] == 0;
    for (u64 u = 0; good && u < blocks; ++u) good = bounds[u] <= bounds[u + 1] && bounds[u + 1] - bounds[u] <= unit;
    if (!good) throw std::invalid_argument("units");
    return bounds[blocks];
}

// Notes where an argument lies. False if it is not what is expected; of one that was `checked`, any array will do.
bool PreparedCall::fits(const Operand& expected, PyObject* given, bool checked, Argument& found) const {
    found.object = given;
    if (PyArray_CheckExact(given) || (checked && PyArray_Check(given))) {
        auto* const array = reinterpret_cast<PyArrayObject*>(given);
        found.data = PyArray_BYTES(array);
        found.bytes = expected.bytes;
        const int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (expected.written ? NPY_ARRAY_WRITEABLE : 0);
        const auto same_shape = [&] {
            return u64(PyArray_NDIM(array)) == expected.shape.size() &&
                   std::equal(expected.shape.begin(), expected.shape.end(), PyArray_DIMS(array));
        };
        if (!PyArray_CHKFLAGS(array, flags)) return false;
        if (!checked && (reinterpret_cast<PyObject*>(PyArray_DESCR(array)) != expected.dtype.ptr() || !same_shape()))
            return false;
    } else if (PyList_Check(given) || PyTuple_Check(given)) {
        std::vector<Argument> parts;
        found.bytes = expected.bytes;
        found.listed = true;
        return !operands_.between && fit_list(expected, given, checked, parts);
    } else {
        u64 address = 0;
        const RawBuffer* buffer = nullptr;
        if (PyLong_CheckExact(given)) {
            if (!nb::try_cast(nb::handle(given), address)) return false;
        } else {
            if (!nb::try_cast(nb::handle(given), buffer) || buffer == nullptr) return false;
            if (buffer->bytes != expected.bytes || buffer->type != terms_.type) return false;
            address = buffer->address;
        }
        const u64 alignment = std::min<u64>(type_bytes(terms_.type), alignof(int));  // C gives a pair of ints no more
        found.data = reinterpret_cast<char*>(address);
        found.bytes = expected.bytes;
        if (terms_.type >= kTypes || address % alignment != 0 || (address == 0 && found.bytes != 0)) return false;
    }
    found.shared = member_->memory.place(found.data) != kNowhere;
    return true;
}

// Notes where what is in a list lies. False if it is not of the type that is expected, or not as long together.
bool PreparedCall::fit_list(const Operand& expected, PyObject* list, bool checked, std::vector<Argument>& parts) const {
    u64 bytes = 0;
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(list); ++at) {
        PyObject* const given = PySequence_Fast_GET_ITEM(list, at);
        Operand part{expected.dtype, {}, 0, expected.written};
        const RawBuffer* buffer = nullptr;
        if (PyArray_Check(given)) {
            auto* const array = reinterpret_cast<PyArrayObject*>(given);
            part.shape.assign(PyArray_DIMS(array), PyArray_DIMS(array) + PyArray_NDIM(array));
            part.bytes = u64(PyArray_NBYTES(array));
        } else if (nb::try_cast(nb::handle(given), buffer) && buffer != nullptr) {
            part.bytes = buffer->bytes;
        } else {
            return false;
        }
        if (!fits(part, given, checked, parts.emplace_back())) return false;
        bytes += part.bytes;
    }
    return bytes == expected.bytes;
}

bool PreparedCall::fit(PyObject* x, PyObject* out, bool checked, Argument (&found)[2]) const {
    const auto lies_well = [&](const Argument& argument) {
        return !only_shared_ || argument.shared || argument.bytes == 0;
    };
    const bool copies = out == Py_None && operands_.omitted == Omitted::kX;
    if (operands_.x && !(fits(*operands_.x, x, checked, found[0]) && lies_well(found[0]))) return false;
    if (!operands_.out || (out == Py_None && operands_.omitted == Omitted::kFresh))
        return !only_shared_ || !operands_.out;
    if (!fits(*operands_.out, copies ? x : out, checked, found[1]) || !lies_well(found[1])) return false;
    if (!operands_.x) return true;
    if (!overlap(found[0], found[1])) return !operands_.between || found[0].bytes == 0 || found[1].bytes == 0;
    return operands_.between && found[1].data - found[0].data == *operands_.between;
}

template <class Make> void PreparedCall::prepare(nb::handle self, bool background, Make make) {
    nb::object missing;
    try {
        return make();
    } catch (nb::python_error& error) {
        missing = nb::borrow(error.value());
    } catch (const std::bad_alloc&) {
        missing = nb::handle(PyExc_MemoryError)("there is no memory for a copy of x");
    }
    self.attr("_refuse")(missing, background);
    throw std::runtime_error("a refusal did not raise");
}

// Throws nanobind::python_error where arguments do not fit. What this does not know Python may: arrays of other
// classes, types that are equal though not the same object.
void PreparedCall::take(nb::handle self, PyObject* x, PyObject* out, bool background, Argument (&found)[2]) {
    const PreparedCall& call = *nb::inst_ptr<PreparedCall>(self);
    if (call.held_ && call.fit(x, out, false, found)) return;
    self.attr("_check")(nb::handle(x), nb::handle(out), background);
    if (!call.held_) self.attr("_take_turn")();  // another thread has closed the communicator meanwhile: this raises
    if (!call.fit(x, out, true, found)) throw std::runtime_error("arguments that do not fit have passed the check");
}

PyObject* PreparedCall::call(nb::handle self, PyObject* x, PyObject* out) {
    Argument found[2];
    take(self, x, out, false, found);
    return nb::inst_ptr<PreparedCall>(self)->execute(self, found[0], found[1]);
}

// A call of all ranks: if one of them finds that its calls take another time than before, they merge next. Returns what
// went wrong.
static std::optional<Outcome> look(Member& member) {
    Flight::land(member);
    Merges& merges = member.merges;
    const ControlPlane& control = member.communicator->control();
    const u64 number = member.calls, begun = control.clock().ticks();
    bool differs = false;
    for (const std::shared_ptr<KeyArms>& arms : merges.watched) differs |= arms->differs();
    std::optional<Outcome> failed = alone(member, [&] {
        Outcome outcome = member.communicator->exchange(differs ? "1" : "", kLook);
        for (u32 r = 0; outcome.fault == Fault::kNone && r < control.size(); ++r)
            differs |= control.said(r).text[0] != 0;
        return outcome;
    });
    if (failed) return failed;
    const u64 took = control.clock().ticks() - begun;
    merges.look_ticks = merges.look_ticks == 0 ? took : std::min(merges.look_ticks, took);
    if (differs) {
        for (const std::shared_ptr<KeyArms>& arms : merges.watched) arms->told();
        merges.at = number + 1;
    }
    merges.next_look(number + 1);
    return std::nullopt;
}

// That of a call which is tuned, once the ranks have exchanged what they have timed, if it is time for that.
Taken PreparedCall::take_tuned(nb::handle self, bool background) {
    while (held_ && call_.counted == nullptr && member_->calls >= member_->merges.look_at) {
        const nb::object held = held_;  // whoever waits in a look may run Python, which may close the communicator
        if (member_->calls >= member_->merges.at) self.attr("_merge")();
        else if (std::optional<Outcome> failed = look(*member_)) self.attr("_raise")(std::move(*failed));
    }
    const u32 arm = held_ ? arms_->arm(member_->calls) : 0;
    if (arm != 0 && !of_arms_[arm]) {
        of_arms_[arm] = nb::object(self.attr("_arm")(arm, background));
        nb::inst_ptr<PreparedCall>(of_arms_[arm])->arms_ = arms_;  // keeps them while it is made
    }
    if (!held_) return {nb::borrow(self), arms_.get(), 0};
    const bool timed = arms_->is_timed(arm);
    const u64 begun = timed && !background ? member_->communicator->control().clock().ticks() : 0;
    return {nb::borrow(arm == 0 ? self : of_arms_[arm]), arms_.get(), arm, timed, begun};
}

PyObject* PreparedCall::execute(nb::handle self, const Argument& x, const Argument& out) {
    for (;;) {
        const auto is_turn = [this] { return held_ && (member_->flights == 0 || member_->interrupts()); };
        while (!is_turn()) self.attr("_take_turn")();  // raises where the communicator has ended
        const Taken taken = take_arm(self, false);
        if (!taken.call().held_) continue;
        std::optional<BoundCall> bound;
        prepare(self, false, [&] { bound.emplace(taken.call(), x, out); });
        bound->take(taken, *member_);
        bool entered = false;
        Outcome outcome = [&] {
            const Gil gil(bound->brief());
            const std::unique_lock<Busy> lock(member_->busy, std::try_to_lock);
            entered = lock.owns_lock() && member_->flights == 0;
            return entered ? bound->run() : Outcome{Fault::kBusy, 0};
        }();
        if (!entered) {
            if (held_) --member_->calls;
            if (!is_turn()) continue;
        }
        if (outcome.fault == Fault::kNone) return Py_NewRef(bound->result().ptr());
        if (PyErr_Occurred()) return nullptr;
        taken.prepared.attr("_raise")(std::move(outcome));
        throw std::runtime_error("a call that has failed did not raise");
    }
}

Handle PreparedCall::start(nb::handle self, nb::handle x, nb::handle out, nb::handle keep) {
    Argument found[2];
    take(self, x.ptr(), out.ptr(), true, found);
    return nb::inst_ptr<PreparedCall>(self)->launch(self, found[0], found[1], keep);
}

Handle PreparedCall::launch(nb::handle self, const Argument& x, const Argument& out, nb::handle keep) {
    if (const nb::object held = held_) Flight::make_way(*member_);  // may run Python, which may close the communicator
    const Taken taken = take_arm(self, true);
    if (!taken.call().held_) self.attr("_take_turn")();  // raises
    std::shared_ptr<BoundCall> bound;
    prepare(self, true, [&] { bound = std::make_shared<BoundCall>(taken.call(), x, out); });
    bound->take(taken, *member_);
    bound->keep(x.object, out.object, keep);
    auto flight = std::make_shared<Flight>(bound->member(), taken.prepared, nb::borrow(bound->result()),
                                           [bound](Communicator&) { return bound->go_on(); });
    if (!bound->brief() || !flight->post([&] { return bound->post(); })) flight->queue();
    return Handle(std::move(flight));
}

BoundCall::BoundCall(PreparedCall& prepared, Argument x, Argument out)
    : prepared_(prepared),
      held_(prepared.held_),
      call_(prepared.call_) {
    const PreparedCall::Operands& operands = prepared.operands_;
    const Binding& binding = prepared.binding_;
    if (operands.out && out.object == Py_None && operands.omitted == Omitted::kX) out = x;
    if (operands.out && out.object == Py_None) {
        const Operand& like = *operands.out;
        auto* const type = reinterpret_cast<PyArray_Descr*>(nb::object(like.dtype).release().ptr());
        fresh_ =
            nb::steal(PyArray_NewFromDescr(&PyArray_Type, type, int(like.shape.size()),
                                           const_cast<Py_ssize_t*>(like.shape.data()), nullptr, nullptr, 0, nullptr));
        if (!fresh_) throw nb::python_error();
        out = {fresh_.ptr(), PyArray_BYTES(reinterpret_cast<PyArrayObject*>(fresh_.ptr())), like.bytes};
    }
    result_ = binding.result == Source::kOut ? out.object : binding.result == Source::kX ? x.object : Py_None;
    if (x.listed || out.listed) take_lists(x, out);
    if (binding.input == Source::kScratch) scratch_ = std::make_unique_for_overwrite<char[]>(x.bytes);
    char* const data[] = {nullptr, x.data, out.data, scratch_.get()};
    const auto at = [&](Source source) { return data[u32(source)]; };
    PyObject* const objects[] = {Py_None, x.object, out.object, Py_None};
    call_.input = at(binding.input);
    call_.output = at(binding.output);
    call_.initial = at(binding.initial);
    call_.initial_to = at(binding.input != Source::kNothing ? binding.input : binding.output) + binding.place;
    call_.fresh = fresh_ && binding.output == Source::kOut;
    if (binding.taken) call_.finish.taken = at(binding.input) + *binding.taken;
    if (binding.taken || call_.scale != nullptr) call_.finish.result = at(binding.result);
    offered_[0] = objects[u32(binding.input)];
    offered_[1] = objects[u32(binding.output)];
    const bool shared = (!operands.x || x.shared) && (!operands.out || out.shared);
    const std::optional<Alternatives>& alternatives = prepared.alternatives_;
    if (!alternatives || !(shared ? alternatives->shared : alternatives->private_)) return;
    std::copy(alternatives->plans.begin(), alternatives->plans.end(), offer_.plans + kZeroCopy[0]);
    offer_.input = at(alternatives->input);
    offer_.output = at(alternatives->output);
    offered_[0] = objects[u32(alternatives->input)];
    offered_[1] = objects[u32(alternatives->output)];
    call_.offer = &offer_;
}

// A list that lies in one piece is used where it is, unless it overlaps the other argument. An array takes the place of
// any other. What a list holds stays, also where the list is changed meanwhile.
void BoundCall::take_lists(Argument& x, Argument& out) {
    lists_ = std::make_unique<Lists>();
    std::vector<Argument> parts[2];
    for (Argument* const given : {&x, &out}) {
        if (!given->listed) continue;
        const std::optional<Operand>& expected = given == &x ? prepared_.operands_.x : prepared_.operands_.out;
        const nb::object fixed = nb::steal(PySequence_Tuple(given->object));
        if (!fixed) throw nb::python_error();
        lists_->kept.append(fixed);
        given->object = fixed.ptr();
        std::vector<Argument>& found = parts[given == &out];
        if (!prepared_.fit_list(*expected, fixed.ptr(), true, found)) {
            PyErr_SetString(PyExc_RuntimeError, "a list was changed while its call was made");
            throw nb::python_error();
        }
        given->data = in_one_piece(found);
    }
    const bool apart = !overlap(x, out);
    for (Argument* const given : {&x, &out})
        if (given->listed && !(apart && given->data != nullptr)) join(*given, parts[given == &out], given == &x);
}

// Puts an array in the place of a list, from which it is copied before the call, or to which after it.
void BoundCall::join(Argument& list, const std::vector<Argument>& parts, bool before) {
    npy_intp bytes = npy_intp(list.bytes);
    const nb::object whole = nb::steal(PyArray_SimpleNew(1, &bytes, NPY_UINT8));
    if (!whole) throw nb::python_error();
    lists_->kept.append(whole);
    list.object = whole.ptr();
    list.data = PyArray_BYTES(reinterpret_cast<PyArrayObject*>(whole.ptr()));
    char* at = list.data;
    for (const Argument& part : parts) {
        if (before) lists_->before.push_back({at, part.data, part.bytes});
        else lists_->after.push_back({part.data, at, part.bytes});
        at += part.bytes;
    }
}

Outcome BoundCall::run() {
    copy_in();
    Communicator& communicator = *prepared_.member_->communicator;
    exposed_ = call_.offer != nullptr || communicator.network() != nullptr;  // until it has an outcome
    Outcome outcome = communicator.run(*prepared_.plan_, call_);
    ended(outcome);
    return outcome;
}

void BoundCall::copy_in() const {
    if (lists_)
        for (const Copy& one : lists_->before) copy(one.to, one.from, one.bytes);
}

bool BoundCall::post() {
    copy_in();
    posted_ = prepared_.member_->communicator->post(*prepared_.plan_, call_);
    return posted_;
}

Outcome BoundCall::go_on() {
    if (!posted_) return run();
    Outcome outcome = prepared_.member_->communicator->complete();
    ended(outcome);
    return outcome;
}

void BoundCall::ended(const Outcome& outcome) {
    if (lists_ && outcome.fault == Fault::kNone)
        for (const Copy& one : lists_->after) copy(one.to, one.from, one.bytes);
    exposed_ = outcome.exposed;
    prepared_.variant_ = outcome.variant;
}

namespace {

// call(x, out), both of which may be left out or named.
PyObject* call_slot(PyObject* self, PyObject* arguments, PyObject* keywords) {
    PyObject* given[2] = {Py_None, Py_None};
    const char* names[] = {"x", "out", nullptr};
    const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (keywords == nullptr && count <= 2) std::copy_n(PySequence_Fast_ITEMS(arguments), count, given);
    else if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OO:PreparedCall", const_cast<char**>(names), &given[0],
                                          &given[1]))
        return nullptr;
    return or_error([&] { return PreparedCall::call(self, given[0], given[1]); });
}

PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_slot)}, {0, nullptr}};

void bind_buffer(nb::module_& module) {
    nb::class_<RawBuffer>(module, "Buffer", R"(Memory as an argument of a ``PreparedCall``, whoever allocated it.

``address`` is a multiple of 4, or of an element's size. ``dtype``: the name of a type that can be combined;
"bfloat16" needs no ml_dtypes. The memory must stay until the call has ended. After an error in the middle of a
call, other than one of arguments, another rank may for a moment still write to memory that was given to it; on
several nodes, MPI may access it until the process ends.)")
        .def(nb::init<u64, u64, std::string>(), "address"_a, "nbytes"_a, "dtype"_a)
        .def_ro("address", &RawBuffer::address)
        .def_ro("nbytes", &RawBuffer::bytes)
        .def_ro("dtype", &RawBuffer::dtype)
        .def("__repr__", [](const RawBuffer& buffer) {
            return nb::str("Buffer({:#x}, {}, '{}')").format(buffer.address, buffer.bytes, buffer.dtype);
        });
}

// What a prepared call is made of.
void bind_parts(nb::module_& module) {
    nb::enum_<Source>(module, "Source", "Which memory is a buffer of a call. SCRATCH: as long as x, of each execution.")
        .value("NOTHING", Source::kNothing)
        .value("X", Source::kX)
        .value("OUT", Source::kOut)
        .value("SCRATCH", Source::kScratch);
    nb::enum_<Omitted>(module, "Omitted",
                       "What out is where the caller gives none. FRESH: an array that each execution allocates.")
        .value("REFUSED", Omitted::kRefused)
        .value("X", Omitted::kX)
        .value("FRESH", Omitted::kFresh);
    nb::class_<Operand>(module, "Operand")
        .def(nb::init<nb::typed<nb::object, ElementType>, std::vector<Py_ssize_t>, u64, bool>(), "dtype"_a.none(),
             "shape"_a, "nbytes"_a, "written"_a);
    nb::class_<PreparedCall::Operands>(module, "Operands")
        .def(nb::init<std::optional<Operand>, std::optional<Operand>, std::optional<long long>, Omitted>(),
             "x"_a.none(), "out"_a.none(), "between"_a.none(), "omitted"_a);
    nb::class_<PreparedCall::Terms>(module, "Terms")
        .def(
            nb::init<std::optional<u64>, u32, u32, u64, std::optional<std::string>, std::optional<Units>, double,
                     std::optional<double>>(),
            "n"_a.none(), "type"_a, "op"_a, "tile"_a, "element"_a.none(), "units"_a.none(), "timeout"_a,
            "factor"_a.none(),
            "``timeout``: 0 for that of the communicator. ``factor``: what makes an average a sum that is multiplied.");
    nb::class_<Binding>(module, "Binding")
        .def(nb::init<Source, Source, Source, Source, u64, std::optional<u64>>(), "input"_a, "output"_a, "initial"_a,
             "result"_a, "place"_a, "taken"_a.none(), "See Bound in hocket/runtime/buffers.py.");
    nb::class_<Alternatives>(module, "Alternatives")
        .def(nb::init<std::array<Plan*, std::size(kZeroCopy)>, Source, Source, bool, bool>(), "plans"_a, "input"_a,
             "output"_a, "shared"_a, "private"_a,
             nb::sig("def __init__(self, plans: collections.abc.Sequence[Plan | None], input: Source, output: Source, "
                     "shared: bool, private: bool) -> None"),
             nb::keep_alive<1, 2>(), "As hocket/runtime/execution.py has them.");
}

void bind_arms(nb::module_& module) {
    module.attr("ARMS") = kArms;
    nb::class_<Timings>(module, "Timings", "Of calls by an arm: how many, the sums of log2 of ticks and of its square.")
        .def_ro("count", &Timings::count)
        .def_ro("sum", &Timings::sum)
        .def_ro("squares", &Timings::squares);
    nb::class_<KeyArms::Noted>(module, "Noted", "Calls of a key; those of each arm that were timed.")
        .def_ro("calls", &KeyArms::Noted::calls)
        .def_ro("timings", &KeyArms::Noted::timings);
    nb::class_<KeyArms>(module, "KeyArms", "The arms of the calls of one key (native/policy/arms.h).")
        .def(nb::init())
        .def("set", &KeyArms::set, "salt"_a, "shift"_a, "incumbent"_a, "until"_a)
        .def("take", &KeyArms::take, "What was noted since it was asked last.")
        .def(
            "took",
            [](KeyArms& arms, u32 arm, u64 ticks) {
                if (arm >= kArms || ticks == 0) throw nb::value_error("an arm that there is not, or no ticks");
                arms.took(arm, ticks);
            },
            "arm"_a, "ticks"_a, "Notes what a call took.");
}

}  // namespace

void bind_prepared_call(nb::module_& module) {
    if (PyArray_ImportNumPyAPI() < 0) throw nb::python_error();
    bind_buffer(module);
    bind_parts(module);
    bind_arms(module);
    nb::class_<PreparedCall>(module, "PreparedCall", nb::type_slots(slots),
                             "A call for which everything is decided but where its buffers lie. Subclasses say what is "
                             "wrong with arguments.")
        .def(nb::init<nb::typed<nb::object, Member>, nb::typed<nb::object, Plan>, PreparedCall::Terms,
                      PreparedCall::Operands, const Binding&, std::optional<Alternatives>, bool,
                      nb::typed<nb::object, std::optional<Plan>>>(),
             "member"_a, "plan"_a, "terms"_a, "operands"_a, "binding"_a, "alternatives"_a.none(), "only_shared"_a,
             "counted"_a.none())
        .def("start", &PreparedCall::start, "x"_a.none() = nb::none(), "out"_a.none() = nb::none(),
             "keep"_a.none() = nb::none(),
             "Make the call in the background. Memory that is no array's must stay until it has ended; ``keep`` does.")
        .def("tune", &PreparedCall::tune, "arms"_a,
             "From now on each call takes an arm: this, or one that ``_arm(number, background)`` prepares.")
        .def("release", &PreparedCall::release, "Let go of the communicator, once it has ended.")
        .def_prop_ro(
            "variant", [](const PreparedCall& call) { return u32(call.variant()); },
            "How the latest execution that has ended went: 0 through slots or eagerly, else 1 + that of VARIANTS.");
}

}  // namespace hocket
