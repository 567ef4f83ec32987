"""Ranks of several nodes that are killed: ``python -m tests.integrations.mpi.node_kills PREFIX [TRIALS [SEED]]``.

PREFIX is the directory of an environment with Open MPI, mpi4py and hocket: its launcher leaves the other ranks alone
(``--enable-recovery``), where others end the job. In each trial a rank of 2+2 or 2+1+1 is ended by SIGKILL in a call or
between two. Every other rank must raise within 5 seconds and name it, and nothing of theirs may be left in /dev/shm.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND = 5.0
PLACEMENTS = ("2+2", "2+1+1", "1+3", "1+1+1+1")


def trial(prefix: Path, placement: str, victim: int, calls: int, delay: float, elements: int) -> list[str]:
    """What is wrong."""
    before = ours()
    command = [str(prefix / "bin/mpiexec"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    command += ["--enable-recovery", "-n", "4", str(prefix / "bin/python"), "-m", __spec__.name]
    with tempfile.TemporaryDirectory() as knew:
        command += ["rank", knew, str(victim), str(calls), str(delay), str(elements)]
        environment = {**os.environ, "HOCKET_NODES": placement}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    found = {int(rank): float(seconds) for rank, seconds in re.findall(r"rank (\d) knew after (\S+) s", done.stdout)}
    others = {0, 1, 2, 3} - {victim}
    wrong = [f"rank {rank} did not name it:\n{done.stdout}\n{done.stderr}" for rank in others - set(found)]
    wrong += [f"rank {rank} knew after {found[rank]} s" for rank in others & set(found) if found[rank] > BOUND]
    return wrong + [f"{name} is left" for name in ours() - before]


def ours() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "hocket" in path.name}


def rank(knew: Path, victim: int, calls: int, delay: float, elements: int) -> None:
    """A rank of a trial. It ends without MPI_Finalize, which waits for all, once all others have a file in ``knew``.

    Until then it has MPI go on, which may still hold what it has sent.
    """
    import signal
    import threading

    import numpy as np
    from mpi4py import MPI

    import hocket

    comm = hocket.init(30, mpi=MPI.COMM_WORLD)
    x = np.ones(elements)
    for _ in range(calls):
        comm.all_reduce(x)
    comm.barrier()
    begun = time.monotonic()
    if comm.rank == victim:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            comm.all_reduce(x)
    except hocket.HocketError as error:
        if re.search(rf"rank {victim}\b", str(error)):
            late = time.monotonic() - begun - delay
            os.write(1, f"rank {comm.rank} knew after {late:.2f} s\n".encode())
        else:
            os.write(1, f"rank {comm.rank}: {error}\n".encode())
    comm.close()
    (knew / str(comm.rank)).touch()
    while len(list(knew.iterdir())) < comm.size - 1:
        MPI.COMM_WORLD.Iprobe()
    os._exit(0)


def main(prefix: Path, trials: int = 100, seed: int = 1) -> None:
    rng = random.Random(seed)
    for number in range(trials):
        chosen = rng.choice(PLACEMENTS), rng.randrange(4), rng.randrange(5), rng.uniform(0, 0.05)
        wrong = trial(prefix, *chosen, rng.choice([1, 1000, 100_000, 1_000_000]))
        if wrong:
            sys.exit(f"trial {number}, {chosen}: " + "\n".join(wrong))
    print(f"{trials} ranks killed: all others knew within {BOUND:.0f} s")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
    else:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
