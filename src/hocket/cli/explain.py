"""``hocket explain``: what a call by name runs."""

from __future__ import annotations

import hocket
from hocket import Communicator
from hocket.cli.progress import working
from hocket.cli.target import check_collective, check_processes
from hocket.errors import UsageError
from hocket.explain import Explanation

_MOST_RANKS = 64
"""Each rank is a process that is started for the answer: more take minutes."""


def explained(name: str, ranks: int, size: int, root: int) -> Explanation:
    """What the communicator of so many processes says of a call; raises UsageError for what makes no call."""
    check_collective(name)
    if root >= ranks:
        raise UsageError(f"there is no rank {root} of {ranks} to be the root")
    check_processes(ranks, _MOST_RANKS)
    with working(f"asking {ranks} processes"):
        found = hocket.spawn(_on_each_rank, ranks, (name, size, root))[0]
    assert found is not None
    return found


def _on_each_rank(comm: Communicator, name: str, size: int, root: int) -> Explanation | None:
    return comm.explain(name, size, root=root) if comm.rank == 0 else None
