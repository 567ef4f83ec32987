// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

template <size_t N> nanobind::tuple names(const char* const (&table)[N]) {
    nanobind::list list;
    for (const char* name : table) list.append(name);
    return nanobind::tuple(list);
}

void bind_kernels(nanobind::module_& module);
void bind_flight(nanobind::module_& module);
void bind_prepared_call(nanobind::module_& module);
void bind_call_cache(nanobind::module_& module);
void bind_pattern(nanobind::module_& module);

}  // namespace hocket
