"""Collectives of NumPy's arrays through mpi4py, which loads its MPI where other libraries do not see it."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
everybody = np.arange(ranks)
checks = 0


def check(right: bool) -> None:
    global checks
    assert right
    checks += 1


for comm in world, world.Dup(), world.Split(0, rank):
    for n in 1, 1000, 100000:
        given = np.full(n, rank + 1.0)
        found = np.empty(n)
        comm.Allreduce(given, found)
        check((found == ranks * (ranks + 1) / 2).all())
        comm.Allreduce(MPI.IN_PLACE, given, op=MPI.MAX)
        check((given == ranks).all())
        given[:] = rank
        comm.Reduce(given, found, root=ranks - 1)
        check(rank != ranks - 1 or (found == ranks * (ranks - 1) / 2).all())
        comm.Bcast(given, root=ranks - 1)
        check((given == ranks - 1).all())
        mine = np.full(n, rank, np.float32)
        rows = np.empty((ranks, n), np.float32)
        comm.Allgather(mine, rows)
        check((rows == everybody[:, None]).all())
        counts = [n + each for each in range(ranks)]
        parts = np.empty(sum(counts), np.int16)
        comm.Allgatherv(np.full(counts[rank], rank, np.int16), [parts, counts])
        check((parts == np.repeat(everybody, counts)).all())
        rows[:] = rank * 100 + everybody[:, None]
        columns = np.empty_like(rows)
        comm.Alltoall(rows, columns)
        check((columns == everybody[:, None] * 100 + rank).all())
        part = np.empty(n, np.int64)
        comm.Reduce_scatter_block(np.arange(n * ranks), part, op=MPI.SUM)
        check((part == ranks * np.arange(rank * n, (rank + 1) * n)).all())
        comm.Barrier()
    check(comm.allreduce({rank}, op=lambda a, b: a | b) == set(range(ranks)))  # of objects: pickled, as messages
    check(comm.bcast([rank] * 5, root=0) == [0] * 5)
if rank == 0:
    print(f"checks: {checks}")
