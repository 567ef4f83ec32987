"""One rank of a data-parallel step, through mpi4py: ``mpiexec -n 2 python mpi_step.py STEPS``; for mpi_speed.py.

The gradients of a network, float32, summed in place by an Allreduce for every 25 MB, the last layers first, as torch's
DDP does. Rank 0 prints "NAME milliseconds" for each network: the median over steps of the slowest rank's time.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

PARAMETERS = {"ResNet-50": 25_557_032, "VGG-16": 138_357_544}
BUCKET = (25 << 20) // 4


def main() -> None:
    world = MPI.COMM_WORLD
    for name, count in PARAMETERS.items():
        gradients = np.empty(count, np.float32)
        buckets = [gradients[max(stop - BUCKET, 0) : stop] for stop in range(count, 0, -BUCKET)]
        taken = []
        for _ in range(int(sys.argv[1]) + 1):
            gradients.fill(world.rank + 1)
            world.Barrier()
            begin = time.perf_counter()
            for bucket in buckets:
                world.Allreduce(MPI.IN_PLACE, bucket)
            taken.append(world.allreduce(time.perf_counter() - begin, MPI.MAX))
            if not (gradients == world.size * (world.size + 1) / 2).all():
                sys.exit(f"rank {world.rank}: wrong sums")
        if world.rank == 0:
            print(name, 1e3 * statistics.median(taken[1:]), flush=True)


if __name__ == "__main__":
    main()
