"""What calls load and store: the kernels count what the schedule says, and that is what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

import hocket
from hocket import Communicator, Program, Schedule
from hocket.algorithms import all_pairs, chain, direct, dpml, knomial, movement_avoiding, ring
from hocket.ir.traffic import Path, Traffic, traffic
from hocket.runtime.counts import Counts
from hocket.runtime.operands import operands_of

MOST = 16
ELEMENTS = (17, 30_011)
"""Of a buffer that all ranks have, or of a block of each: few for one round, and more, with a remainder."""


@dataclass(frozen=True)
class Entry:
    """A program with its formulas: what all ranks move, in units of the larger buffer of one of them.

    ``apart``: where input and output lie apart, if that is another number. YHCCL's tables 1 to 3 have 3p - 1, 5p - 1
    and 3p + 1 for ReduceScatter, AllReduce and Reduce.
    """

    program: Program
    inplace: int
    apart: int | None = None
    blocks: int = 1


def entries(p: int) -> list[Entry]:
    found = [
        Entry(ring.reduce_scatter(p), 3 * p - 1, blocks=p),
        Entry(all_pairs.all_reduce(p), 5 * p - 2),
        Entry(chain.reduce(p), 3 * p - 1),
        Entry(knomial.broadcast(p, p, root=1), 2 * p, 2 * p + 1),
        Entry(direct.all_gather(p), 2 * p * p, 2 * p * p + p),
        Entry(direct.all_to_all(p), 4 * p - 2, blocks=p),
    ]
    if p <= 5 or p == MOST:
        found += [
            Entry(ring.all_reduce(p), 6 * p - 4),
            Entry(all_pairs.one_shot_all_reduce(p), p * p + 3 * p),
            Entry(direct.reduce_scatter(p), 3 * p - 1, blocks=p),
            Entry(knomial.reduce(p, p, root=1), 3 * p - 1),
            Entry(chain.broadcast(p), 3 * p - 2, 3 * p - 1),
            Entry(movement_avoiding.all_reduce(p), 5 * p - 2),
        ]
    sockets = 2 + p % 2
    return [
        *found,
        Entry(movement_avoiding.reduce_scatter(p, sockets), 3 * p - 1, blocks=p),
        Entry(movement_avoiding.reduce(p, sockets, root=1), 3 * p - 1),
        Entry(movement_avoiding.all_reduce(p, sockets), 5 * p - 2),
        Entry(dpml.all_reduce(p, sockets), 5 * p - 2),
    ]


Counted = dict[tuple[int, int, int, bool], tuple[Path, Traffic]]
"""By the number of ranks, the number of the schedule, the elements, and whether arrays lie apart: the path that native
code selects, and what was moved."""


def arrays(schedule: Schedule, rank: int, n: int, apart: bool) -> list[NDArray[np.float32] | None]:
    """The input and the output of a rank, in one memory unless they are to lie apart."""
    collective = schedule.collective
    lengths = collective.input_blocks(rank) * n, collective.output_blocks(rank) * n
    both: list[NDArray[np.float32] | None] = [np.ones(length, np.float32) if length else None for length in lengths]
    alias = collective.alias(rank)
    if alias is not None and not apart:
        whole = both[alias.target == "out"]
        part = int(alias.buffer == "out")
        begin = alias.offset // collective.chunks * n
        assert whole is not None
        both[part] = whole if lengths[0] == lengths[1] else whole[begin : begin + lengths[part]]
    return both


def count(comm: Communicator, given: dict[int, list[Schedule]]) -> Counted:
    """The traffic of this rank in calls on communicators of so many ranks."""
    found: Counted = {}
    for ranks, schedules in given.items():
        few = comm.split(0 if comm.rank < ranks else None)
        if few is None:
            continue
        for number, schedule in enumerate(schedules):
            for n in ELEMENTS:
                eager = few._endpoint.outlook(schedule, n).one_round
                for apart in (False, True):
                    x, out = arrays(schedule, few.rank, n, apart)
                    before = few.traffic()
                    few.run(schedule, x, out)
                    found[ranks, number, n, apart] = "eager" if eager else "fifo", few.traffic() - before
        few.close()
    return found


def total(all_ranks: Sequence[Traffic]) -> int:
    return sum(one.moved for one in all_ranks)


@pytest.mark.campaign
def test_kernels_count_what_schedules_and_formulas_say() -> None:
    given = {p: entries(p) for p in range(2, MOST + 1)}
    schedules = {p: [entry.program.compile() for entry in found] for p, found in given.items()}
    counted = hocket.spawn(count, MOST, (schedules,))
    met = 0
    paths = set()
    for p, found in given.items():
        for number, (entry, schedule) in enumerate(zip(found, schedules[p], strict=True)):
            for n in ELEMENTS:
                for apart in (False, True):
                    path = counted[0][p, number, n, apart][0]
                    paths.add(path)
                    said = traffic(schedule, n, 4, path=path, apart=apart)
                    where = schedule.name, p, n, apart
                    assert [counted[r][p, number, n, apart] for r in range(p)] == [(path, one) for one in said], where
                    if n == ELEMENTS[-1]:
                        formula = entry.inplace if entry.apart is None or not apart else entry.apart
                        assert total(said) == formula * n * 4 * entry.blocks, where
                        met += 1
    assert met == 2 * sum(map(len, given.values()))
    assert paths == {"eager", "fifo"}


def by_counts(comm: Communicator, cases: Sequence[tuple[Schedule, list[Counts]]]) -> list[Traffic]:
    """The traffic of this rank in calls with uneven units, and in one that two threads share."""
    found = []
    for schedule, counts in cases:
        mine = counts[comm.rank]
        x, out = (np.ones(sum(rows), np.float32) if rows else None for rows in (mine.inputs, mine.outputs))
        before = comm.traffic()
        loaded = comm._endpoint._of(schedule)
        comm._endpoint.prepare(loaded, loaded.lowered.layout.bind(operands_of(x, out), mine), "sum")(x, out)
        found.append(comm.traffic() - before)
    before = comm.traffic()
    comm.run(ring.all_reduce(3).compile(instances=2), np.ones(1 << 18, np.float32))
    return [*found, comm.traffic() - before]


def test_uneven_units_and_threads() -> None:
    rows = (5000, 0, 777)
    sent = ((3, 5000, 0), (0, 1, 70), (900, 2, 0))
    gathers = [Counts.agree(rows, 3, rank, 1, 3) for rank in range(3)]
    scatters = [Counts.agree(rows, 3, rank, 3, 1) for rank in range(3)]
    exchanges = [Counts.exchange((sent[rank], [row[rank] for row in sent]), 3) for rank in range(3)]
    cases = [
        (ring.all_gather(3).compile(), gathers),
        (direct.reduce_scatter(3).compile(), scatters),
        (direct.all_to_all(3).compile(), exchanges),
    ]
    counted = hocket.spawn(by_counts, 3, (cases,), threads=2)
    for number, (schedule, counts) in enumerate(cases):
        units = [each.inputs for each in counts]
        said = traffic(schedule, max(map(max, units)), 4, units=units)
        assert tuple(one[number] for one in counted) == said, schedule.name
    assert total(traffic(direct.all_gather(3).compile(), 5000, 4, units=[[n] for n in rows])) == 7 * 5777 * 4
    said = traffic(ring.all_reduce(3).compile(instances=2), 1 << 18, 4, apart=False)
    assert tuple(one[-1] for one in counted) == said


def test_an_eager_call_stores_a_message_once() -> None:
    """And loads again what else it does with it: through the fifo, a block is kept and sent by one step."""
    schedule = all_pairs.one_shot_all_reduce(3).compile()
    once = Traffic(loaded=4 * 400, stored=2 * 400)
    assert traffic(schedule, 100, 4, path="eager") == (once,) * 3
    gather = direct.all_gather(3).compile()
    assert traffic(gather, 100, 4, path="eager") == (Traffic(4 * 400, 4 * 400),) * 3
    assert traffic(gather, 100, 4) == (Traffic(3 * 400, 4 * 400),) * 3
    sums = Traffic(loaded=4 * 1500, stored=2 * 1500)
    assert traffic(direct.all_to_all(2).compile(), 500, 3, path="eager") == (Traffic(3 * 1500, 3 * 1500),) * 2
    assert traffic(schedule, 500, 3, path="eager") == (sums,) * 3
