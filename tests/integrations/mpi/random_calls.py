"""Random calls of MPI, on the MPI alone and with hocket: ``python -m tests.integrations.mpi.random_calls 10000``.

``--ranks``, ``--seed``, ``--nodes 2+2``; MPIs and hocket's library are those of launch.py. The program is
programs/random_calls.c: it checks each result itself, and compares it with that of the MPI alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.integrations.mpi import launch
from tests.integrations.mpi.launch import PROGRAMS, Done, Mpi

EVERYTHING = {"HOCKET_MPI": "min-bytes:0", "HOCKET_MPI_REPORT": "1"}
AS_MEASURED: dict[str, str] = {}
SECONDS = 0.25  # of one call, with its checks, where cores are shared


def compared(
    mpi: Mpi,
    program: Path,
    library: Path,
    *,
    ranks: int,
    calls: int,
    seed: int,
    folder: Path,
    variables: Mapping[str, str] = {},
) -> dict[str, Done]:
    """How the run of the MPI alone ended, and those with hocket, everything taken and by its defaults."""
    given = (str(seed), str(calls))
    bound = 60 + calls * SECONDS
    ended = {"alone": mpi.run(program, *given, "write", str(folder), ranks=ranks, timeout=bound)}
    for name, options in ("everything", EVERYTHING), ("defaults", AS_MEASURED):
        every = {**options, **variables}
        ended[name] = mpi.run(
            program, *given, "compare", str(folder), ranks=ranks, library=library, variables=every, timeout=bound
        )
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=10000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--nodes", default="", help="which ranks count as being on, as 2+1: there are as many")
    given = parser.parse_args()
    library, found = launch.library(), launch.find()
    if library is None or not found:
        print("there is no libhocket_mpi.so" if library is None else "there is no MPI")
        return 2
    wrong = 0
    for mpi in found:
        with tempfile.TemporaryDirectory() as folder:
            variables = launch.placed(given.nodes, Path(folder) / "plans") if given.nodes else {}
            program = mpi.compile(PROGRAMS / "random_calls.c", Path(folder))
            ended = compared(
                mpi,
                program,
                library,
                ranks=given.ranks,
                calls=given.calls,
                seed=given.seed,
                folder=Path(folder),
                variables=variables,
            )
        for name, done in ended.items():
            how = "right" if done.code == 0 else f"wrong\n{done.text}"
            if name == "everything" and not any(" taken" in line for line in done.report):
                how, wrong = "no call was taken", wrong + 1
            print(f"{mpi.name}, {given.ranks} ranks, {given.calls} calls, seed {given.seed}, {name}: {how}", flush=True)
            wrong += done.code != 0
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
