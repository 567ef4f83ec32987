/* The order of a sum is the same on all ranks, and in one run that of another: order [rank-order].

   With `rank-order` every sum is that of rank 0, 1, 2, ... in turn. */
#include "check.h"

static const int lengths[] = {1, 2, 7, 100, 1000, 12345, 200000};

/* Numbers of very different sizes, so that each order rounds otherwise. */
static float element(int rank, size_t i) {
    uint64_t bits = mixed((uint64_t)rank << 32 | i);
    return ((float)(bits & 0xffff) - 32768) * (float[]){1e-4f, 1.0f, 1e4f, 3e7f}[bits >> 60 & 3];
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    int in_order = argc > 1;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        size_t n = (size_t)lengths[k], bytes = n * sizeof(float);
        float *in = malloc(bytes), *sum = malloc(bytes), *again = malloc(bytes), *first = malloc(bytes),
              *want = malloc(bytes);
        for (size_t i = 0; i < n; i++) {
            in[i] = element(world_rank, i), want[i] = element(0, i);
            for (int rank = 1; rank < world_size; rank++) want[i] += element(rank, i);
        }
        MPI_Allreduce(in, sum, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        memcpy(first, sum, bytes);
        MPI_Bcast(first, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        CHECK(!memcmp(first, sum, bytes), "the sums of %zu differ between ranks", n);
        MPI_Allreduce(in, again, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(!memcmp(again, sum, bytes), "the sum of %zu is another the second time", n);
        if (in_order) {
            CHECK(!memcmp(want, sum, bytes), "Allreduce of %zu is not in the order of ranks", n);
            memset(again, 0, bytes);
            MPI_Reduce(in, again, (int)n, MPI_FLOAT, MPI_SUM, world_size - 1, MPI_COMM_WORLD);
            CHECK(world_rank != world_size - 1 || !memcmp(want, again, bytes),
                  "Reduce of %zu is not in the order of ranks", n);
            size_t part = n / (size_t)world_size;
            MPI_Reduce_scatter_block(in, again, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            CHECK(!memcmp(want + part * (size_t)world_rank, again, part * sizeof(float)), "Reduce_scatter_block of %zu",
                  n);
        }
        free(in), free(sum), free(again), free(first), free(want);
    }
    return end();
}
