// What calls came to: kept when a communicator goes, and printed once a job.
#pragma once

#include <string>

#include "mpi/library.h"

namespace hocket::mpi {

// Calls of a collective on communicators of a name and size, that were all taken, or passed on for one reason.
struct Tally {
    u64 calls = 0, bytes = 0;
    double seconds = 0;
};

// Adds to what is to be printed.
void note(const std::string& communicator, u32 size, const char* collective, const std::string& why,
          const Tally& tally);

// Prints what all ranks have noted, on standard error of rank 0. All ranks of MPI_COMM_WORLD call it.
void print_report(const Library& mpi);

}  // namespace hocket::mpi
