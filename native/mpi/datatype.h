// Datatypes that a call only moves: how many bytes they are, and whether those lie one behind the other.
#pragma once

#include "mpi/library.h"

namespace hocket::mpi {

// `packed`: elements have no gaps, and their bytes lie in the order of their signature. So do those of any other packed
// type of the same signature, whatever it was made of.
struct Datatype {
    u64 bytes;
    bool packed;
};

// Not for MPI_DATATYPE_NULL. What it finds of a type that a program has made stays with that, as an attribute.
Datatype datatype(const Library& mpi, Handle type);

}  // namespace hocket::mpi
