"""Topologies: which ranks have a link, and how wide it is. A transfer without a link is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hocket.errors import InvalidArgument, Unsupported, caller

Switch = tuple[Sequence[int], Sequence[int], int, str]
"""Sources and destinations that share a bandwidth, the bandwidth, a name."""


class Topology:
    """``links[dst][src]`` is the bandwidth from ``src`` to ``dst``, in whatever unit; 0 where there is no link."""

    def __init__(self, name: str, links: Sequence[Sequence[int]], switches: Sequence[Switch] = ()) -> None:
        for _, _, bandwidth, switch in switches:
            if bandwidth <= 0:
                raise InvalidArgument(f"the bandwidth of {switch} must be positive, not {bandwidth}", caller())
        self.name = name
        self.links = links
        self.switches = list(switches)

    def link(self, src: int, dst: int) -> int:
        return self.links[dst][src]

    def sources(self, dst: int) -> Iterator[int]:
        return (src for src in self.nodes() if self.link(src, dst) > 0)

    def destinations(self, src: int) -> Iterator[int]:
        return (dst for dst in self.nodes() if self.link(src, dst) > 0)

    def num_nodes(self) -> int:
        return len(self.links)

    def nodes(self) -> range:
        return range(self.num_nodes())

    def bandwidth_constraints(self) -> Iterator[Switch]:
        """Every link, then every switch."""
        for dst in self.nodes():
            for src in self.sources(dst):
                yield [src], [dst], self.link(src, dst), f"{src}→{dst}"
        yield from self.switches


def _linked(size: int, linked: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """The matrix of links that go both ways."""
    links = [[0] * size for _ in range(size)]
    for a, b, bandwidth in linked:
        links[a][b] = links[b][a] = bandwidth
    return links


def fully_connected(num_nodes: int) -> Topology:
    links = [[int(src != dst) for src in range(num_nodes)] for dst in range(num_nodes)]
    return Topology(f"FullyConnected(n={num_nodes})", links)


def hub_and_spoke(num_nodes: int) -> Topology:
    """A switch that each rank has one port to, in and out."""
    switches: list[Switch] = []
    for node in range(num_nodes):
        others = [other for other in range(num_nodes) if other != node]
        switches += [([node], others, 1, f"node_{node}_out"), (others, [node], 1, f"node_{node}_in")]
    return Topology(f"HubAndSpoke(n={num_nodes})", fully_connected(num_nodes).links, switches)


def line(num_nodes: int) -> Topology:
    return Topology(f"Line(n={num_nodes})", _linked(num_nodes, [(i, i + 1, 1) for i in range(num_nodes - 1)]))


def ring(num_nodes: int) -> Topology:
    return Topology(f"Ring(n={num_nodes})", _linked(num_nodes, [(i, (i + 1) % num_nodes, 1) for i in range(num_nodes)]))


def star(num_nodes: int, non_blocking: bool = True) -> Topology:
    """Rank 0 in the middle; if blocking, it serves one other at a time."""
    points = list(range(1, num_nodes))
    switches: list[Switch] = [] if non_blocking else [([0], points, 1, "to_points"), (points, [0], 1, "from_points")]
    return Topology(f"Star(n={num_nodes})", _linked(num_nodes, [(0, i, 1) for i in points]), switches)


_DGX1_TWO = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_DGX1_ONE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


def dgx1() -> Topology:
    """Eight V100 and the NVLinks between them, one or two to a pair."""
    linked = [(a, b, 2) for a, b in _DGX1_TWO] + [(a, b, 1) for a, b in _DGX1_ONE]
    return Topology("DGX1", _linked(8, linked))


def dgx2() -> Topology:
    """Sixteen V100 on NVSwitch."""
    return hub_and_spoke(16)


def dgx_a100() -> Topology:
    """Eight A100, each with twelve NVLinks into NVSwitch."""
    return Topology("DGX_A100", [[12 * (src != dst) for src in range(8)] for dst in range(8)])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """The NVLinks in the text that ``nvidia-smi topo -m`` prints."""
    if nvidia_smi_topo is None:
        raise Unsupported("nvlink_only() of this machine", caller(), "give it the text of `nvidia-smi topo -m`")
    rows = [row.split() for row in nvidia_smi_topo.splitlines() if row.startswith("GPU")]
    links = [
        [int(word[2:]) if word.startswith("NV") and word[2:].isdecimal() else 0 for word in row[1 : len(rows) + 1]]
        for row in rows
    ]
    return Topology("NVLinkOnly", links)


def _copies(local: Topology, copies: int, remote: int) -> tuple[list[list[int]], list[Switch]]:
    size = local.num_nodes()
    ranks = range(size * copies)
    links = [
        [local.link(src % size, dst % size) if src // size == dst // size else remote for src in ranks] for dst in ranks
    ]
    switches: list[Switch] = [
        ([src + i * size for src in srcs], [dst + i * size for dst in dsts], bandwidth, f"copy_{i}_{name}_local")
        for srcs, dsts, bandwidth, name in local.switches
        for i in range(copies)
    ]
    return links, switches


def distributed_fully_connected(local_topology: Topology, num_copies: int, remote_bw: int) -> Topology:
    """Copies of a machine, with a link between any two ranks of different ones."""
    links, switches = _copies(local_topology, num_copies, remote_bw)
    name = f"DistributedFullyConnected(local={local_topology.name},copies={num_copies},bw={remote_bw})"
    return Topology(name, links, switches)


def distributed_hub_and_spoke(local_topology: Topology, num_copies: int, remote_bw: int) -> Topology:
    """The same, but all links out of a machine share one bandwidth, and all into it."""
    links, switches = _copies(local_topology, num_copies, remote_bw)
    size = local_topology.num_nodes()
    for i in range(num_copies):
        here = [rank for rank in range(size * num_copies) if rank // size == i]
        away = [rank for rank in range(size * num_copies) if rank // size != i]
        switches += [
            (here, away, remote_bw, f"copy_{i}_out_remote"),
            (away, here, remote_bw, f"copy_{i}_in_remote"),
        ]
    name = f"DistributedHubAndSpoke(local={local_topology.name},copies={num_copies},bw={remote_bw})"
    return Topology(name, links, switches)
