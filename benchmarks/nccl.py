"""Programs of NCCL, for the simulator: rings and trees over several nodes, and point-to-point sends; and which of rings
and trees NCCL takes for how many bytes.

A column is one GPU of each node with its NIC. NCCL has a ring and two trees for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from hocket import AllReduce, AllToAll, Program, Ref, Schedule, chunk
from hocket.ir.chunk_dag import Span
from hocket.ir.schedule import Rank, Receive, Send, Step, ThreadBlock
from hocket.verify import proven

KB, MB = 1 << 10, 1 << 20


def rings(nodes: int, gpus: int, instances: int, columns: int = 0) -> Program:
    """As many rings as GPUs, or so many of them, each of which leaves a node by another."""
    ranks, columns = nodes * gpus, columns or gpus
    with Program(AllReduce(ranks, chunks=ranks * columns, inplace=True), name="nccl_rings", instances=instances) as p:
        for k in range(columns):
            order = [n * gpus + (g + k) % gpus for n in range(nodes) for g in range(gpus)]
            for i in range(ranks):
                index = k * ranks + i
                c = chunk(order[(i + 1) % ranks], "in", index)
                for step in range(1, ranks):
                    c = chunk(order[(i + step + 1) % ranks], "in", index).reduce(c, ch=k)
                for step in range(1, ranks):
                    c = c.copy(order[(i + step) % ranks], "in", index, ch=k)
    return p


# ---------------------------------------------------------------------------------------------------------------
# Trees


@cache
def trees(nodes: int, gpus: int, columns: int, pairs: int = 2) -> Schedule:
    """Between nodes two trees for each column, the leaves of one inner nodes of the other; within them chains.

    ``columns``: of how many; ``pairs``: 1 for one tree only, as NCCL takes for few bytes. In hocket's own steps: NCCL's
    add up all that comes from below at once.
    """
    above = _parents(nodes)
    with Program(AllReduce(gpus * nodes, chunks=columns * pairs, inplace=True), name="nccl_trees") as p:
        for index in range(columns * pairs):
            column, second = index % columns, index >= columns
            names = [_turned(n, nodes) if second else n for n in range(nodes)]
            _up_and_down(index, above, [[gpus * n + (column + i) % gpus for i in range(gpus)] for n in names])
    return p.compile(slots=8)


def _parents(nodes: int) -> list[int]:
    """Of a binary tree whose inner nodes are every other one; 0 is its root, -1 above it (graph/trees.cc)."""
    found = [-1]
    for node in range(1, nodes):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        found.append(up if up < nodes else node ^ bit)
    return found


def _turned(node: int, nodes: int) -> int:
    """Who takes a node's place in the second tree."""
    return nodes - 1 - node if nodes % 2 == 0 else (node + 1) % nodes


def _up_and_down(index: int, above: Sequence[int], chains: Sequence[Sequence[int]]) -> None:
    """``chains``: the ranks of each node, the one that others know first. All add up to the root, which tells all."""
    up, down = 2 * index, 2 * index + 1
    order = sorted(range(len(above)), key=lambda node: _depth(above, node))
    sums: list[Ref] = []
    for chain in chains:
        total = chunk(chain[-1], "in", index)
        for rank in chain[-2::-1]:
            total = chunk(rank, "in", index).reduce(total, ch=up)
        sums.append(total)
    for node in reversed(order[1:]):
        sums[above[node]] = sums[above[node]].reduce(sums[node], ch=up)
    for node in order:
        if above[node] >= 0:
            sums[node] = sums[above[node]].copy(chains[node][0], "in", index, ch=down)
        c = sums[node]
        for rank in chains[node][1:]:
            c = c.copy(rank, "in", index, ch=down)


def _depth(above: Sequence[int], node: int) -> int:
    return 0 if above[node] < 0 else 1 + _depth(above, above[node])


def trees_of(nodes: int, gpus: int, channels: int) -> Schedule:
    """As many of the trees as NCCL uses channels, or the next power of two below."""
    if channels < 2:
        return trees(nodes, gpus, 1, 1)
    return trees(nodes, gpus, min(gpus, 1 << (channels // 2).bit_length() - 1))


def tree_chunk(nodes: int, gpus: int, size: int, channels: int) -> int:
    """Bytes of a chunk of a tree by Simple: smaller, so that all its levels have something to do (enqueue.cc)."""
    depth, found = gpus - 1 + math.floor(math.log2(nodes)), 2 * MB
    for most, least in ((8, 128 * KB), (4, 64 * KB), (1, 32 * KB)):
        while size / (channels * found) < depth * most and found > least:
            found //= 2
    return found


# ---------------------------------------------------------------------------------------------------------------
# NCCL's own model of an AllReduce, which chooses the shape and the protocol (graph/tuning.cc)


# Of the first version with PAT, which 2.23 has: of a call, of a hop within a node, of one between nodes.
_LATENCY = {
    ("tree", "LL"): (6.8, 0.6, 5.0),
    ("tree", "Simple"): (8.4, 4.0, 14.0),
    ("ring", "LL"): (6.6, 1.0, 2.7),  # a hop within a node is at least the network's overhead
    ("ring", "Simple"): (8.4, 3.4, 14.0),
}
_PLATEAU = 1.4
"""What a ring's latency by Simple is multiplied by from 64 bytes of a channel and rank on."""

_LEFT = {
    "LL": (*(1.0,) * 4, 0.9, 0.8, *(0.7,) * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "Simple": (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}
"""Of a tree's bandwidth, from 64 bytes on in powers of two."""

GPUS = 4
"""Of a node of gh200."""


def choice(nodes: int, size: int) -> tuple[str, str]:
    """Shape and protocol on two nodes of gh200 or more, whose NICs are not for LL128: their way is by the CPU."""
    return min(_LATENCY, key=lambda pair: _expected(*pair, nodes, size))


def _expected(shape: str, protocol: str, nodes: int, size: int) -> float:
    """Microseconds by NCCL's model."""
    base, within, between = _LATENCY[shape, protocol]
    two = nodes == 2
    most = 39.0 if two else 20.4  # GB/s of LL
    if shape == "tree":
        # The most that a NIC of 25 GB/s has of graph/search.cc's speeds; for a tree of two nodes twice that.
        speed = min(GPUS * (48.0 if two else 24.0) * 0.92, GPUS * (41.4 if two else 36.0))
        speed = min(speed / 3.8, most) if protocol == "LL" else speed
        step = max(0, (size >> 6).bit_length() - 1)
        speed *= 0.5 * (_LEFT[protocol][step] if step < len(_LEFT[protocol]) else 1.0)
        latency = base + 2 * ((GPUS - 1) * within + math.floor(math.log2(nodes)) * between)
    else:
        ranks = nodes * GPUS
        steps, crossing = 2 * (ranks - 1), 2 * (nodes - 1)
        speed = min(most, GPUS * 24.0 / 2) if protocol == "LL" else GPUS * 24.0
        speed *= ranks / steps
        latency = base + (steps - crossing) * within + crossing * between
        latency *= _PLATEAU if protocol == "Simple" and size >= 64 * GPUS * ranks else 1.0
    return latency + size / (1e3 * speed)


# ---------------------------------------------------------------------------------------------------------------
# Point-to-point sends

CHANNELS = 32
"""Of sends, on an ndv4: the next power of two of its 24 rings (ncclTopoComputeP2pChannels, graph/paths.cc)."""


@cache
def exchange(ranks: int) -> Schedule:
    """An AllToAll: the peer at distance d is of channel d modulo their number, and a channel has a thread block that
    sends to its peers one after the other, and one that receives (enqueue.cc; one channel for a peer elsewhere).

    No program says that: a thread block of MSCCL has one connection each way.
    """
    channels = min(CHANNELS, ranks)
    parts = []
    for r in range(ranks):
        blocks = [ThreadBlock((), (), (Step((Span(r, "in", r),), (Span(r, "out", r),)),))]
        for channel in range(channels):
            distances = range(channel or channels, ranks, channels)
            to, sources = [(r + d) % ranks for d in distances], [(r - d) % ranks for d in distances]
            sends = [Step((Span(r, "in", peer),), (Send(peer, 0),)) for peer in to]
            receives = [Step((Receive(peer, 0),), (Span(r, "out", peer),)) for peer in sources]
            blocks.append(ThreadBlock((), tuple(Send(peer, 0) for peer in to), tuple(sends)))
            blocks.append(ThreadBlock(tuple(Receive(peer, 0) for peer in sources), (), tuple(receives)))
        parts.append(Rank(0, tuple(block for block in blocks if block.steps)))
    return proven(Schedule("point_to_point", AllToAll(ranks), "auto", 1, tuple(parts)))[0]
