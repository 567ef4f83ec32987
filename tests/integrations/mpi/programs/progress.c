/* Messages under way progress while their sender waits in a collective, or else these would never end.

   progress [NAME ...], by default all. Rank 0 starts something that needs it to go on, and enters a collective; the
   last rank waits for it to be over before it enters the same. */
#include "check.h"

enum { BYTES = 4 << 20 };
static char* data;

typedef void collective(MPI_Comm comm);

static void barrier(MPI_Comm comm) { MPI_Barrier(comm); }

static void all_reduce(MPI_Comm comm) {
    int one = 1, sum, ranks;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    MPI_Comm_size(comm, &ranks);
    CHECK(sum == ranks, "the sum is %d", sum);
}

static void large_all_reduce(MPI_Comm comm) {
    enum { N = 100000 };
    int *in = calloc(N, sizeof(int)), *out = calloc(N, sizeof(int)), ranks;
    for (int i = 0; i < N; i++) in[i] = i;
    MPI_Allreduce(in, out, N, MPI_INT, MPI_SUM, comm);
    MPI_Comm_size(comm, &ranks);
    CHECK(out[N - 1] == (N - 1) * ranks, "the sum is %d", out[N - 1]);
    free(in), free(out);
}

/* Rank 0 only receives: what it waits for is the root. */
static void broadcast(MPI_Comm comm) {
    int value = world_rank, ranks;
    MPI_Comm_size(comm, &ranks);
    MPI_Bcast(&value, 1, MPI_INT, ranks - 1, comm);
    CHECK(value == world_size - 1, "%d came", value);
}

static void all_to_all(MPI_Comm comm) {
    int in[64], out[64];
    for (int i = 0; i < world_size; i++) in[i] = world_rank;
    MPI_Alltoall(in, 1, MPI_INT, out, 1, MPI_INT, comm);
    for (int i = 0; i < world_size; i++) CHECK(out[i] == i, "%d came from %d", out[i], i);
}

static collective* const collectives[] = {barrier, all_reduce, large_all_reduce, broadcast, all_to_all};
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

static void sent(collective* next, int synchronous) {
    MPI_Request request = MPI_REQUEST_NULL;
    int last = world_size - 1;
    if (world_rank == 0)
        (synchronous ? MPI_Issend : MPI_Isend)(data, BYTES, MPI_BYTE, last, 1, MPI_COMM_WORLD, &request);
    if (world_rank == last) {
        MPI_Irecv(data, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    next(MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Meanwhile a message that rank 0 takes only later is there for whoever looks. */
static void unreceived(collective* next) {
    int last = world_size - 1, value = 3;
    if (world_rank == last) MPI_Send(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    sent(next, 1);
    if (world_rank == 0) MPI_Recv(&value, 1, MPI_INT, last, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void isend(collective* next) { sent(next, 0); }
static void issend(collective* next) { sent(next, 1); }

/* A rank that waits is the target of a lock and a put. */
static void put(collective* next) {
    MPI_Win window;
    int last = world_size - 1, value = 7, *memory;
    MPI_Win_allocate(sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    *memory = 0;
    MPI_Win_fence(0, window);
    if (world_rank == last) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Put(&value, 1, MPI_INT, 0, 0, 1, MPI_INT, window);
        MPI_Win_unlock(0, window);
    }
    next(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, world_rank, 0, window);
    CHECK(world_rank || *memory == 7, "%d was put", *memory);
    MPI_Win_unlock(world_rank, window);
    MPI_Win_free(&window);
}

/* Rank 0 has begun a collective that does not block; another waits for its end. */
static void non_blocking(collective* next) {
    MPI_Request request;
    MPI_Comm apart;
    MPI_Comm_dup(MPI_COMM_WORLD, &apart);
    char* out = malloc(BYTES);
    MPI_Iallreduce(data, out, BYTES, MPI_BYTE, MPI_BXOR, apart, &request);
    if (world_rank) MPI_Wait(&request, MPI_STATUS_IGNORE);
    next(MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(out), MPI_Comm_free(&apart);
}

/* Two other ranks talk on while the rest wait: those must not be held up either. */
static void others_talk(collective* next) {
    int last = world_size - 1;
    if (world_rank == 0 || world_rank == last)
        for (int i = 0; i < 20; i++)
            MPI_Sendrecv_replace(data, 100000, MPI_BYTE, last - world_rank, 2, last - world_rank, 2, MPI_COMM_WORLD,
                                 MPI_STATUS_IGNORE);
    next(MPI_COMM_WORLD);
}

#define NAMED(name) {#name, name}

static const struct {
    const char* name;
    void (*run)(collective*);
} starts[] = {NAMED(isend), NAMED(issend), NAMED(unreceived), NAMED(non_blocking), NAMED(others_talk), NAMED(put)};

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    data = calloc(BYTES, 1);
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        int wanted = argc == 1;
        for (int k = 1; k < argc; k++) wanted |= !strcmp(argv[k], starts[i].name);
        for (int c = 0; c < COLLECTIVES && wanted; c++) {
            if (!world_rank) printf("%s, collective %d\n", starts[i].name, c), fflush(stdout);
            starts[i].run(collectives[c]);
        }
    }
    free(data);
    return end();
}
