"""Many calls on many communicators: ``python -m tests.runtime.soak [--small N] [--large N] [--communicators N]``.

Calls of every collective, of a few elements or of a megabyte a block, in a random order over communicators that were
split off each other, of which some are closed and made again on the way. Every result is compared with NumPy's. After
each lap, with the same communicators open, a rank looks at its memory and descriptors: neither may have grown since it
was warm. Prints a row a lap and a verdict; exits with 1 if something grew or was wrong.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket import Communicator
from hocket.algorithms import ring
from tests.test_family import ROOTED, ROOTLESS, given, wanted

WARM = 2  # laps
REMADE = 3  # communicators, after each lap
BATCH = 10_000  # calls drawn at a time
GROWTH = 2 << 20  # bytes by which a heap may breathe
LARGE = 1 << 17  # elements of a block
VALUES = 3  # sets of values for each kind of call, in turn: a result left over is a wrong one

# glibc's threshold for blocks of their own rises with the blocks that are freed: arrays of a megabyte would move to
# where small ones are, and leave gaps there of several megabytes. A threshold that is given stays. One heap for all
# threads has such gaps once.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}

Array = NDArray[np.generic]
Step = Callable[[], None]


def nothing() -> None:
    """The part of a rank that is not in a communicator."""


@functools.cache
def values(
    name: str, rank: int, size: int, elements: int, dtype: str, root: int
) -> tuple[Array, list[Array], list[bytes | None]]:
    """Room for an input, and inputs with what must come out. Kept, so that new communicators move no heap."""
    inputs, results = [], []
    for value in range(VALUES):
        xs = [given(name, r, size, (elements,)) + 1000 * value for r in range(size)]
        expected = wanted(name, xs, rank, root)
        inputs.append(xs[rank].astype(dtype))
        results.append(None if expected is None else expected.astype(dtype).tobytes())
    return np.empty_like(inputs[0]), inputs, results


def step(comm: Communicator, name: str, elements: int, dtype: str, root: int, in_background: bool) -> Step:
    """One kind of call, which is made and judged each time that this is called."""
    x, inputs, results = values(name, comm.rank, comm.size, elements, dtype, root)
    turn = 0
    call = getattr(comm, name)
    keywords = {"root": root} if name in ROOTED else {}
    if in_background:
        keywords["async_"] = True

    def make() -> None:
        nonlocal turn
        turn = (turn + 1) % VALUES
        x[:] = inputs[turn]
        found = call(x, **keywords)
        if in_background:
            found = found.wait()
        assert (None if found is None else found.tobytes()) == results[turn], (name, elements, dtype, root, comm)

    return make


class Member:
    """One of the communicators, and what is called on it. Number ``n`` is always made in the same way."""

    def __init__(self, number: int, parent: Communicator) -> None:
        rank = parent.rank
        match number % 5:
            case 0 | 1:
                self.comm: Communicator | None = parent.dup()
            case 2:
                self.comm = parent.split(0, key=-rank)
            case 3:
                self.comm = parent.split(rank % 2)
            case 4:
                self.comm = parent.split(None if rank == number % parent.size else 0)
        self.small: list[Step] = [nothing] * (len(ROOTLESS + ROOTED) * 3 + 2)
        self.large: Step = nothing
        if self.comm is None:
            return
        kinds = ((1, "int64"), (3, "float32"), (17, "float64"))
        root = number % self.comm.size
        self.small = [
            step(self.comm, name, elements, dtype, root, in_background=False)
            for name in ROOTLESS + ROOTED
            for elements, dtype in kinds
        ]
        self.small += [self.comm.barrier, step(self.comm, "all_reduce", 2, "int64", 0, in_background=True)]
        name = (ROOTLESS + ROOTED)[number % len(ROOTLESS + ROOTED)]
        self.large = step(self.comm, name, LARGE, "float64", root, in_background=False)
        queued = step(self.comm, "all_reduce", LARGE, "float64", 0, in_background=True)  # starts the thread
        for warm in (*self.small, self.large, queued):
            warm()
        # A schedule that nobody keeps.
        x = np.full(5, self.comm.rank)
        self.comm.run(ring.all_reduce(self.comm.size, channels=2).compile(), x)
        assert (x == self.comm.size * (self.comm.size - 1) // 2).all()

    def close(self) -> None:
        if self.comm is not None:
            self.comm.close()


@dataclass(frozen=True)
class Use:
    """What this process holds: bytes of its own, of shared memory that is mapped and of files without a name."""

    own: int
    mapped: int
    files: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Use:
        lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
        rollup = {words[0]: int(words[1]) << 10 for words in lines}
        descriptors = list(Path("/proc/self/fd").iterdir())
        files = [path for path in descriptors if path.is_symlink() and str(path.readlink()).startswith("/memfd:")]
        blocks = sum(path.stat().st_blocks for path in files)
        threads = len(list(Path("/proc/self/task").iterdir()))
        return cls(rollup["Anonymous:"], rollup["Pss_Shmem:"], blocks * 512, len(descriptors), threads)


def row(*cells: object) -> str:
    return "".join(f"{cell:>13}" for cell in cells)


def on_each_rank(base: Communicator, small: int, large: int, communicators: int, laps: int, seed: int) -> list[Use]:
    """Make the calls. Returns what was held after each lap."""
    rng = random.Random(seed)
    members: list[Member] = []
    for number in range(communicators):
        members.append(Member(number, parent_of(base, members, number)))
    uses: list[Use] = []
    begun = time.perf_counter()
    if base.rank == 0:
        print(
            row("small", "large", "seconds", "us a call", "own MB", "mapped MB", "files MB", "descriptors", "threads")
        )
    for lap in range(laps):
        few, many = share(large, lap, laps), share(small, lap, laps)
        started = time.perf_counter()
        for at in range(0, max(many, 1), BATCH):
            left = min(BATCH, many - at)
            calls = [s for member in rng.choices(members, k=left) for s in (rng.choice(member.small),)]
            batch = share(few, at // BATCH, -(-many // BATCH) or 1)
            calls += [member.large for member in rng.choices(members, k=batch)]
            rng.shuffle(calls)
            for call in calls:
                call()
        seconds = time.perf_counter() - started
        for number in rng.sample(range(communicators), min(REMADE, communicators)):
            members[number].close()
            members[number] = Member(number, parent_of(base, members, number))
        base.barrier()
        uses.append(use := Use.now())
        if base.rank == 0:
            print(
                row(
                    small * (lap + 1) // laps,
                    large * (lap + 1) // laps,
                    f"{time.perf_counter() - begun:.1f}",
                    f"{seconds / max(1, few + many) * 1e6:.1f}",
                    *(f"{size / (1 << 20):.2f}" for size in (use.own, use.mapped, use.files)),
                    use.descriptors,
                    use.threads,
                ),
                flush=True,
            )
    for member in members:
        member.close()
    return uses


def share(total: int, part: int, parts: int) -> int:
    """How many of ``total`` are in a part of several equal ones."""
    return total * (part + 1) // parts - total * part // parts


def parent_of(base: Communicator, members: list[Member], number: int) -> Communicator:
    """Where a communicator is split off: the first, or one before it that has all ranks too."""
    before = members[number - 1].comm if number % 5 in (1, 3) else None
    return base if before is None else before


def growth(uses: list[Use]) -> list[str]:
    """What grew since a rank was warm, from the first third of the laps to the last."""
    uses = uses[WARM:]
    third = max(1, len(uses) // 3)
    found = []
    for field in fields(Use):
        values = [getattr(use, field.name) for use in uses]
        first, last = min(values[:third]), min(values[-third:])
        allowed = GROWTH if field.name in ("own", "mapped") else 0
        if last - first > allowed:
            found.append(f"{field.name} grew from {first} to {last}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000_000)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--communicators", type=int, default=20)
    parser.add_argument("--laps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.ranks} ranks, {given.communicators} communicators", flush=True)
    os.environ.update(MALLOC)  # read as a rank starts
    words = (given.small, given.large, given.communicators, given.laps, given.seed)
    found = [
        f"rank {rank}: {what}"
        for rank, uses in enumerate(hocket.spawn(on_each_rank, given.ranks, words))
        for what in growth(uses)
    ]
    print(*found, sep="\n", end="\n" * bool(found))
    grew = "something grew" if found else "no growth"
    print(f"{given.small} small and {given.large} large calls: all results right, {grew}")
    sys.exit(bool(found))


if __name__ == "__main__":
    from tests.runtime import soak  # under its own name, so that ranks import it too

    soak.main()
