/* Four threads in collectives at once, each on its own communicator. */
#include <pthread.h>

#include "check.h"

enum { THREADS = 4, CALLS = 300, LARGEST = 20000 };

static MPI_Comm comms[THREADS];
static long made[THREADS], wrong[THREADS];

static void* calls(void* number) {
    long thread = (long)number;
    MPI_Comm comm = comms[thread];
    int *in = calloc(LARGEST * (size_t)world_size, sizeof(int)),
        *out = calloc(LARGEST * (size_t)world_size, sizeof(int));
    for (int call = 0; call < CALLS; call++) {
        uint64_t bits = mixed((uint64_t)(thread * CALLS + call));
        int n = (int)(1 + bits % (uint64_t[]){4, 1000, LARGEST}[bits / 7 % 3]), root = (int)(bits >> 40) % world_size;
        int mine = (int)(bits >> 8 & 0xff) + world_rank, base = mine - world_rank;
        for (int i = 0; i < n; i++) in[i] = mine;
        memset(out, 0, sizeof(int) * (size_t)n * (size_t)world_size);
        int want = base * world_size + world_size * (world_size - 1) / 2;
        switch (bits >> 56 & 3) {
            case 0:
                MPI_Allreduce(in, out, n, MPI_INT, MPI_SUM, comm);
                wrong[thread] += out[0] != want || out[n - 1] != want;
                break;
            case 1:
                MPI_Bcast(in, n, MPI_INT, root, comm);
                wrong[thread] += in[0] != base + root || in[n - 1] != base + root;
                break;
            case 2:
                MPI_Allgather(in, n, MPI_INT, out, n, MPI_INT, comm);
                for (int i = 0; i < world_size; i++)
                    wrong[thread] += out[i * n] != base + i || out[(i + 1) * n - 1] != base + i;
                break;
            default:
                MPI_Barrier(comm);
                MPI_Reduce(in, out, n, MPI_INT, MPI_SUM, root, comm);
                wrong[thread] += world_rank == root && (out[0] != want || out[n - 1] != want);
        }
        made[thread]++;
    }
    free(in), free(out);
    return NULL;
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, calls, (void*)i);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(made[i] == CALLS && wrong[i] == 0, "thread %d: %ld calls, %ld wrong", i, made[i], wrong[i]);
        MPI_Comm_free(&comms[i]);
    }
    return end();
}
