/* The last rank ends in the middle: faults HOW WHEN.

   HOW is kill, abort, exit (status 3), leave (status 0) or stay (until the job is ended); WHEN is first, before any
   collective, calls, after some, or setup, once the others make a communicator. */
#include <signal.h>
#include <unistd.h>

#include "check.h"

static void end_as(const char* how) {
    fflush(NULL);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "abort")) MPI_Abort(MPI_COMM_WORLD, 7);
    if (!strcmp(how, "exit")) exit(3);
    if (!strcmp(how, "leave")) exit(0);
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    if (argc < 3) return 2;
    const char *how = argv[1], *when = argv[2];
    int mine = world_rank == world_size - 1 && strcmp(how, "stay");
    static int in[50000], out[50000];
    MPI_Comm made;
    if (mine && !strcmp(when, "first")) end_as(how);
    for (int i = 0; i < 40; i++) MPI_Allreduce(in, out, i % 2 ? 50000 : 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("process %d\n", (int)getpid()), fflush(stdout);
    if (mine) end_as(how);
    if (!strcmp(when, "setup")) {
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        MPI_Allreduce(in, out, 50000, MPI_INT, MPI_SUM, made);
    }
    for (;;) MPI_Allreduce(in, out, 50000, MPI_INT, MPI_SUM, MPI_COMM_WORLD), MPI_Barrier(MPI_COMM_WORLD);
}
