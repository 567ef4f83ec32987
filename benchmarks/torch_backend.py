"""Collectives of torch.distributed on hocket and on Gloo: ``torchrun --nproc-per-node 2 benchmarks/torch_backend.py``.

For each collective and size, calls that wait and calls with ``async_op`` that are waited for at once. Bytes are those
of a rank's larger tensor, float32. ``--shapes N`` measures all_reduce over N tensors in turn that each have a shape of
their own, beside as many of one shape. ``--floor`` measures all_reduce of 4 bytes beside groups that do nothing: what
torch.distributed itself takes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (it names the backend "fake")
from torch_pairs import Body, Groups, mean

Call = Callable[[Tensor, Tensor, Tensor, dist.ProcessGroup, bool], dist.Work | None]
"""On the whole, another of its length, and a rank's part of it."""

COLLECTIVES: dict[str, Call] = {
    "all_reduce": lambda whole, other, part, group, later: dist.all_reduce(whole, group=group, async_op=later),
    "all_gather": lambda whole, other, part, group, later: dist.all_gather_single(whole, part, group, later),
    "reduce_scatter": lambda whole, other, part, group, later: dist.reduce_scatter_single(
        part, whole, group=group, async_op=later
    ),
    "all_to_all": lambda whole, other, part, group, later: dist.all_to_all_single(
        other, whole, group=group, async_op=later
    ),
    "broadcast": lambda whole, other, part, group, later: dist.broadcast(whole, 0, group, later),
}
SIZES = [4 << shift for shift in range(0, 25, 4)]


def bound(call: Call, whole: Tensor, size: int, later: bool) -> Body:
    other, part = torch.zeros_like(whole), torch.zeros(max(1, whole.numel() // size))

    def wait(group: dist.ProcessGroup) -> None:
        work = call(whole, other, part, group, True)
        assert work is not None
        work.wait()

    return wait if later else lambda group: call(whole, other, part, group, False)


def shapes(groups: Groups, number: int, given: argparse.Namespace) -> None:
    """What it costs that no two calls in succession have the same shape."""
    many = [torch.zeros(1000 + n) for n in range(number)]
    one = [torch.zeros(1000 + number // 2) for _ in range(number)]
    for name, tensors in ("one shape", one), (f"{number} shapes", many):
        for group in groups.pair:  # a shape is prepared once
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        turn = cycle(tensors)
        found = groups.compare(
            lambda group, turn=turn: dist.all_reduce(next(turn), group=group),
            seconds=given.seconds,
            rounds=given.rounds,
        )
        if groups.rank == 0:
            print(f"{name:>15} {found}", flush=True)


class Nothing(dist.ProcessGroup):  # type: ignore[misc]
    """A group in Python, as hocket's is, but nothing happens in it."""

    def allreduce(self, tensors: object, opts: object = None) -> None: ...

    def barrier(self, opts: object = None) -> None: ...


def floor(groups: Groups, given: argparse.Namespace) -> None:
    """Rank 0's median of windows that take turns, and of the ratios of their rounds."""
    x, calls = torch.zeros(1), 20_000
    kinds = {
        "a group that does nothing": Nothing(groups.rank, groups.size),
        "torch's fake group": dist.new_group(backend="fake"),
        "hocket": groups.pair[1],
    }
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(given.rounds + 1):
        for name in sorted(kinds, reverse=turn % 2 == 1):
            found = groups.window(kinds[name], lambda group: dist.all_reduce(x, group=group), calls if turn else 100)
            took[name] += [found] * (turn > 0)
    if groups.rank == 0:
        for name, found in took.items():
            ratio = median(ours / theirs for ours, theirs in zip(took["hocket"], found, strict=True))
            print(f"{name:>30}: {median(found):7.2f} us [{min(found):.2f}, {max(found):.2f}], hocket / it {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=list(COLLECTIVES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a window")
    parser.add_argument("--shapes", type=int, metavar="N")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    groups = Groups()
    if groups.rank == 0:
        print(f"{'collective':>15} {'bytes':>9} {'':>5}{'gloo us':>10}{'ours us':>10}{'ratio':>9}", flush=True)
    if given.floor:
        floor(groups, given)
    if given.shapes:
        shapes(groups, given.shapes, given)
    rows = []
    for name in given.collective if not (given.shapes or given.floor) else ():
        for size in SIZES:
            length = size // 4 if name == "all_reduce" or name == "broadcast" else max(groups.size, size // 4)
            whole = torch.zeros(length)
            for mode in "sync", "async":
                body = bound(COLLECTIVES[name], whole, groups.size, mode == "async")
                found = groups.compare(body, seconds=given.seconds, rounds=given.rounds)
                rows.append({"collective": name, "bytes": 4 * length, "mode": mode, **asdict(found)})
                if groups.rank == 0:
                    print(f"{name:>15} {4 * length:9} {mode:>5}{found}", flush=True)
    if groups.rank == 0 and rows:
        for mode in "sync", "async":
            of_mode = mean([row["ratio"] for row in rows if row["mode"] == mode])
            print(f"geometric mean, {mode}: {of_mode:.1f}")
        print(f"geometric mean: {mean([row['ratio'] for row in rows]):.1f}")
        if given.json is not None:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
