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

// `type` is not MPI_DATATYPE_NULL. One that a program has made is known once it is committed, and so are its
// duplicates; before, it counts as not packed.
Datatype datatype(const Library& mpi, Handle type);

// Finds out what a type is, as a program has committed it. `type` is where its handle is.
void examine(const Library& mpi, const void* type);

}  // namespace hocket::mpi
