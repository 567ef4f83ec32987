// Calls of a collective that go through libhocket_mpi.so, where it is preloaded, beside the same calls of the MPI
// itself, in turns of about a millisecond in one process: mpi_pairs COLLECTIVE BEGIN END TURNS FRESH. mpi_pairs.py runs
// it. FRESH 1: each rank stores to what it sends before each call, as a program that computes it; 0: to none of it.
//
// A call is timed as OSU's programs do: all ranks come from a barrier (here the MPI's own), and the time is the mean
// over calls and ranks. Prints for each size, twice the last, in bytes of a rank's message (of a block, where it has one
// for each rank), and for each turn the microseconds of a call of either.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THROUGH, ITSELF, SIDES };

static const double TURN = 1e-3;  // seconds
static const int LEAST = 4, MOST = 500, WARM = 2;  // calls of a turn, and before it

static struct {
    int (*allreduce)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
    int (*reduce)(const void*, void*, int, MPI_Datatype, MPI_Op, int, MPI_Comm);
    int (*bcast)(void*, int, MPI_Datatype, int, MPI_Comm);
    int (*allgather)(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm);
    int (*alltoall)(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm);
    int (*barrier)(MPI_Comm);
} sides[SIDES] = {{MPI_Allreduce, MPI_Reduce, MPI_Bcast, MPI_Allgather, MPI_Alltoall, MPI_Barrier}};

// A function of the MPI library, past any of the same name that is preloaded.
static void* itself(const char* name) {
    Dl_info where;
    void* init = dlsym(RTLD_NEXT, "MPI_Init");  // nobody stands for that
    void* library = dladdr(init, &where) != 0 ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void* found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL) {
        fprintf(stderr, "no %s in the MPI library\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return found;
}

// A size of a collective. `stored`: bytes that this rank stores to `in` before each call.
typedef struct {
    char which;
    int bytes, ranks;
    size_t stored;
    void *in, *out;
} Cell;

static void call(int side, const Cell* cell) {
    const MPI_Comm world = MPI_COMM_WORLD;
    const int bytes = cell->bytes, floats = bytes / 4;
    switch (cell->which) {
        case 'a': sides[side].allreduce(cell->in, cell->out, floats, MPI_FLOAT, MPI_SUM, world); break;
        case 'r': sides[side].reduce(cell->in, cell->out, floats, MPI_FLOAT, MPI_SUM, 0, world); break;
        case 'b': sides[side].bcast(cell->in, bytes, MPI_CHAR, 0, world); break;
        case 'g': sides[side].allgather(cell->in, bytes, MPI_CHAR, cell->out, bytes, MPI_CHAR, world); break;
        default: sides[side].alltoall(cell->in, bytes, MPI_CHAR, cell->out, bytes, MPI_CHAR, world);
    }
}

// Seconds of a call: the mean over calls, then over ranks; the same on all.
static double turn(int side, const Cell* cell, int calls) {
    double spent = 0, total = 0;
    for (int c = -WARM; c < calls; ++c) {
        memset(cell->in, 1 + (c & 1), cell->stored);
        sides[ITSELF].barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        call(side, cell);
        if (c >= 0) spent += MPI_Wtime() - begin;
    }
    sides[ITSELF].allreduce(&spent, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return total / calls / cell->ranks;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    static const char* const names[] = {"allreduce", "reduce", "bcast", "allgather", "alltoall"};
    static const char letters[] = "arbgt";
    int rank, ranks, which = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (argc == 6 && which < 5 && strcmp(argv[1], names[which]) != 0) ++which;
    if (argc != 6 || which == 5) {
        fprintf(stderr, "usage: mpi_pairs allreduce|reduce|bcast|allgather|alltoall BEGIN END TURNS 0|1\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    *(void**)&sides[ITSELF].allreduce = itself("PMPI_Allreduce");
    *(void**)&sides[ITSELF].reduce = itself("PMPI_Reduce");
    *(void**)&sides[ITSELF].bcast = itself("PMPI_Bcast");
    *(void**)&sides[ITSELF].allgather = itself("PMPI_Allgather");
    *(void**)&sides[ITSELF].alltoall = itself("PMPI_Alltoall");
    *(void**)&sides[ITSELF].barrier = itself("PMPI_Barrier");
    const int begin = atoi(argv[2]), end = atoi(argv[3]), turns = atoi(argv[4]), fresh = atoi(argv[5]);
    const size_t room = (size_t)end * (size_t)(letters[which] == 'g' || letters[which] == 't' ? ranks : 1);
    char *in = aligned_alloc(4096, (room + 4095) / 4096 * 4096), *out = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    memset(in, 1, room);
    memset(out, 1, room);
    for (int bytes = begin; bytes <= end; bytes *= 2) {
        const char letter = letters[which];
        const size_t sent = (size_t)bytes * (size_t)(letter == 't' ? ranks : letter == 'b' ? rank == 0 : 1);
        const Cell cell = {letter, bytes, ranks, fresh ? sent : 0, in, out};
        double first[SIDES];  // of a second turn: hocket's ranks meet in one of the first calls
        for (int half = 0; half < 2 * SIDES; ++half)
            first[half % SIDES] = turn(half % SIDES, &cell, 10);
        for (int pair = 0; pair < turns; ++pair) {
            double found[SIDES];
            for (int half = 0; half < SIDES; ++half) {
                const int side = half ^ (pair & 1), wanted = (int)(TURN / first[side]);
                const int calls = wanted < LEAST ? LEAST : wanted > MOST ? MOST : wanted;
                found[side] = turn(side, &cell, calls);
            }
            if (rank == 0) printf("%d %.4f %.4f\n", bytes, 1e6 * found[THROUGH], 1e6 * found[ITSELF]);
        }
    }
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
