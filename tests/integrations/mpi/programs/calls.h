/* The collectives, each by its int form or, where `large` is set and the MPI has it, by its form for large counts. */
#pragma once

#include "check.h"

static int large;

#if MPI_VERSION >= 4
#define EITHER(name, ...) (large ? MPI_##name##_c(__VA_ARGS__) : MPI_##name(__VA_ARGS__))
#else
#define EITHER(name, ...) MPI_##name(__VA_ARGS__)
#endif

enum { MOST = 64 };

struct large_counts {
    MPI_Count counts[MOST];
    MPI_Aint places[MOST];
};

static inline struct large_counts widened(const int* counts, const int* places, MPI_Comm comm) {
    struct large_counts wide;
    int ranks;
    MPI_Comm_size(comm, &ranks);
    for (int i = 0; i < ranks; i++) wide.counts[i] = counts ? counts[i] : 0, wide.places[i] = places ? places[i] : 0;
    return wide;
}

#if MPI_VERSION >= 4
#define WIDE 1
#else
#define WIDE 0
#define MPI_Allgatherv_c(...) 0
#define MPI_Alltoallv_c(...) 0
#define MPI_Reduce_scatter_c(...) 0
#endif

static inline int allgatherv(const void* in, int count, MPI_Datatype type, void* out, const int* counts,
                             const int* places, MPI_Datatype to, MPI_Comm comm) {
    if (!WIDE || !large) return MPI_Allgatherv(in, count, type, out, counts, places, to, comm);
    struct large_counts wide = widened(counts, places, comm);
    (void)wide;
    return MPI_Allgatherv_c(in, count, type, out, wide.counts, wide.places, to, comm);
}

static inline int alltoallv(const void* in, const int* counts, const int* places, MPI_Datatype type, void* out,
                            const int* out_counts, const int* out_places, MPI_Datatype to, MPI_Comm comm) {
    if (!WIDE || !large) return MPI_Alltoallv(in, counts, places, type, out, out_counts, out_places, to, comm);
    struct large_counts from = widened(counts, places, comm), into = widened(out_counts, out_places, comm);
    (void)from, (void)into;
    return MPI_Alltoallv_c(in, from.counts, from.places, type, out, into.counts, into.places, to, comm);
}

static inline int reduce_scatter(const void* in, void* out, const int* counts, MPI_Datatype type, MPI_Op op,
                                 MPI_Comm comm) {
    if (!WIDE || !large) return MPI_Reduce_scatter(in, out, counts, type, op, comm);
    struct large_counts wide = widened(counts, NULL, comm);
    (void)wide;
    return MPI_Reduce_scatter_c(in, out, wide.counts, type, op, comm);
}
