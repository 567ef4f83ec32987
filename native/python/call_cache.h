// Calls by name that have been made before: a table from what Python passes to a prepared call.
//
// The first call of its kind takes the slow path, through all checks of hocket/communicator.py, and is entered here. A
// call that finds itself in the table, argument for argument, needs no further look at a Python object.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

void bind_call_cache(nanobind::module_& module);

}  // namespace hocket
