"""Two levels: within the nodes that ranks share memory on, and between them, for any ranks on any nodes.

``node_of`` is the node of each rank. Where buffers are cut, every lane is a rank of each node, and all lanes use the
network at once (multi-lane: Träff and Hunold, CLUSTER'20; YHCCL, SC'23): between nodes goes no byte more than has to.
There are as many lanes as the smallest node has ranks. Short buffers go by one rank of each node, its leader, in one
step between nodes.

What a rank sends to one of its node before and after the step between nodes has a channel each: on one, a tile could
not begin before the last step of the tile before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from hocket import AllGather, AllReduce, AllToAll, Broadcast, Program, Reduce, ReduceScatter, Ref, chunk
from hocket.algorithms import hierarchical

Nodes = tuple[int, ...]


def all_reduce(node_of: Nodes, instances: int = 1) -> Program:
    """A lane sums its part in each node, then between all nodes at once, and shares the sum in each. In place."""
    ranks, chunks = len(node_of), _parts(node_of)
    with Program(AllReduce(ranks, chunks, inplace=True), name="two_level_all_reduce", instances=instances) as p:
        _by_lanes(node_of, _exchange)
    return p


def ring_all_reduce(node_of: Nodes, instances: int = 1) -> Program:
    """The same by a ring between nodes: a rank has connections to two other nodes, however many there are. In place."""
    ranks, chunks = len(node_of), _parts(node_of)
    with Program(AllReduce(ranks, chunks, inplace=True), name="two_level_ring_all_reduce", instances=instances) as p:
        _by_lanes(node_of, _ring)
    return p


def _parts(node_of: Nodes) -> int:
    """One for each lane and node."""
    groups = by_node(node_of)
    return _lanes(groups) * len(groups)


def _by_lanes(node_of: Nodes, between: Callable[[list[int], int], None]) -> None:
    groups = by_node(node_of)
    count = len(groups)
    for lane in range(_lanes(groups)):
        first, owners = lane * count, [group[lane] for group in groups]
        for owner, group in zip(owners, groups, strict=True):
            _sum(group, owner, first, count, ch=0)
        between(owners, first)
        for owner, group in zip(owners, groups, strict=True):
            _share(chunk(owner, "in", first, count), owner, group, "in", first, ch=1)


def _exchange(owners: list[int], first: int) -> None:
    """Owner n sums up chunk n of all, and sends the sum to all."""
    for index, owner in enumerate(owners, first):
        others = [other for other in owners if other != owner]
        terms = [chunk(other, "in", index).copy(owner, "sc", slot, ch=1) for slot, other in enumerate(others)]
        total = chunk(owner, "in", index)
        for term in terms:
            total = total.reduce(term)
        for other in others:
            total.copy(other, "in", index, ch=2)


def _ring(owners: list[int], first: int) -> None:
    hierarchical.reduce_scatter(owners, first, 1, ch=1)
    hierarchical.all_gather(owners, first, 1, ch=2)


def leader_all_reduce(node_of: Nodes, instances: int = 1) -> Program:
    """Leaders get the buffers of their nodes, then the sums of all nodes, in order, and share the total. In place."""
    groups = by_node(node_of)
    with Program(AllReduce(len(node_of), inplace=True), name="leader_all_reduce", instances=instances) as p:
        sums = [_collected(group) for group in groups]
        slots = max(map(len, groups)) - 1
        for n, total in enumerate(sums):
            for other in (*groups[n + 1 :], *groups[:n]):
                total.copy(other[0], "sc", slots + n)
        for m, group in enumerate(groups):
            leader = group[0]
            total, *rest = [sums[n] if n == m else chunk(leader, "sc", slots + n) for n in range(len(groups))]
            for term in rest:
                total = total.reduce(term)
            if m:
                total = total.copy(leader, "in", 0)
            _share(total, leader, group, "in", 0)
    return p


def all_gather(node_of: Nodes, instances: int = 1) -> Program:
    """A rank sends its block to those of its node and to one of each other, which shares it there. In place."""
    groups = by_node(node_of)
    with Program(AllGather(len(node_of), inplace=True), name="two_level_all_gather", instances=instances) as p:
        for n, group in enumerate(groups):
            for lane, r in enumerate(group):
                block = chunk(r, "in", 0)
                for other in (*groups[n + 1 :], *groups[:n]):
                    gate = _of(other, lane)
                    _share(block.copy(gate, "out", r), gate, other, "out", r, ch=1)
                _share(block, r, group, "out", r, ch=0)
    return p


def reduce_scatter(node_of: Nodes, instances: int = 1) -> Program:
    """In each node a rank sums the block for another, and sends it there, where these sums are added up. In place."""
    groups = by_node(node_of)
    with Program(ReduceScatter(len(node_of), inplace=True), name="two_level_reduce_scatter", instances=instances) as p:
        for n, group in enumerate(groups):
            for lane, r in enumerate(group):
                total = _sum(group, r, r)
                for slot, other in enumerate((*groups[n + 1 :], *groups[:n])):
                    total = total.reduce(_sum(other, _of(other, lane), r).copy(r, "sc", slot))
    return p


def broadcast(node_of: Nodes, root: int = 0, instances: int = 1) -> Program:
    """The root deals the lanes their parts, which go from node to node along a chain. In place."""
    groups = _ending(by_node(node_of), root)[::-1]
    lanes = _lanes(groups)
    with Program(
        Broadcast(len(node_of), lanes, inplace=True, root=root), name="two_level_broadcast", instances=instances
    ) as p:
        for lane in range(lanes):
            part = chunk(root, "in", lane)
            for group in groups:
                if group[lane] != root:
                    part = part.copy(group[lane], "out", lane)
                _share(part, group[lane], [r for r in group if r != root], "out", lane)
    return p


def leader_broadcast(node_of: Nodes, root: int = 0, instances: int = 1) -> Program:
    """The root sends the whole to the leader of each other node, which shares it. In place."""
    with Program(Broadcast(len(node_of), inplace=True, root=root), name="leader_broadcast", instances=instances) as p:
        own, *others = _ending(by_node(node_of), root)[::-1]
        whole = chunk(root, "in", 0)
        for group in others:
            _share(whole.copy(group[0], "out", 0), group[0], group, "out", 0)
        _share(whole, root, own, "out", 0)
    return p


def reduce(node_of: Nodes, root: int = 0, instances: int = 1) -> Program:
    """A lane sums its part in each node and along a chain of nodes, and hands it to the root. In place."""
    groups = _ending(by_node(node_of), root)
    lanes = _lanes(groups)
    with Program(
        Reduce(len(node_of), lanes, inplace=True, root=root), name="two_level_reduce", instances=instances
    ) as p:
        for lane in range(lanes):
            total, *others = [
                _sum(group, root, lane) if group[lane] == root else _sum_apart(group, group[lane], lane)
                for group in groups
            ]
            for own in others:
                total = own.reduce(total)
            if groups[-1][lane] != root:
                total.copy(root, "out", lane, ch=1)
    return p


def leader_reduce(node_of: Nodes, root: int = 0, instances: int = 1) -> Program:
    """Leaders get the buffers of their nodes, the root the sums of the leaders. In place."""
    with Program(Reduce(len(node_of), inplace=True, root=root), name="leader_reduce", instances=instances) as p:
        own, *others = _ending(by_node(node_of), root)[::-1]
        total = _collected([root, *(r for r in own if r != root)])
        for slot, group in enumerate(others, len(own) - 1):
            total = total.reduce(_collected(group, writes=False).copy(root, "sc", slot))
    return p


def all_to_all(node_of: Nodes, instances: int = 1) -> Program:
    """Blocks of a node for a rank of another are gathered on one rank, and sent in one piece (paper section 7.3)."""
    groups = by_node(node_of)
    with Program(AllToAll(len(node_of)), name="two_level_all_to_all", instances=instances) as p:
        used: Counter[int] = Counter()  # scratch, by rank
        for m, receivers in enumerate(groups):
            for lane, target in enumerate(receivers):
                for source in receivers:
                    chunk(source, "in", target).copy(target, "out", source)
                for group in (*groups[m + 1 :], *groups[:m]):
                    gate = _of(group, lane)
                    if len(group) == 1:
                        chunk(gate, "in", target).copy(target, "out", gate)
                        continue
                    for slot, source in enumerate(group, used[gate]):
                        chunk(source, "in", target).copy(gate, "sc", slot)
                    for run in _runs(group):
                        chunk(gate, "sc", used[gate], len(run)).copy(target, "out", run[0])
                        used[gate] += len(run)
    return p


def by_node(node_of: Nodes) -> list[list[int]]:
    """The ranks of each node, in the order of their lowest ranks."""
    return [[r for r, n in enumerate(node_of) if n == node] for node in dict.fromkeys(node_of)]


def _lanes(groups: Sequence[Sequence[int]]) -> int:
    return min(map(len, groups), default=0)


def _of(group: Sequence[int], lane: int) -> int:
    return group[lane % len(group)]


def _ending(groups: list[list[int]], root: int) -> list[list[int]]:
    """The node of the root last."""
    own = next((group for group in groups if root in group), [])
    return [*(group for group in groups if group is not own), own]


def _runs(group: Sequence[int]) -> list[Sequence[int]]:
    """Ranks that follow each other."""
    ends = [0, *(i for i, (r, s) in enumerate(pairwise(group), 1) if s != r + 1), len(group)]
    return [group[begin:end] for begin, end in pairwise(ends)]


def _sum(group: Sequence[int], last: int, index: int, count: int = 1, ch: int | None = None) -> Ref:
    """The sum of chunks of some ranks, each of which adds its own to that of the one before; the last is ``last``."""
    end = group.index(last) + 1
    first, *others = (*group[end:], *group[:end])
    total = chunk(first, "in", index, count)
    for r in others:
        total = chunk(r, "in", index, count).reduce(total, ch=ch)
    return total


def _sum_apart(group: Sequence[int], last: int, index: int) -> Ref:
    """The same in scratch of the last, whose input is not written: a Reduce may not."""
    before = group.index(last) + 1
    first, *others = (*group[before:], *group[:before])
    total = chunk(first, "in", index)
    for r in others[:-1]:
        total = chunk(r, "in", index).reduce(total)
    return total.copy(last, "sc", 0).reduce(chunk(last, "in", index)) if others else total


def _collected(group: Sequence[int], *, writes: bool = True) -> Ref:
    """The sum of the buffers of some ranks, at the first: in its input, or in scratch, as those of the others."""
    leader, *others = group
    terms = [chunk(r, "in", 0).copy(leader, "sc", slot) for slot, r in enumerate(others)]
    terms.insert(0 if writes else len(terms), chunk(leader, "in", 0))
    total, *rest = terms
    for term in rest:
        total = total.reduce(term)
    return total


def _share(part: Ref, owner: int, group: Sequence[int], buffer: str, index: int, ch: int | None = None) -> None:
    """From the rank that has it to the others of its node."""
    for r in group:
        if r != owner:
            part.copy(r, buffer, index, ch=ch)
