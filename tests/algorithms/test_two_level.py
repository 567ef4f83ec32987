"""Programs for ranks on several nodes: what crosses between nodes, and which of them calls by name take."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction

import pytest

from hocket import Program
from hocket.algorithms import two_level
from hocket.ir.schedule import verify
from hocket.tuning import KINDS, NAMED, Call, choose

PLACEMENTS = {
    "1x3": (0, 0, 0),
    "2x1": (0, 1),
    "2x2": (0, 0, 1, 1),
    "2x3": (0, 0, 0, 1, 1, 1),
    "3x2": (0, 0, 1, 1, 2, 2),
    "4x1": (0, 1, 2, 3),
    "3+1": (0, 0, 0, 1),
    "2+3+1": (0, 0, 1, 1, 1, 2),
    "in turn": (0, 1, 2, 0, 1, 2),
    "mixed": (1, 0, 0, 2, 1, 0, 0),
}
EACH = pytest.mark.parametrize("node_of", PLACEMENTS.values(), ids=PLACEMENTS.keys())


def crossing(program: Program, node_of: tuple[int, ...]) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Units that leave each node, and that come to it."""
    out: dict[int, Fraction] = defaultdict(Fraction)
    come: dict[int, Fraction] = defaultdict(Fraction)
    for _, node in program.chunk_dag.operations():
        assert node.src is not None
        source, target = node_of[node.src.rank], node_of[node.dst.rank]
        if source != target:
            units = Fraction(node.src.count, program.collective.chunks)
            out[source] += units
            come[target] += units
    return out, come


@EACH
def test_no_byte_more_crosses_than_has_to(node_of: tuple[int, ...]) -> None:
    p, nodes = len(node_of), sorted(set(node_of))
    size = Counter(node_of)
    for node in nodes:
        others = len(nodes) - 1
        for factory in two_level.all_reduce, two_level.ring_all_reduce:
            both = [found[node] for found in crossing(factory(node_of), node_of)]
            assert both == [Fraction(2 * others, len(nodes))] * 2
        both = [found[node] for found in crossing(two_level.all_gather(node_of), node_of)]
        assert both == [size[node] * others, p - size[node]]
        both = [found[node] for found in crossing(two_level.reduce_scatter(node_of), node_of)]
        assert both == [p - size[node], size[node] * others]
        both = [found[node] for found in crossing(two_level.all_to_all(node_of), node_of)]
        assert both == [size[node] * (p - size[node])] * 2
        both = [found[node] for found in crossing(two_level.leader_all_reduce(node_of), node_of)]
        assert both == [others] * 2  # more, in one step
        for root in range(p):
            for factory in two_level.broadcast, two_level.leader_broadcast:
                came = crossing(factory(node_of, root), node_of)[1][node]
                assert came == (node != node_of[root])
            for factory in two_level.reduce, two_level.leader_reduce:
                left = crossing(factory(node_of, root), node_of)[0][node]
                assert left == (node != node_of[root])


def size_of(how: str, name: str) -> int | None:
    """Bytes of the larger buffer. "tiny" goes with headers, "small" does not; "large": not every rank knows it."""
    small = {"all_gather": 600 << 10, "reduce_scatter": 160 << 10, "all_to_all": 60 << 10}.get(name, 100 << 10)
    return {"tiny": 8, "small": small, "large": None}[how]


@EACH
@pytest.mark.parametrize("how", ["tiny", "small", "large"])
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
def test_what_calls_by_name_take_is_proven(node_of: tuple[int, ...], how: str, uneven: bool) -> None:
    for name in NAMED if not uneven else [name for name in NAMED if KINDS[name].blocks]:
        size = size_of(how, name)
        for root in range(len(node_of) if name in ("broadcast", "reduce") else 1):
            call = Call(name, len(node_of), size, root, nodes=node_of, uneven=uneven)
            choice = choose(call)
            verify(choice.compile())
            short = how == "tiny" or (how == "small" and len(node_of) == 2 and name == "all_to_all")
            direct = (short and not uneven) or (size is None and name == "all_to_all")
            by_nodes = name not in ("gather", "scatter", "scan", "exscan") and not direct
            assert choice.program().name.startswith(("two_level", "leader")) == by_nodes
            assert choice.key != choose(Call(name, len(node_of), size, root, uneven=uneven)).key
