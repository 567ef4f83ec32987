// The C interface of NumPy: whoever includes this uses the table that `import_numpy` has filled in.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hocket_numpy
#ifndef HOCKET_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

namespace hocket {

// Objects of NumPy, as they are in signatures.
struct Array : nanobind::object {
    NB_OBJECT_DEFAULT(Array, nanobind::object, "numpy.typing.NDArray[numpy.generic]", PyArray_Check)
};
struct ElementType : nanobind::object {
    NB_OBJECT_DEFAULT(ElementType, nanobind::object, "numpy.dtype[numpy.generic]", PyArray_DescrCheck)
};

}  // namespace hocket
