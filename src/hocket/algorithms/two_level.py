"""Two levels: within the nodes that ranks share memory on, and between them, for any ranks on any nodes.

``node_of`` is the node of each rank. Where buffers are cut, every lane is a rank of each node, and all lanes use the
network at once (multi-lane: Träff and Hunold, CLUSTER'20; YHCCL, SC'23): between nodes goes no byte more than has to.
There are as many lanes as the smallest node has ranks. Short buffers go by one rank of each node, its leader, in one
step between nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hocket import AllGather, AllReduce, AllToAll, Broadcast, Program, Reduce, ReduceScatter, Ref, chunk
from hocket.algorithms import hierarchical

Nodes = tuple[int, ...]


def all_reduce(node_of: Nodes, instances: int = 1) -> Program:
    """A lane sums its part in each node, then by a ring between nodes, and shares the sum in each. In place."""
    groups = by_node(node_of)
    lanes, count = _lanes(groups), len(groups)
    with Program(
        AllReduce(len(node_of), chunks=lanes * count, inplace=True), name="two_level_all_reduce", instances=instances
    ) as p:
        for lane in range(lanes):
            ring = [group[lane] for group in groups]
            for group in groups:
                _sum(group, group[lane], lane * count, count)
            hierarchical.reduce_scatter(ring, lane * count, 1, ch=1)
            hierarchical.all_gather(ring, lane * count, 1, ch=2)
            for group in groups:
                _share(chunk(group[lane], "in", lane * count, count), group[lane], group, "in", lane * count)
    return p


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
                    _share(block.copy(gate, "out", r), gate, other, "out", r)
                _share(block, r, group, "out", r)
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
                total.copy(root, "out", lane)
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


def _sum(group: Sequence[int], last: int, index: int, count: int = 1) -> Ref:
    """The sum of chunks of some ranks, each of which adds its own to that of the one before; the last is ``last``."""
    end = group.index(last) + 1
    first, *others = (*group[end:], *group[:end])
    total = chunk(first, "in", index, count)
    for r in others:
        total = chunk(r, "in", index, count).reduce(total)
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


def _share(part: Ref, owner: int, group: Sequence[int], buffer: str, index: int) -> None:
    """From the rank that has it to the others of its node."""
    for r in group:
        if r != owner:
            part.copy(r, buffer, index)
