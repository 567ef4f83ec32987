"""GH200 on one node, on two, and on up to 512: ``python benchmarks/sim_gh200.py [--record] [--fit]``.

Prints the tables of 4 and 8 GPUs beside what the simulator says of the program that NCCL takes for each size: rings or
trees, by LL or Simple, as its own model chooses. ``--record`` prints 16 to 2048 GPUs, of which there is no table here.
``--fit`` fits the constants of a GH200 anew, on 4 GPUs alone; nothing is fitted on 8.

Measured: AllReduce of float32 in place, by nccl-tests, in microseconds: boeschf/nccl-benchmark-on-alps-2025, NCCL
2.23.4 with aws-ofi-nccl over Slingshot, on 1 and 2 nodes of 4.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from nccl import GPUS, choice, rings, tree_chunk, trees, trees_of
from sim_paper import GB, KB, MB, Finding, best, compiled, errors_of, fit, print_findings, show, table, time_of

from hocket import AllReduce, Program, chunk
from hocket.algorithms import recursive_doubling, ring
from hocket.topology import Costs, Topology, gh200

MEASURED = {
    1 * KB: (8.83, 23.15),
    4 * KB: (9.09, 37.75),
    16 * KB: (10.21, 42.82),
    64 * KB: (10.64, 137.9),
    256 * KB: (11.21, 348.5),
    1 * MB: (18.38, 912.3),
    4 * MB: (42.86, 188.6),
    16 * MB: (99.08, 428.4),
    64 * MB: (335.0, 1087.9),
    256 * MB: (1229.0, 3320.1),
    1 * GB: (4757.3, 12158.0),
}
"""Of 4 and of 8 GPUs."""

WHOLE = 4
"""Nodes of which all columns are simulated. Of more it is one with its share of the bytes: columns have NICs and thread
blocks of their own, and share only links within nodes, which are not full. On 16 nodes the two differ by 0.4 %."""


def machine_of(nodes: int, costs: Costs | None = None) -> Topology:
    """NCCL's kernels decode no instructions."""
    machine = gh200(nodes)
    return replace(machine, costs=replace(costs or machine.costs, decode=0.0))


def time_of_trees(nodes: int, size: int, protocol: str) -> float:
    machine = machine_of(nodes)
    if protocol == "Simple":
        tile = tree_chunk(nodes, GPUS, size, 2 * GPUS)
        changed = [replace(p, slot=tile, grain=tile // 2) if p.name == "Simple" else p for p in machine.costs.protocols]
        machine = replace(machine, costs=replace(machine.costs, protocols=tuple(changed)))
    # A channel has at least 16 KB to receive and to send (MinTrafficPerChannel, enqueue.cc).
    channels = min(2 * GPUS, size // (8 * KB))
    if nodes <= WHOLE or channels < 2 * GPUS:
        return time_of(trees_of(nodes, GPUS, channels), machine, size, protocol)
    return time_of(trees(nodes, GPUS, 1), machine, size // GPUS, protocol)


def time_of_rings(nodes: int, size: int, protocol: str) -> float:
    """A ring for each NIC; by Simple two channels each, as one thread block would not fill it."""
    columns = GPUS if nodes <= WHOLE else 1
    made = compiled(rings, nodes, GPUS, 2 if protocol == "Simple" else 1, columns)
    return time_of(made, machine_of(nodes), size * columns // GPUS, protocol)


def six_rings(instances: int) -> Program:
    """The rings of a node whose four GPUs are joined each to each: each link is of two."""
    with Program(AllReduce(4, chunks=24, inplace=True), name="six_rings", instances=instances) as p:
        for k, rest in enumerate(permutations((1, 2, 3))):
            order = (0, *rest)
            for i in range(4):
                c = chunk(order[(i + 1) % 4], "in", 4 * k + i)
                for step in range(1, 4):
                    c = chunk(order[(i + step + 1) % 4], "in", 4 * k + i).reduce(c, ch=k)
                for step in range(1, 4):
                    c = c.copy(order[(i + step) % 4], "in", 4 * k + i, ch=k)
    return p


def simulated(nodes: int, size: int, costs: Costs | None = None) -> float:
    """By what NCCL takes; on one node, where that is not known, by the best of what it has."""
    if nodes == 1:
        made = [compiled(six_rings, i) for i in (1, 4)]
        made += [compiled(ring.all_reduce, 4), compiled(recursive_doubling.all_reduce, 4)]
        return best(made, machine_of(1, costs), size)
    shape, protocol = choice(nodes, size)
    return (time_of_trees if shape == "tree" else time_of_rings)(nodes, size, protocol)


# ---------------------------------------------------------------------------------------------------------------


def tables() -> list[Finding]:
    return [
        *table("GH200, 4 GPUs (fitted on)", {s: both[0] for s, both in MEASURED.items()}, lambda s: simulated(1, s)),
        *table("GH200, 8 GPUs", {s: both[1] for s, both in MEASURED.items()}, lambda s: simulated(2, s)),
    ]


def misfit(costs: Costs) -> float:
    large, small = errors_of({s: both[0] for s, both in MEASURED.items()}, lambda size: simulated(1, size, costs))
    return large / 0.15 + small / 0.25


def record(nodes: Sequence[int]) -> None:
    """For the record: predicted microseconds, and which of NCCL's programs it is."""
    sizes = [KB, 16 * KB, MB, 16 * MB, 64 * MB, GB]
    print("\nGH200, AllReduce, predicted us, by what NCCL takes")
    print("| GPUs | " + " | ".join(map(show, sizes)) + " |\n|" + "---|" * (1 + len(sizes)))
    for count in nodes:
        begin = time.perf_counter()
        cells = []
        for size in sizes:
            shape, protocol = choice(count, size)
            cells.append(f"{simulated(count, size):.0f} {shape} {protocol}")
        print(f"| {GPUS * count} | " + " | ".join(cells) + f" | ({time.perf_counter() - begin:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if given.fit:
        print(fit(gh200().costs, misfit))
        return
    print_findings("Mean of the absolute errors", tables())
    if given.record:
        record([4, 8, 16, 32, 64, 128, 256, 512])


if __name__ == "__main__":
    main()
