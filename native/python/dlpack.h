// Tensors of other libraries, read through the table of C functions that DLPack lets their type offer.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>

#include "core/plan.h"

namespace hocket {

// Instances of one type, but not of its subclasses, which may keep their elements elsewhere.
class Tensors {
  public:
    // Dense, aligned, and in the memory of the CPU.
    struct Seen {
        u64 type;  // of an element, as DLPack has it
        u64 elements, bytes;
        char* data;
    };

    Tensors() = default;  // of no type
    // Throws std::invalid_argument for a type that offers no such table.
    explicit Tensors(nanobind::handle type) {
        const nanobind::object capsule = nanobind::getattr(type, "__dlpack_c_exchange_api__", nanobind::none());
        const auto* table = PyCapsule_IsValid(capsule.ptr(), kName)
                                ? static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), kName))
                                : nullptr;
        while (table != nullptr && table->major != kMajor) table = table->previous;
        if (table == nullptr || table->look == nullptr)
            throw std::invalid_argument("this type has no __dlpack_c_exchange_api__ of version 1");
        type_ = nanobind::borrow(type);
        look_ = table->look;
    }

    // False for what is no such tensor.
    bool look(PyObject* object, Seen& seen) const {
        if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type_.ptr()) return false;
        nanobind::dlpack::dltensor tensor;
        if (look_(object, &tensor) != 0) {
            PyErr_Clear();
            return false;
        }
        const auto [code, bits, lanes] = tensor.dtype;
        const u64 item = u64(bits) / 8 * lanes;
        if (tensor.device.device_type != nanobind::device::cpu::value || bits % 8 != 0 || item == 0) return false;
        if (code == int(nanobind::dlpack::dtype_code::Complex) || !dense(tensor))
            return false;  // it may be a conjugate
        seen.type = u64(lanes) << 16 | u64(bits) << 8 | code;
        seen.elements = 1;
        for (int d = 0; d < tensor.ndim; ++d) seen.elements *= u64(tensor.shape[d]);
        seen.bytes = seen.elements * item;
        seen.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
        return reinterpret_cast<u64>(seen.data) % std::min<u64>(item, alignof(double)) == 0;
    }

  private:
    static constexpr const char* kName = "dlpack_exchange_api";
    static constexpr u32 kMajor = 1;
    // DLPackExchangeAPI of DLPack 1.3.
    struct Table {
        u32 major, minor;
        const Table* previous;
        void *allocate, *take, *give;
        int (*look)(void* object, nanobind::dlpack::dltensor* found);  // sets a Python error where it is not 0
        void* stream;
    };

    static bool dense(const nanobind::dlpack::dltensor& tensor) {
        long long step = 1;
        for (int d = tensor.ndim - 1; tensor.strides != nullptr && d >= 0; --d) {
            if (tensor.shape[d] != 1 && tensor.strides[d] != step) return false;
            step *= tensor.shape[d];
        }
        return true;
    }

    nanobind::object type_;
    int (*look_)(void*, nanobind::dlpack::dltensor*) = nullptr;
};

}  // namespace hocket
