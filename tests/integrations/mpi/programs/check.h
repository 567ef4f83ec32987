/* What the programs share: checks that are counted, buffers between guards, and communicators of several kinds. */
#pragma once

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long checks, failures;
static int world_rank, world_size;

#define CHECK(condition, ...)                                                                        \
    do {                                                                                             \
        checks++;                                                                                    \
        if (!(condition) && failures++ < 10) {                                                       \
            fprintf(stderr, "rank %d: %s:%d: not %s: ", world_rank, __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                                            \
            fputc('\n', stderr);                                                                     \
        }                                                                                            \
    } while (0)

static inline void begin(int* argc, char*** argv, int level) {
    int provided;
    MPI_Init_thread(argc, argv, level, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (provided < level) {
        if (world_rank == 0) printf("skipped: the level of threads\n");
        MPI_Finalize();
        exit(0);
    }
}

/* The exit status. Rank 0 says how many checks it made. */
static inline int end(void) {
    MPI_Finalize();
    if (world_rank == 0) printf("checks: %ld\n", checks);
    if (failures) fprintf(stderr, "rank %d: %ld of %ld checks failed\n", world_rank, failures, checks);
    return failures != 0;
}

/* Whether the MPI says that it is this one: "Open MPI", "MPICH", "Intel". For mistakes of one, which are passed by. */
static inline int is(const char* name) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    return strstr(version, name) != NULL;
}

static inline uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

enum { GUARD = 64, FILLING = 0xa5 };

/* Bytes with a guard on both sides, all filled with one pattern. */
struct buffer {
    unsigned char *whole, *data;
    size_t bytes;
};

static inline struct buffer buffer_of(size_t bytes, size_t shift) {
    struct buffer made = {malloc(bytes + shift + 2 * GUARD), NULL, bytes};
    memset(made.whole, FILLING, bytes + shift + 2 * GUARD);
    made.data = made.whole + GUARD + shift;
    return made;
}

/* Whether `bytes` from an offset, which may lie outside, have the pattern. */
static inline int untouched(const struct buffer* buffer, ptrdiff_t from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer->data[from + (ptrdiff_t)i] != FILLING) return 0;
    return 1;
}

static inline int guarded(const struct buffer* buffer) {
    return untouched(buffer, -GUARD, GUARD) && untouched(buffer, (ptrdiff_t)buffer->bytes, GUARD);
}

static inline void drop(struct buffer* buffer) { free(buffer->whole); }

/* World, a dup, a split that leaves out nobody, one whose ranks are reversed, the even and the odd ranks. */
enum { COMMUNICATORS = 5 };

static inline void communicators(MPI_Comm made[COMMUNICATORS]) {
    made[0] = MPI_COMM_WORLD;
    MPI_Comm_dup(MPI_COMM_WORLD, &made[1]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &made[2]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &made[3]);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &made[4]);
}

static inline void free_communicators(MPI_Comm made[COMMUNICATORS]) {
    for (int i = 1; i < COMMUNICATORS; i++) MPI_Comm_free(&made[i]);
}
