// The memory of a contiguous array, held while it is used.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "core/plan.h"

namespace hocket {

class Held {
  public:
    explicit Held(nanobind::handle array) {
        if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
    }
    ~Held() { PyBuffer_Release(&view_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    char* data() const { return static_cast<char*>(view_.buf); }
    u64 bytes() const { return u64(view_.len); }

  private:
    Py_buffer view_{};
};

}  // namespace hocket
