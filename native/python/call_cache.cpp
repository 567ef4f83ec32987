// Calls by name that have been made before: a table from what Python passes to a prepared call.
//
// The first call of its kind takes the slow path, through all checks of hocket/communicator.py, and is entered here. A
// call that finds itself in the table, argument for argument, needs no further look at a Python object.

#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "python/arrays.h"
#include "python/bindings.h"
#include "python/dlpack.h"
#include "python/prepared_call.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

using AnyCallable = nb::typed<nb::callable, nb::object(...)>;
using AnyTuple = nb::typed<nb::tuple, nb::object, nb::ellipsis>;

constexpr u32 kDimensions = 4;
constexpr u64 kFewest = 64, kMost = 2048;  // places in the table, of which half may be taken

// The arguments of a call: two arrays or tensors, whether it is in the background, and options, which count as equal
// only where they are the same object.
constexpr u32 kName = 0, kX = 1, kOut = 2, kBackground = 3, kArguments = 8, kOptions = 5;

constexpr long long kSeparate = 1ll << 62;  // of two arrays

// All that tells one call from another. Without padding: compared as bytes.
struct Key {
    PyObject* options[kOptions];
    u64 types[2];                      // a PyArray_Descr*, of an element of a tensor an odd number; 0 for no argument
    long long shapes[2][kDimensions];  // of a tensor its number of elements
    long long between;                 // bytes from x to out, where they overlap
    u64 traits;                        // of each argument: dimensions, and whether it is writeable and shared

    void note(u32 argument, u64 trait) { traits |= trait << 32 * argument; }
};
constexpr u64 kIsWriteable = 1 << 8, kIsShared = 1 << 9;
static_assert(sizeof(Key) % 16 == 8);  // for the hash: the first word is apart

bool operator==(const Key& a, const Key& b) { return std::memcmp(&a, &b, sizeof(Key)) == 0; }

u64 hash_of(const Key& key) {
    const auto word = [&](u64 at) {
        u64 found;
        std::memcpy(&found, reinterpret_cast<const char*>(&key) + at, sizeof found);
        return found;
    };
    u64 hash = word(0);
    for (u64 at = 8; at < sizeof key; at += 16)
        hash = std::rotl(hash, 7) + (word(at) ^ 0x9e3779b97f4a7c15) * (word(at + 8) ^ 0xc2b2ae3d27d4eb4f);
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15;  // else lengths in succession collide
    return hash ^ hash >> 32;
}

// What tells an argument from others, in a key, and where it lies. False for one that only the slow path understands.
bool describe_one(PyObject* given, const Tensors& tensors, Key& key, u32 i, Argument& found) {
    if (Tensors::Seen seen; tensors.look(given, seen)) {
        key.types[i] = seen.type << 1 | 1;
        key.shapes[i][0] = static_cast<long long>(seen.elements);
        key.note(i, kIsWriteable);
        found = {given, seen.data, seen.bytes};
        return true;
    }
    if (!PyArray_CheckExact(given)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(given);
    const int dimensions = PyArray_NDIM(array);
    if (!PyArray_CHKFLAGS(array, NPY_ARRAY_CARRAY_RO) || dimensions > int(kDimensions)) return false;
    key.types[i] = reinterpret_cast<u64>(PyArray_DESCR(array));
    key.note(i, u64(dimensions) | (PyArray_ISWRITEABLE(array) ? kIsWriteable : 0));
    found = {given, PyArray_BYTES(array), u64(PyArray_ITEMSIZE(array))};
    for (int d = 0; d < dimensions; ++d) found.bytes *= u64(key.shapes[i][d] = PyArray_DIM(array, d));
    return true;
}

// False for arguments that only the slow path understands. Of an array, all of a short one or the first bytes are
// prefetched before the call is looked up. They may be in no cache, and the rest of a longer one would then wait for
// them.
bool describe(PyObject* const* arguments, const Tensors& tensors, const Member& member, Key& key,
              Argument (&found)[2]) {
    std::memset(&key, 0, sizeof key);
    key.options[0] = arguments[kName];
    std::copy_n(arguments + kBackground + 1, kOptions - 1, key.options + 1);
    for (u32 i = 0; i < 2; ++i) {
        PyObject* given = arguments[kX + i];
        if (given == Py_None) continue;
        if (!describe_one(given, tensors, key, i, found[i]) || found[i].bytes == 0) return false;
        const Tunables& tuned = member.tunables;
        const u64 wanted =
            found[i].bytes <= tuned.argument_prefetch_bytes ? found[i].bytes : tuned.argument_begin_bytes;
        for (u64 at = 0; at < wanted; at += kCacheLine) __builtin_prefetch(found[i].data + at);
        found[i].shared = member.memory.place(found[i].data) != kNowhere;
        if (found[i].shared) key.note(i, kIsShared);
    }
    const auto& [x, out] = found;
    if (x.bytes == 0 || out.bytes == 0) return x.bytes + out.bytes != 0;
    const bool apart = x.data + x.bytes <= out.data || out.data + out.bytes <= x.data;
    key.between = apart ? kSeparate : out.data - x.data;
    return true;
}

// Whether an option always has the value that it has now: the same object then means the same call.
bool is_constant(PyObject* option) {
    if (PyTuple_CheckExact(option)) {
        PyObject* const* const items = PySequence_Fast_ITEMS(option);
        return std::all_of(items, items + PyTuple_GET_SIZE(option), is_constant);
    }
    if (PyLong_CheckExact(option)) {  // CPython has one object for each of the small ones
        const long value = PyLong_AsLong(option);
        if (value == -1 && PyErr_Occurred()) PyErr_Clear();
        return value >= 0 && value <= 256;
    }
    return option == Py_None || PyBool_Check(option) || PyUnicode_CheckExact(option) ||
           PyArray_IsScalar(option, Integer);
}

// A lock of Python, or none. Threads that wait for it can be interrupted.
class Lock {
  public:
    explicit Lock(nb::object lock) {
        if (lock.is_none()) return;
        acquire_ = lock.attr("acquire");
        release_ = lock.attr("release");
    }
    void lock() const {
        if (acquire_ && !nb::steal(call_python(acquire_.ptr(), nullptr, 0))) throw nb::python_error();
    }
    void unlock() const {
        if (!release_) return;
        const nb::error_scope kept;
        nb::steal(PyObject_CallNoArgs(release_.ptr()));
    }
    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(acquire_.ptr());
        Py_VISIT(release_.ptr());
        return 0;
    }

  private:
    nb::object acquire_, release_;
};

// From what Python passes to the prepared call of it. It grows to a bound, then begins anew.
class CallCache {
  public:
    // `slow_path` takes the same arguments. `tensors`: a type that is taken beside arrays, or None. `lock`: what a call
    // that is known is made with, or None.
    CallCache(nb::typed<nb::object, Member> member, nb::object slow_path, nb::handle tensors, nb::object lock)
        : member_(std::move(member)),
          slow_path_(std::move(slow_path)),
          lock_(std::move(lock)),
          tensors_(tensors.is_none() ? Tensors() : Tensors(tensors)),
          places_(kFewest) {}
    CallCache& operator=(CallCache&&) = delete;

    PyObject* call(PyObject* const* arguments, Py_ssize_t count) {
        Key key;
        Argument given[2];
        if (count == kArguments && member_ && describe(arguments, tensors_, member(), key, given)) {
            if (const Entry* entry = place_of(key).entry.get()) {
                const nb::object prepared = entry->prepared;  // the entry may be gone after the call
                const std::scoped_lock turn(lock_);
                if (arguments[kBackground] == Py_False)
                    return nb::inst_ptr<PreparedCall>(prepared)->execute(prepared, given[0], given[1]);
                if (arguments[kBackground] == Py_True)
                    return nb::cast(nb::inst_ptr<PreparedCall>(prepared)->launch(prepared, given[0], given[1]))
                        .release()
                        .ptr();
            }
        }
        return call_python(slow_path_.ptr(), arguments, count);
    }

    // Enters a call, if it is one that the table can hold.
    void learn(const AnyTuple& arguments, nb::typed<nb::object, PreparedCall> prepared) {
        Key key;
        Argument given[2];
        PyObject* const* const items = PySequence_Fast_ITEMS(arguments.ptr());
        if (arguments.size() != kArguments || !member_ || !describe(items, tensors_, member(), key, given)) return;
        if (!std::all_of(key.options, key.options + kOptions, is_constant)) return;
        if (2 * (taken_ + 1) > places_.size()) grow();
        auto entry = std::make_unique<Entry>(Entry{key, {}, std::move(prepared)});
        for (PyObject* option : key.options) entry->owned.push_back(nb::borrow(option));
        for (const u64 type : key.types)
            if (type != 0 && type % 2 == 0) entry->owned.push_back(nb::borrow(reinterpret_cast<PyObject*>(type)));
        Place& place = place_of(key);
        if (place.entry == nullptr) ++taken_;
        place.hash = hash_of(key);
        std::swap(place.entry, entry);
    }

    void forget() {
        std::vector<Place> before(kFewest);  // their end may run Python, and so this
        before.swap(places_);
        taken_ = 0;
    }

    void clear() {
        member_.reset();
        forget();
    }

    int traverse(visitproc visit, void* arg) {
        Py_VISIT(slow_path_.ptr());
        if (const int stop = lock_.traverse(visit, arg)) return stop;
        for (const Place& place : places_)
            if (place.entry != nullptr) Py_VISIT(place.entry->prepared.ptr());
        return 0;
    }

  private:
    struct Entry {
        Key key;
        std::vector<nb::object> owned;  // what the key points to
        nb::object prepared;
    };
    struct Place {
        u64 hash = 0;
        std::unique_ptr<Entry> entry;
    };

    const Member& member() const { return *nb::inst_ptr<Member>(member_); }

    // Where a call is, or would be: there is always room for one more.
    Place& place_of(const Key& key) {
        const u64 hash = hash_of(key);
        for (u64 at = hash;; ++at) {
            Place& place = places_[at & (places_.size() - 1)];
            if (place.entry == nullptr || (place.hash == hash && place.entry->key == key)) return place;
        }
    }

    void grow() {
        if (places_.size() == kMost) return forget();
        std::vector<Place> before(2 * places_.size());
        before.swap(places_);
        for (Place& place : before)
            if (place.entry != nullptr) place_of(place.entry->key) = std::move(place);
    }

    nb::object member_, slow_path_;
    const Lock lock_;
    const Tensors tensors_;
    std::vector<Place> places_;
    u64 taken_ = 0;
};

// The method itself, without what binding it to Python would cost.
PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    return or_error([&] { return nb::inst_ptr<CallCache>(self)->call(arguments, count); });
}

// What a method made by `brief` has for `self`: the method, the attribute that takes calls, and its arguments.
enum : u32 { kMethod, kAttribute, kDefaults };

PyObject* call_briefly(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* keywords) {
    PyObject* const* const bound = PySequence_Fast_ITEMS(self);
    PyObject *background = nullptr, *out = count == 3 ? given[2] : Py_None;
    bool is_brief = count == 2 || count == 3;
    for (Py_ssize_t k = 0; keywords != nullptr && k < PyTuple_GET_SIZE(keywords); ++k) {
        PyObject* const name = PyTuple_GET_ITEM(keywords, k);
        if (PyUnicode_CompareWithASCIIString(name, "async_") == 0) background = given[count + k];
        else if (count == 2 && PyUnicode_CompareWithASCIIString(name, "out") == 0) out = given[count + k];
        else is_brief = false;
    }
    if (!is_brief) return call_python(bound[kMethod], given, count, keywords);
    for (PyObject* const array : {given[1], out}) {  // they may be in no cache, and take two lines each
        __builtin_prefetch(array);
        __builtin_prefetch(reinterpret_cast<const char*>(array) + kCacheLine);
    }
    const nb::object call = nb::steal(PyObject_GetAttr(given[0], bound[kAttribute]));
    if (!call) return nullptr;
    PyObject* arguments[kArguments];
    std::copy_n(PySequence_Fast_ITEMS(bound[kDefaults]), kArguments, arguments);
    arguments[kX] = given[1];
    arguments[kOut] = out;
    if (background != nullptr) arguments[kBackground] = background;
    return call_python(call.ptr(), arguments, kArguments);
}

// To fill in keywords takes Python a good part of a short call.
AnyCallable brief(AnyCallable method, const char* attribute, AnyTuple defaults, std::string doc) {
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
    return nb::steal<nb::callable>(PyInstanceMethod_New(function.ptr()));
}

PyMethodDef method{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL, nullptr};

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<CallCache>(self)->traverse(visit, arg) : 0;
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {0, nullptr}};

}  // namespace

void bind_call_cache(nb::module_& module) {
    nb::class_<CallCache>(module, "CallCache", nb::type_slots(slots), "Calls by name that have been made before.")
        .def(nb::init<nb::typed<nb::object, Member>, AnyCallable, nb::handle, nb::object>(), "member"_a, "slow_path"_a,
             "tensors"_a = nb::none(), "lock"_a = nb::none(),
             nb::sig("def __init__(self, member: Member, slow_path: collections.abc.Callable[..., object], "
                     "tensors: type | None = None, lock: threading.Lock | None = None) -> None"))
        .def_prop_ro(
            "call",
            [](nb::handle self) -> AnyCallable {
                return nb::steal<nb::callable>(PyCFunction_New(&method, self.ptr()));
            },
            "Makes a call that is known; for any other it calls ``slow_path`` with the same arguments.")
        .def("learn", &CallCache::learn, "arguments"_a, "prepared"_a)
        .def("forget", &CallCache::forget, "Forgets all calls.")
        .def("clear", &CallCache::clear, "Forgets all calls, and the communicator.");
    module.def(
        "brief", &brief, "method"_a, "attribute"_a, "defaults"_a, "doc"_a,
        R"(A method, for a class, that does the same as ``method``, and takes a shorter way when called with arrays alone.

That is: it calls the attribute of its object with ``defaults``, where the second and third are put in. ``doc`` may
begin with a signature in CPython's form. The result has no annotations, and no qualified name of its class.)");
}

}  // namespace hocket
