// Calls of a collective that go through libhocket_mpi.so, where it is preloaded, beside the same calls of the MPI
// itself, in turns of about a millisecond in one process: mpi_pairs COLLECTIVE BEGIN END TURNS FRESH [BARE CHUNK].
// mpi_pairs.py runs it. FRESH 1: each rank stores to what it sends before each call, as a program that computes it; 0:
// to none of it. BARE: instead of the library, an exchange between two ranks that does no more than it must, by
// messages of CHUNK bytes through slots, with stores through the caches (cached) or past them (nt), or by cross-memory
// attach (cma).
//
// A call is timed as OSU's programs do: all ranks come from a barrier (here the MPI's own), and the time is the mean
// over calls and ranks. Prints for each size, twice the last, in bytes of a rank's message (of a block, where it has
// one for each rank), and for each turn the microseconds of a call of either.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <emmintrin.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { THROUGH, ITSELF, SIDES };

static const double TURN = 1e-3;                   // seconds
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

// What a rank has posted to its slots, and freed of the other's, each on lines of its own; then its slots.
enum { SLOTS = 2, LINES = 128 };
typedef struct {
    _Alignas(LINES) atomic_ulong posted;
    _Alignas(LINES) atomic_ulong freed;
    _Alignas(LINES) char slots[];
} Area;

static struct {
    int rank, nt;
    size_t chunk;     // 0: by cross-memory attach
    Area *own, *far;  // this rank's, the other's
    const char* far_in;
    pid_t far_pid;
} bare;

static void await(atomic_ulong* counter, unsigned long least) {
    while (atomic_load_explicit(counter, memory_order_acquire) < least) _mm_pause();
}

static void post(char* slot, const char* from, size_t bytes) {
    if (!bare.nt || bytes % 16 != 0) {
        memcpy(slot, from, bytes);
    } else {
        for (size_t at = 0; at < bytes; at += 16)
            _mm_stream_si128((__m128i*)(slot + at), _mm_loadu_si128((const __m128i*)(from + at)));
        _mm_sfence();
    }
    atomic_fetch_add_explicit(&bare.own->posted, 1, memory_order_release);
}

// Sends `from` to the other rank, takes what it sends to `to`; meanwhile copies what this rank keeps.
static void through_slots(const char* from, char* to, const char* kept, char* kept_to, size_t bytes) {
    const size_t chunk = bare.chunk, count = (bytes + chunk - 1) / chunk;
    const unsigned long sent = bare.own->posted, taken = bare.own->freed;
    for (size_t k = 0; k <= count; ++k) {
        if (k < count) {
            await(&bare.far->freed, sent + k < SLOTS ? 0 : sent + k + 1 - SLOTS);
            post(bare.own->slots + (sent + k) % SLOTS * chunk, from + k * chunk,
                 k + 1 < count ? chunk : bytes - k * chunk);
        }
        if (k == 0) {
            memcpy(kept_to, kept, bytes);
            continue;
        }
        const size_t at = (k - 1) * chunk;
        await(&bare.far->posted, taken + k);
        memcpy(to + at, bare.far->slots + (taken + k - 1) % SLOTS * chunk, k < count ? chunk : bytes - at);
        atomic_store_explicit(&bare.own->freed, taken + k, memory_order_release);
    }
}

static void attached(const char* from, char* to, const char* kept, char* kept_to, size_t bytes) {
    const unsigned long call = atomic_fetch_add_explicit(&bare.own->posted, 1, memory_order_release) + 1;
    memcpy(kept_to, kept, bytes);
    await(&bare.far->posted, call);
    struct iovec local = {to, bytes}, remote = {(void*)from, bytes};
    if (process_vm_readv(bare.far_pid, &local, 1, &remote, 1, 0) != (ssize_t)bytes) {
        perror("process_vm_readv");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    atomic_store_explicit(&bare.own->freed, call, memory_order_release);
    await(&bare.far->freed, call);
}

static int bare_allgather(const void* in, int bytes, MPI_Datatype type, void* out, int count, MPI_Datatype to,
                          MPI_Comm comm) {
    (void)type, (void)count, (void)to, (void)comm;
    const size_t n = (size_t)bytes, own = (size_t)bare.rank * n, other = n - own;
    if (bare.chunk == 0) attached(bare.far_in, (char*)out + other, in, (char*)out + own, n);
    else through_slots(in, (char*)out + other, in, (char*)out + own, n);
    return MPI_SUCCESS;
}

static int bare_alltoall(const void* in, int bytes, MPI_Datatype type, void* out, int count, MPI_Datatype to,
                         MPI_Comm comm) {
    (void)type, (void)count, (void)to, (void)comm;
    const size_t n = (size_t)bytes, own = (size_t)bare.rank * n, other = n - own;
    const char* from = in;
    if (bare.chunk == 0) attached(bare.far_in + own, (char*)out + other, from + own, (char*)out + own, n);
    else through_slots(from + other, (char*)out + other, from + own, (char*)out + own, n);
    return MPI_SUCCESS;
}

// In place of the library. `in`: what all calls send.
static void be_bare(int rank, const char* way, size_t chunk, const void* in) {
    struct {
        const void* in;
        pid_t pid;
    } mine = {in, getpid()}, both[2];
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, both, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    bare.rank = rank;
    bare.nt = strcmp(way, "nt") == 0;
    bare.chunk = strcmp(way, "cma") == 0 ? 0 : chunk;
    bare.far_in = both[1 - rank].in;
    bare.far_pid = both[1 - rank].pid;
    MPI_Win window;
    MPI_Aint size;
    int unit;
    MPI_Win_allocate_shared((MPI_Aint)(sizeof(Area) + LINES + SLOTS * chunk), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                            &bare.own, &window);
    MPI_Win_shared_query(window, rank, &size, &unit, &bare.own);
    MPI_Win_shared_query(window, 1 - rank, &size, &unit, &bare.far);
    bare.own = (Area*)(((size_t)bare.own + LINES - 1) / LINES * LINES);  // both map it by whole pages
    bare.far = (Area*)(((size_t)bare.far + LINES - 1) / LINES * LINES);
    atomic_init(&bare.own->posted, 0);
    atomic_init(&bare.own->freed, 0);
    sides[THROUGH].allgather = bare_allgather;
    sides[THROUGH].alltoall = bare_alltoall;
    MPI_Barrier(MPI_COMM_WORLD);
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
        case 'a':
            sides[side].allreduce(cell->in, cell->out, floats, MPI_FLOAT, MPI_SUM, world);
            break;
        case 'r':
            sides[side].reduce(cell->in, cell->out, floats, MPI_FLOAT, MPI_SUM, 0, world);
            break;
        case 'b':
            sides[side].bcast(cell->in, bytes, MPI_CHAR, 0, world);
            break;
        case 'g':
            sides[side].allgather(cell->in, bytes, MPI_CHAR, cell->out, bytes, MPI_CHAR, world);
            break;
        default:
            sides[side].alltoall(cell->in, bytes, MPI_CHAR, cell->out, bytes, MPI_CHAR, world);
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
    while (argc >= 6 && which < 5 && strcmp(argv[1], names[which]) != 0) ++which;
    if ((argc != 6 && argc != 8) || which == 5 || (argc == 8 && (ranks != 2 || which < 3))) {
        fprintf(stderr,
                "usage: mpi_pairs allreduce|reduce|bcast|allgather|alltoall BEGIN END TURNS 0|1\n"
                "       mpi_pairs allgather|alltoall BEGIN END TURNS 0|1 cached|nt|cma CHUNK, on two ranks\n");
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
    char *in = aligned_alloc(4096, (room + 4095) / 4096 * 4096),
         *out = aligned_alloc(4096, (room + 4095) / 4096 * 4096);
    memset(in, 1, room);
    memset(out, 1, room);
    if (argc == 8) be_bare(rank, argv[6], (size_t)atoi(argv[7]), in);
    for (int bytes = begin; bytes <= end; bytes *= 2) {
        const char letter = letters[which];
        const size_t sent = (size_t)bytes * (size_t)(letter == 't' ? ranks : letter == 'b' ? rank == 0 : 1);
        const Cell cell = {letter, bytes, ranks, fresh ? sent : 0, in, out};
        double first[SIDES];  // of a second turn: hocket's ranks meet in one of the first calls
        for (int half = 0; half < 2 * SIDES; ++half) first[half % SIDES] = turn(half % SIDES, &cell, 10);
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
