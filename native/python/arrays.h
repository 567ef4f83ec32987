// The C interface of NumPy: whoever includes this uses the table that `import_numpy` has filled in.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hocket_numpy
#ifndef HOCKET_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
