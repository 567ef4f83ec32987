// Objects of pybind11 that are told by bytes of their C++ value. To ask a binding for a field makes an object, which
// takes longer than a short call.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

// Each byte by where it lies in the value, and what it is.
using Bytes = std::vector<std::pair<u32, unsigned char>>;

// How pybind11 lays out an object whose class has one holder and no further base.
struct Instance {
    PyObject head;
    const unsigned char* value;
};

struct Pattern {
    nb::type_object type;
    Bytes bytes;
};

PyObject* fits(PyObject* self, PyObject* object) {
    const Pattern& pattern = *nb::inst_ptr<Pattern>(self);
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != pattern.type.ptr()) return Py_NewRef(Py_False);
    const unsigned char* const value = reinterpret_cast<const Instance*>(object)->value;
    const auto is_there = [&](const auto& byte) { return value[byte.first] == byte.second; };
    return PyBool_FromLong(value != nullptr && std::all_of(pattern.bytes.begin(), pattern.bytes.end(), is_there));
}

PyMethodDef method{"fits", fits, METH_O, nullptr};

}  // namespace

void bind_pattern(nb::module_& module) {
    nb::class_<Pattern>(module, "Pattern",
                        "Objects of a class of pybind11 in whose C++ value bytes, each by where it lies, are these.")
        .def(nb::init<nb::type_object, Bytes>(), "type"_a, "bytes"_a)
        .def_prop_ro(
            "fits",
            [](nb::handle self) -> nb::typed<nb::callable, bool(nb::object)> {
                return nb::steal<nb::callable>(PyCFunction_New(&method, self.ptr()));
            },
            "Whether an object is one.");
}

}  // namespace hocket
