/* Errors that all ranks make: prints the class that MPI reports for each, and how often the handler was called. */
#include "check.h"

static int handled;
static MPI_Comm comm, told;

static void handler(MPI_Comm* on, int* code, ...) {
    (void)code;
    handled++, told = *on;
}

static int a[256], b[256], counts[64], places[64];

#define SAID(what, call)                                                       \
    do {                                                                       \
        handled = 0, told = MPI_COMM_NULL;                                     \
        int code_ = (call), class_ = MPI_SUCCESS;                              \
        if (code_) MPI_Error_class(code_, &class_);                            \
        if (!world_rank)                                                       \
            printf("%s: class %d, handled %d, on %s\n", what, class_, handled, \
                   told == comm            ? "it"                              \
                   : told == MPI_COMM_NULL ? "none"                            \
                                           : "another");                       \
        fflush(stdout);                                                        \
    } while (0)

static void arguments(void) {
    int large = world_size, *in = a, *out = b;
    MPI_Datatype raw, pair;
    MPI_Type_contiguous(2, MPI_INT, &raw);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    for (int i = 0; i < world_size; i++) counts[i] = 1, places[i] = i;
    SAID("Bcast, count -1", MPI_Bcast(in, -1, MPI_INT, 0, comm));
    SAID("Allgather, count -1", MPI_Allgather(in, -1, MPI_INT, out, 1, MPI_INT, comm));
    SAID("Allgather, receive count -1", MPI_Allgather(in, 1, MPI_INT, out, -1, MPI_INT, comm));
    SAID("Alltoall, count -1", MPI_Alltoall(in, -1, MPI_INT, out, -1, MPI_INT, comm));
    SAID("Gather, count -1", MPI_Gather(in, -1, MPI_INT, out, -1, MPI_INT, 0, comm));
    SAID("Scatter, count -1", MPI_Scatter(in, -1, MPI_INT, out, -1, MPI_INT, 0, comm));
    SAID("Bcast, root too large", MPI_Bcast(in, 1, MPI_INT, large, comm));
    SAID("Bcast, root -5", MPI_Bcast(in, 1, MPI_INT, -5, comm));
    SAID("Reduce, root too large", MPI_Reduce(in, out, 1, MPI_INT, MPI_SUM, large, comm));
    SAID("Gather, root -5", MPI_Gather(in, 1, MPI_INT, out, 1, MPI_INT, -5, comm));
    SAID("Scatter, root too large", MPI_Scatter(in, 1, MPI_INT, out, 1, MPI_INT, large, comm));
    SAID("Allreduce, no operator", MPI_Allreduce(in, out, 1, MPI_INT, MPI_OP_NULL, comm));
    SAID("Reduce, no operator", MPI_Reduce(in, out, 1, MPI_INT, MPI_OP_NULL, 0, comm));
    SAID("Allreduce, BAND of doubles", MPI_Allreduce(in, out, 1, MPI_DOUBLE, MPI_BAND, comm));
    SAID("Allreduce, LAND of doubles", MPI_Allreduce(in, out, 1, MPI_DOUBLE, MPI_LAND, comm));
    SAID("Allreduce, SUM of bytes", MPI_Allreduce(in, out, 1, MPI_BYTE, MPI_SUM, comm));
    SAID("Allreduce, SUM of char", MPI_Allreduce(in, out, 1, MPI_CHAR, MPI_SUM, comm));
    SAID("Allreduce, MAX of complex", MPI_Allreduce(in, out, 1, MPI_C_DOUBLE_COMPLEX, MPI_MAX, comm));
    SAID("Allreduce, MINLOC of ints", MPI_Allreduce(in, out, 1, MPI_INT, MPI_MINLOC, comm));
    SAID("Allreduce, SUM of pairs", MPI_Allreduce(in, out, 1, MPI_2INT, MPI_SUM, comm));
    SAID("Allreduce, SUM of a derived type", MPI_Allreduce(in, out, 1, pair, MPI_SUM, comm));
    SAID("Reduce_scatter_block, BXOR of floats", MPI_Reduce_scatter_block(in, out, 1, MPI_FLOAT, MPI_BXOR, comm));
    SAID("Bcast, no type", MPI_Bcast(in, 1, MPI_DATATYPE_NULL, 0, comm));
    SAID("Bcast, a type not committed", MPI_Bcast(in, 1, raw, 0, comm));
    SAID("Allgather, no type", MPI_Allgather(in, 1, MPI_INT, out, 1, MPI_DATATYPE_NULL, comm));
    SAID("Allreduce, one buffer for both", MPI_Allreduce(in, in, 1, MPI_INT, MPI_SUM, comm));
    SAID("Allreduce into MPI_IN_PLACE", MPI_Allreduce(in, MPI_IN_PLACE, 1, MPI_INT, MPI_SUM, comm));
    for (int i = 0; i < world_size; i++) counts[i] = -1;
    SAID("Allgatherv, counts of -1", MPI_Allgatherv(in, 1, MPI_INT, out, counts, places, MPI_INT, comm));
    SAID("Alltoallv, counts of -1", MPI_Alltoallv(in, counts, places, MPI_INT, out, counts, places, MPI_INT, comm));
    if (!is("MPICH Version")) { /* 5.0.2 fails in what follows such errors */
        SAID("Allreduce, count -1", MPI_Allreduce(in, out, -1, MPI_INT, MPI_SUM, comm));
        SAID("Reduce, count -1", MPI_Reduce(in, out, -1, MPI_INT, MPI_SUM, 0, comm));
        SAID("Reduce_scatter_block, count -1", MPI_Reduce_scatter_block(in, out, -1, MPI_INT, MPI_SUM, comm));
        SAID("Reduce_scatter, counts of -1", MPI_Reduce_scatter(in, out, counts, MPI_INT, MPI_SUM, comm));
        SAID("Allreduce, no type", MPI_Allreduce(in, out, 1, MPI_DATATYPE_NULL, MPI_SUM, comm));
    }
    MPI_Type_free(&raw), MPI_Type_free(&pair);
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    MPI_Errhandler mine;
    MPI_Comm_create_errhandler(handler, &mine);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    arguments();
    SAID("Bcast, no communicator", MPI_Bcast(a, 1, MPI_INT, 0, MPI_COMM_NULL));
    SAID("Barrier, no communicator", MPI_Barrier(MPI_COMM_NULL));
    SAID("Allreduce, no communicator", MPI_Allreduce(a, b, 1, MPI_INT, MPI_SUM, MPI_COMM_NULL));
    MPI_Comm_set_errhandler(comm, mine);
    arguments();
    int one = 1, sum = 0;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == world_size, "after errors, the sum is %d", sum);
    MPI_Errhandler_free(&mine), MPI_Comm_free(&comm);
    return end();
}
