#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "python/call_cache.h"

#include <nanobind/stl/string.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <optional>
#include <string>

#include "python/request.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

constexpr u32 kEntries = 64, kDimensions = 4;

// The arguments of a call: two arrays, and options, which count as equal only where they are the same object.
constexpr u32 kX = 1, kOut = 2, kArguments = 8, kOptions = kArguments - 2;

constexpr long long kSeparate = 1ll << 62;  // of two arrays

// All that tells one call from another. Without padding: compared as bytes.
struct Key {
    PyObject* options[kOptions];
    PyArray_Descr* types[2];  // null for no array
    long long shapes[2][kDimensions];
    long long between;  // bytes from x to out, where they overlap
    char dimensions[2];
    char lent[2];  // whether they lie in the arena
    char none[4];
};
static_assert(sizeof(Key) % 16 == 0);  // for the hash

bool operator==(const Key& a, const Key& b) { return std::memcmp(&a, &b, sizeof(Key)) == 0; }

// Where the arrays of a call lie, and how long they are.
struct Facts {
    char* data[2];
    u64 bytes[2];
};

// False for arguments that only the long way understands. Of an array, all of a short one or the first bytes are asked
// for before the call is looked up. They may be in no cache, and the rest of a longer one would then wait for them.
bool describe(PyObject* const* arguments, const Member& member, Key& key, Facts& facts) {
    std::memset(&key, 0, sizeof key);
    key.options[0] = arguments[0];
    std::copy_n(arguments + kOut + 1, kOptions - 1, key.options + 1);
    for (u32 i = 0; i < 2; ++i) {
        PyObject* given = arguments[kX + i];
        facts.data[i] = nullptr;
        facts.bytes[i] = 0;
        if (given == Py_None) continue;
        if (!PyArray_CheckExact(given)) return false;
        auto* array = reinterpret_cast<PyArrayObject*>(given);
        const int dimensions = PyArray_NDIM(array);
        if (!PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY) || dimensions > int(kDimensions)) return false;
        key.types[i] = PyArray_DESCR(array);
        key.dimensions[i] = char(dimensions);
        u64 bytes = u64(PyArray_ITEMSIZE(array));
        for (int d = 0; d < dimensions; ++d) bytes *= u64(key.shapes[i][d] = PyArray_DIM(array, d));
        if (bytes == 0) return false;
        facts.data[i] = static_cast<char*>(PyArray_DATA(array));
        const Tunables& tuned = member.tunables;
        const u64 asked = bytes <= tuned.argument_prefetch_bytes ? bytes : tuned.argument_begin_bytes;
        for (u64 at = 0; at < asked; at += kCacheLine) __builtin_prefetch(facts.data[i] + at);
        facts.bytes[i] = bytes;
        key.lent[i] = member.memory.place(facts.data[i]) != kNowhere;
    }
    if (facts.bytes[0] == 0 || facts.bytes[1] == 0) return facts.bytes[0] + facts.bytes[1] != 0;
    const bool apart =
        facts.data[0] + facts.bytes[0] <= facts.data[1] || facts.data[1] + facts.bytes[1] <= facts.data[0];
    key.between = apart ? kSeparate : facts.data[1] - facts.data[0];
    return true;
}

// Whether an option always has the value that it has now: the same object then means the same call.
bool is_constant(PyObject* option) {
    return option == Py_None || PyBool_Check(option) || PyLong_CheckExact(option) || PyUnicode_CheckExact(option) ||
           PyArray_IsScalar(option, Integer);
}

PyObject* call_python(PyObject* callee, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords = nullptr) {
    return or_stay([&] { return PyObject_Vectorcall(callee, arguments, size_t(count), keywords); });
}

// One of the arrays that a call works on: none, the two that are given, one that is made for the result, or one like x
// that is made for the call alone.
enum Which : u32 { kNone, kFirst, kSecond, kFresh, kCopy };

struct Entry {
    Key key{};
    std::vector<nb::object> owned;  // what the key points to
    nb::object plan, schedules, lending;
    bool offers = false;
    Offer offer;  // but for its arrays, which are
    Which offered[2] = {kNone, kNone};
    Which input, output, initial, result;
    u64 n, tile, place;
    std::optional<u64> taken;  // the byte of the input from which on the result is copied there
    u32 type, op;
    std::optional<std::string> element;
    bool average;
    nb::object fresh_type;
    u32 fresh_dimensions;
    npy_intp fresh_shape[kDimensions];
};

class Known {
  public:
    // `long_way` takes the same arguments. `failed` takes what became of a call and its schedules by way, and raises.
    Known(nb::object member, nb::object long_way, nb::object failed)
        : member_(std::move(member)),
          long_way_(std::move(long_way)),
          failed_(std::move(failed)),
          communicator_(nb::cast<Member*>(member_)) {}

    PyObject* call(PyObject* const* arguments, Py_ssize_t count) {
        Key key;
        Facts facts;
        if (count == kArguments && member_ && describe(arguments, *communicator_, key, facts)) {
            const Entry* entry = entries_[place_of(key)].get();
            if (entry != nullptr && entry->key == key)
                if (PyObject* found = make(*entry, arguments, facts)) return found;
            if (PyErr_Occurred()) return nullptr;
        }
        return call_python(long_way_.ptr(), arguments, count);
    }

    // Enters a call that has succeeded, if it is one that the table can hold.
    void learn(const nb::tuple& arguments, const Request& request, nb::object schedules) {
        Key key;
        Facts facts;
        PyObject* const* const given = PySequence_Fast_ITEMS(arguments.ptr());
        if (arguments.size() != kArguments || !describe(given, *communicator_, key, facts)) return;
        if (!std::all_of(key.options, key.options + kOptions, is_constant)) return;
        auto entry = std::make_unique<Entry>();
        entry->key = key;
        for (u32 a = 0; a < kArguments; ++a)
            if (a != kX && a != kOut) entry->owned.push_back(nb::borrow(arguments[a]));
        for (PyArray_Descr* type : key.types)
            if (type != nullptr) entry->owned.push_back(nb::borrow(reinterpret_cast<PyObject*>(type)));
        const auto which = [&](nb::handle array) {
            if (array.is_none()) return kNone;
            if (array.is(arguments[kX])) return kFirst;
            return array.is(arguments[kOut]) ? kSecond : kFresh;
        };
        entry->input = which(request.input);
        entry->output = which(request.output);
        entry->initial = which(request.initial);
        entry->result = which(request.result);
        if (entry->input == kFresh && !request.input.is(request.result)) entry->input = kCopy;
        if (entry->result == kFresh) {
            auto* array = reinterpret_cast<PyArrayObject*>(request.result.ptr());
            if (!PyArray_CheckExact(request.result.ptr()) || PyArray_NDIM(array) > int(kDimensions)) return;
            entry->fresh_type = nb::borrow(reinterpret_cast<PyObject*>(PyArray_DESCR(array)));
            entry->fresh_dimensions = u32(PyArray_NDIM(array));
            std::copy_n(PyArray_DIMS(array), entry->fresh_dimensions, entry->fresh_shape);
        }
        entry->plan = request.plan;
        entry->schedules = std::move(schedules);
        if (request.offer) {
            const auto& [plans, input, output] = request.offer->given;
            entry->offers = true;
            entry->lending = nb::make_tuple(plans[0], plans[1], plans[2], plans[3]);
            std::copy_n(request.offer->offer.plans, kVariants, entry->offer.plans);
            entry->offered[0] = which(input);
            entry->offered[1] = which(output);
        }
        entry->n = request.call.n;
        entry->tile = request.call.tile;
        entry->place = request.place;
        entry->taken = request.taken;
        entry->type = request.call.type;
        entry->op = request.call.op;
        entry->element = request.element;
        entry->average = request.average;
        entries_[place_of(key)] = std::move(entry);
    }

    // Forgets all calls, and the member.
    void clear() {
        member_.reset();
        for (auto& entry : entries_) entry.reset();
    }

    int traverse(visitproc visit, void* arg) {
        Py_VISIT(long_way_.ptr());
        Py_VISIT(failed_.ptr());
        return 0;
    }

  private:
    static u64 place_of(const Key& key) {
        const auto word = [&](u64 at) {
            u64 found;
            std::memcpy(&found, reinterpret_cast<const char*>(&key) + at, sizeof found);
            return found;
        };
        u64 hash = 0;
        for (u64 at = 0; at < sizeof key; at += 16)
            hash = std::rotl(hash, 7) + (word(at) ^ 0x9e3779b97f4a7c15) * (word(at + 8) ^ 0xc2b2ae3d27d4eb4f);
        return ((hash ^ hash >> 32) * 0x9e3779b97f4a7c15) >> 58;  // else lengths in succession miss some places
    }

    // Null without an error where the call must wait for another one, which is not for here.
    PyObject* make(const Entry& entry, PyObject* const* arguments, const Facts& facts) {
        // The entry may be gone after the call.
        const nb::object plan = entry.plan, schedules = entry.schedules, lending = entry.lending;
        const std::optional<std::string> element = entry.element;
        nb::object fresh;
        if (entry.fresh_type) {
            auto* type = reinterpret_cast<PyArray_Descr*>(entry.fresh_type.inc_ref().ptr());
            fresh = nb::steal(PyArray_NewFromDescr(&PyArray_Type, type, int(entry.fresh_dimensions), entry.fresh_shape,
                                                   nullptr, nullptr, 0, nullptr));
            if (!fresh) return nullptr;
        }
        std::unique_ptr<char[]> copy;
        if (entry.input == kCopy) copy = std::make_unique_for_overwrite<char[]>(facts.bytes[0]);
        auto* made = reinterpret_cast<PyArrayObject*>(fresh.ptr());
        PyObject* const objects[] = {Py_None, arguments[kX], arguments[kOut], fresh.ptr()};
        char* const data[] = {nullptr, facts.data[0], facts.data[1],
                              made ? static_cast<char*>(PyArray_DATA(made)) : nullptr, copy.get()};
        const u64 bytes[] = {0, facts.bytes[0], facts.bytes[1], made ? u64(PyArray_NBYTES(made)) : 0};
        char* const whole = data[entry.input != kNone ? entry.input : entry.output];
        Call call{data[entry.input],
                  data[entry.output],
                  data[entry.initial],
                  whole + entry.place,
                  bytes[entry.initial],
                  entry.n,
                  entry.tile,
                  entry.type,
                  entry.op,
                  true};
        call.fresh = entry.output == kFresh;
        if (element) call.element = &*element;
        Offer offer = entry.offer;
        offer.input = data[entry.offered[0]];
        offer.output = data[entry.offered[1]];
        if (entry.offers) call.offer = &offer;
        const Which input = entry.input, result = entry.result;
        std::optional<Exposed> exposed;
        if (entry.offers) exposed.emplace(std::array{objects[entry.offered[0]], objects[entry.offered[1]]});
        if (result != kNone && (entry.taken || entry.average))
            call.finish = {data[result], bytes[result], entry.taken ? data[input] + *entry.taken : nullptr,
                           entry.average ? kernels().divide[entry.type] : nullptr};
        Outcome outcome = [&] {
            Gil gil(std::max({bytes[kFirst], bytes[kSecond], bytes[kFresh]}) <= communicator_->tunables.gil_held_bytes);
            const std::unique_lock<Busy> lock(communicator_->busy, std::try_to_lock);
            if (!lock.owns_lock() || communicator_->flights != 0) return Outcome{Fault::kBusy, 0, {}};
            return communicator_->communicator->run(*nb::inst_ptr<Plan>(plan), call);
        }();
        if (exposed) exposed->exposed = outcome.exposed;
        if (outcome.fault == Fault::kBusy) return nullptr;
        if (outcome.fault == Fault::kNone) return Py_NewRef(objects[result]);
        if (PyErr_Occurred()) return nullptr;
        const nb::object became = nb::cast(std::move(outcome));
        PyObject* const told[] = {became.ptr(), schedules.ptr()};
        return call_python(failed_.ptr(), told, 2);
    }

    nb::object member_, long_way_, failed_;
    Member* communicator_;
    std::array<std::unique_ptr<Entry>, kEntries> entries_;
};

// The method itself, without what binding it to Python would cost.
PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    try {
        return nb::inst_ptr<Known>(self)->call(arguments, count);
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// What a method made by `brief` has for `self`: the method, the attribute that takes calls, and its arguments.
enum : u32 { kMethod, kAttribute, kDefaults };

PyObject* call_briefly(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
    PyObject* const* const bound = PySequence_Fast_ITEMS(self);
    if (keywords != nullptr || count < 2 || count > 3) return call_python(bound[kMethod], given, count, keywords);
    for (Py_ssize_t a = 1; a < count; ++a) {  // they may be in no cache, and take two lines each
        __builtin_prefetch(given[a]);
        __builtin_prefetch(reinterpret_cast<const char*>(given[a]) + kCacheLine);
    }
    const nb::object call = nb::steal(PyObject_GetAttr(given[0], bound[kAttribute]));
    if (!call) return nullptr;
    PyObject* arguments[kArguments];
    std::copy_n(PySequence_Fast_ITEMS(bound[kDefaults]), kArguments, arguments);
    arguments[kX] = given[1];
    if (count == 3) arguments[kOut] = given[2];
    return call_python(call.ptr(), arguments, kArguments);
}

// A method, for a class, that does the same as a method of Python whose options have defaults. Called with arrays alone
// it goes to the attribute of its object at once: to fill in keywords takes Python a good part of a short call.
nb::object brief(nb::object method, const char* attribute, nb::tuple defaults, std::string doc) {
    if (defaults.size() != kArguments) throw nb::value_error("there are as many defaults as arguments");
    struct Definition {
        std::string name, doc;
        PyMethodDef method;
    };
    static std::deque<Definition> definitions;  // of methods of classes, which stay
    definitions.push_back({nb::cast<std::string>(method.attr("__name__")), std::move(doc), {}});
    Definition& definition = definitions.back();
    definition.method = {definition.name.c_str(),
                         reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_briefly)),
                         METH_FASTCALL | METH_KEYWORDS, definition.doc.c_str()};
    const nb::object interned = nb::steal(PyUnicode_InternFromString(attribute));
    const nb::tuple bound = nb::make_tuple(method, interned, defaults);
    const nb::object function = nb::steal(PyCFunction_New(&definition.method, bound.ptr()));
    return nb::steal(PyInstanceMethod_New(function.ptr()));
}

PyMethodDef method{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL, nullptr};

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<Known>(self)->traverse(visit, arg) : 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {0, nullptr}};

}  // namespace

void bind_known(nb::module_& module) {
    if (PyArray_ImportNumPyAPI() < 0) throw nb::python_error();
    nb::class_<Known>(module, "Known", nb::type_slots(slots))
        .def(nb::init<nb::object, nb::object, nb::object>(), "member"_a, "long_way"_a, "failed"_a)
        .def_prop_ro("call", [](nb::handle self) { return nb::steal(PyCFunction_New(&method, self.ptr())); })
        .def("learn", &Known::learn, "arguments"_a, "request"_a, "schedules"_a)
        .def("clear", &Known::clear);
    module.def("brief", &brief, "method"_a, "attribute"_a, "defaults"_a, "doc"_a);
}

}  // namespace hocket
