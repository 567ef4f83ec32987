// Calls by name that are known to be good: a table from what Python passes to what native code does.
//
// The first call of its kind takes the long way, through all checks of hocket/communicator.py; when it has succeeded it
// is entered here. A call that finds itself in the table, argument for argument, needs no further look at a Python
// object. Every other one takes the long way.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

void bind_known(nanobind::module_& module);

}  // namespace hocket
