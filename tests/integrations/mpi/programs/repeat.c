/* The same Allreduce again and again: repeat CALLS ELEMENTS. */
#include "check.h"

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    int calls = atoi(argv[1]), n = atoi(argv[2]);
    double *in = malloc((size_t)n * sizeof *in), *sum = malloc((size_t)n * sizeof *sum);
    for (int call = 0; call < calls; call++) {
        for (int i = 0; i < n; i++) in[i] = world_rank + i + call;
        MPI_Allreduce(in, sum, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        int last = n - 1, ranks = world_size;
        CHECK(sum[last] == ranks * (last + call) + ranks * (ranks - 1) / 2, "the sum of call %d is %g", call, sum[last]);
    }
    free(in);
    free(sum);
    return end();
}
