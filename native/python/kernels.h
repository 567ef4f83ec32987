// The kernels of this processor, and how sizes cut buffers, for Python and for tests.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

void bind_kernels(nanobind::module_& m);

}  // namespace hocket
