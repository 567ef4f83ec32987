// The kernels of this processor, and how sizes cut buffers, for Python and for tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "core/interpreter.h"
#include "device/kernels.h"
#include "python/arrays.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hocket {
namespace {

const KernelTable& kernels_for(const std::string& name) {
    for (const Isa* isa = isas(); isa->name != nullptr; ++isa)
        if (isa->name == name) return *isa->kernels;
    throw std::invalid_argument("this processor does not have this instruction set");
}

void bind_types(nb::module_& m) {
    if (chosen_isa() == nullptr) throw std::runtime_error("HOCKET_ISA names no instruction set of this processor");
    m.attr("ISA") = chosen_isa()->name;
    nb::list all;
    for (const Isa* isa = isas(); isa->name != nullptr; ++isa) all.append(isa->name);
    m.attr("ISAS") = nb::tuple(all);
    m.attr("TYPES") = names(kTypeNames);
    nb::dict bytes, operators;
    for (u32 type = 0; type < kTypes; ++type) {
        nb::list own;
        for (u32 op = 0; op < kOperators; ++op)
            if (kernels().types[type].reduce[op] != nullptr) own.append(kOperatorNames[op]);
        bytes[kTypeNames[type]] = kTypeBytes[type];
        operators[kTypeNames[type]] = nb::tuple(own);
    }
    m.attr("TYPE_BYTES") = bytes;
    m.attr("OPERATORS_OF") = operators;
    m.attr("OPERATORS") = names(kOperatorNames);
}

// For tests: one kernel call on contiguous arrays.
void bind_reduce(nb::module_& m) {
    m.def(
        "reduce",
        [](const std::vector<Array>& destinations, const std::vector<Array>& sources, u32 type, u32 op,
           const std::string& isa, u32 last, std::optional<u32> divisor, double factor, u64 ahead, u64 stored_ahead) {
            const Kernel kernel = type < kTypes && op < kOperators ? kernels_for(isa).types[type].reduce[op] : nullptr;
            if (kernel == nullptr) throw std::invalid_argument("this type does not have this operator");
            if (destinations.empty() || sources.empty()) throw std::invalid_argument("no arrays");
            const auto numpy = [](const Array& array) { return reinterpret_cast<PyArrayObject*>(array.ptr()); };
            const auto bytes = PyArray_NBYTES(numpy(destinations.front()));
            std::vector<char*> pointers[2];
            for (const auto* arrays : {&destinations, &sources})
                for (const Array& array : *arrays) {
                    if (!PyArray_ISCARRAY_RO(numpy(array)) || PyArray_NBYTES(numpy(array)) < bytes)
                        throw std::invalid_argument("arrays differ");
                    pointers[arrays == &sources].push_back(PyArray_BYTES(numpy(array)));
                }
            const Scale scale{factor, divisor.value_or(1)};
            kernel(pointers[0].data(), u32(pointers[0].size()), pointers[1].data(), u32(pointers[1].size()), u64(bytes),
                   {last, ahead, stored_ahead, divisor ? &scale : nullptr});
        },
        "destinations"_a, "sources"_a, "type"_a, "op"_a, "isa"_a, "last"_a = 0, "divisor"_a.none() = nb::none(),
        "factor"_a = 1.0, "ahead"_a = 0, "stored_ahead"_a = 0);
}

// For tests: how sizes cut a buffer. In bytes.
void bind_geometry(nb::module_& m) {
    nb::class_<Geometry>(m, "Geometry")
        .def_ro("chunk", &Geometry::chunk)
        .def_ro("tile", &Geometry::tile)
        .def_ro("tiles", &Geometry::tiles);
    nb::class_<Piece>(m, "Piece").def_ro("offset", &Piece::offset).def_ro("bytes", &Piece::bytes);
    m.def("cut", &cut, "n"_a, "itemsize"_a, "chunks"_a, "widest"_a, "most"_a, "tile"_a, "work"_a = 1, "depth"_a = 1);
    m.def(
        "piece",
        [](u64 n, u64 itemsize, u32 chunks, u64 tile_bytes, u64 unit, u64 position, u64 skip, u64 tile,
           const std::vector<u64>& bounds) {
            const Geometry g = cut(n, itemsize, chunks, 1, 0, tile_bytes);
            const u64* table = bounds.empty() ? nullptr : bounds.data();
            return piece_of(g, {nullptr, g.unit, chunks, table}, unit, position, skip, tile);
        },
        "n"_a, "itemsize"_a, "chunks"_a, "tile_bytes"_a, "unit"_a, "position"_a, "skip"_a, "tile"_a,
        "bounds"_a = std::vector<u64>());
}

}  // namespace

void bind_kernels(nb::module_& m) {
    bind_types(m);
    bind_reduce(m);
    bind_geometry(m);
}

}  // namespace hocket
