"""Run a schedule on the reference executor and compare with NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.collectives import members
from hocket.ir.schedule import Schedule
from hocket.semantics import Array, reference


def inputs(schedule: Schedule, n: int, dtype: str = "int64") -> list[Array]:
    """Inputs of units of ``n`` elements, each element of each rank another number."""
    collective = schedule.collective
    found: list[Array] = []
    for rank in range(collective.size):
        length = collective.input_blocks(rank) * n
        found.append((np.arange(length) * 1009 + rank * 1000003 + 1).astype(dtype))
    return found


def expected(schedule: Schedule, arrays: Sequence[Array], n: int) -> list[list[Array | None]]:
    """For each rank the units of its output, straight from what the collective is; None where anything will do."""
    collective, ranks = schedule.collective, range(schedule.collective.size)
    root = getattr(collective, "root", 0)
    blocks = [array.reshape(collective.input_blocks(rank), n) for rank, array in zip(ranks, arrays, strict=True)]
    match collective.name:
        case "allreduce":
            return [[sum(b[0] for b in blocks)] for _ in ranks]
        case "reduce":
            return [[sum(b[0] for b in blocks)] if r == root else [] for r in ranks]
        case "broadcast":
            return [[blocks[root][0]] for _ in ranks]
        case "allgather":
            return [[b[0] for b in blocks] for _ in ranks]
        case "gather":
            return [[b[0] for b in blocks] if r == root else [] for r in ranks]
        case "reducescatter":
            return [[sum(b[r] for b in blocks)] for r in ranks]
        case "scatter":
            return [[blocks[root][r]] for r in ranks]
        case "alltoall":
            return [[b[r] for b in blocks] for r in ranks]
        case "scan":
            return [[sum(b[0] for b in blocks[: r + 1])] for r in ranks]
        case "exscan":
            return [[sum(b[0] for b in blocks[:r])] if r else [] for r in ranks]
        case "alltonext":
            return [[blocks[r - 1][0] if r else None] for r in ranks]
        case "custom":
            chunks = collective.chunks
            wanted = [[collective.required(r, i * chunks) for i in range(collective.output_blocks(r))] for r in ranks]
            return [
                [
                    None if terms is None else sum(blocks[source][i // chunks] for source, i in members(terms))
                    for terms in row
                ]
                for row in wanted
            ]
    raise AssertionError(collective.name)


def check(schedule: Schedule, n: int, seeds: Sequence[int | None] = (None, 0, 1), slots: int | None = None) -> None:
    """Run in several orders; every element must be what NumPy says."""
    arrays = inputs(schedule, n)
    wanted = expected(schedule, arrays, n)
    for seed in seeds:
        outputs = reference(schedule, [a.copy() for a in arrays], seed=seed, slots=slots)
        for rank, (out, units) in enumerate(zip(outputs, wanted, strict=True)):
            assert len(out) == len(units) * n
            for i, unit in enumerate(units):
                if unit is not None:
                    np.testing.assert_array_equal(out[i * n : i * n + n], unit, f"rank {rank} unit {i} seed {seed}")
