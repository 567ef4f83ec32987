"""Topologies: GPUs or cores on nodes, the links between them, and what a machine's steps and messages cost.

A transfer occupies every link on its way. Links are of one direction, and several routes may share one: a NIC of two
GPUs, a PCIe switch, a node's memory. Units: microseconds, bytes, GB/s (1e9 bytes a second).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import SupportsIndex

from hocket.errors import BadTopology, OutOfRange, caller


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link of a node; ``bandwidth`` in GB/s."""

    name: str
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Route:
    """The way of a transfer: indices into ``Topology.links``, and whether it leaves its node."""

    links: tuple[int, ...]
    network: bool


@dataclass(frozen=True, slots=True)
class Protocol:
    """How messages are stored and signalled.

    ``hop``, ``network_hop``: from the last byte stored to the receiver's seeing it, within a node and between nodes.
    ``wire``: data's share of what goes over a link. ``block``: data that one thread block stores, in GB/s. ``grain``:
    bytes after whose arrival the receiver begins; the rest follows while it works. ``slot``: bytes of a slot, which
    bound a tile. ``slots`` of a connection. ``start``: of a call by it, besides the launch.
    """

    name: str
    hop: float
    network_hop: float
    wire: float
    block: float
    grain: int
    slot: int
    slots: int
    start: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """How fast cores move bytes while ``ranks`` do at once, each in a working set of ``bytes``; in GB/s.

    ``copy``: from one place to another. ``update``: the same, added to what is there. ``add``: a further array that is
    added to what is copied. ``far``: what another core has stored, or loads, at both ends together; the time adds to
    that of the copy.
    """

    ranks: int
    bytes: int
    copy: float
    update: float
    add: float
    far: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What a machine takes besides moving bytes over links.

    ``launch``: of one schedule; ``start``: of each thread block of the rank that has most. ``decode``: of a step;
    ``wait``: of a step that waits for another thread block; ``publish``: of one that others wait for. ``post``: of a
    message to another node, one after the other at its rank. ``local``: GB/s of a thread block that copies or adds up
    memory of its rank. ``caches``: (bytes, GB/s), the smallest first: a thread block copies at most so
    fast while the working set of a node is at most so large. ``memory``: of cores, as measured (sim/cores.py); each
    runs the thread blocks of its rank in turns. ``rendezvous``: of a message to another node, which its receiver
    asks for if it has more than ``unasked`` bytes on the wire.
    """

    launch: float
    start: float
    decode: float
    wait: float
    publish: float
    post: float
    local: float
    protocols: tuple[Protocol, ...]
    caches: tuple[tuple[float, float], ...] = ()
    memory: tuple[Memory, ...] = ()
    unasked: float = 0.0
    rendezvous: float = 0.0

    def asked(self, wire: float) -> float:
        """Microseconds until a message of so many bytes to another node has been asked for."""
        return self.rendezvous if wire > self.unasked else 0.0

    def protocol(self, name: str) -> Protocol:
        """Raises BadTopology if the machine has none of that name, whatever its case."""
        for protocol in self.protocols:
            if protocol.name.lower() == name.lower():
                return protocol
        known = ", ".join(protocol.name for protocol in self.protocols)
        raise BadTopology(f"there is no protocol {name!r}", f"protocols here are {known}")


@dataclass(frozen=True)
class Topology:
    """Equal nodes of ``gpus`` each: rank r is GPU r % gpus of node r // gpus.

    ``node_links`` are those of one node. ``within`` are routes between two GPUs of it, ``out`` and ``into`` the way of
    each GPU to the network and from it; all as indices into ``node_links``. What is in none of them does not exist.
    ``thread_blocks``: how many of a rank run at once.
    """

    name: str
    nodes: int
    gpus: int
    node_links: tuple[Link, ...]
    within: Mapping[tuple[int, int], tuple[int, ...]]
    out: tuple[tuple[int, ...], ...]
    into: tuple[tuple[int, ...], ...]
    thread_blocks: int
    costs: Costs = field(repr=False)

    def __post_init__(self) -> None:
        number = isinstance(self.nodes, SupportsIndex) and not isinstance(self.nodes, bool)
        if not number or self.nodes < 1:
            raise BadTopology(f"nodes must be a positive whole number, not {self.nodes!r}")
        object.__setattr__(self, "nodes", operator.index(self.nodes))

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Of all nodes, named ``node 0: NIC 3 out``; without the node where there is one only."""
        if self.nodes == 1:
            return self.node_links
        return tuple(
            Link(f"node {node}: {link.name}", link.bandwidth) for node in range(self.nodes) for link in self.node_links
        )

    def route(self, source: int, target: int) -> Route | None:
        """The links from one rank to another; None if there are none. Raises OutOfRange for a rank it has not."""
        for rank in (source, target):
            if not 0 <= rank < self.ranks:
                raise OutOfRange("rank", rank, 0, self.ranks, caller())
        node, gpu = divmod(source, self.gpus)
        other, peer = divmod(target, self.gpus)
        count = len(self.node_links)
        if node == other:
            found = self.within.get((gpu, peer))
            return None if found is None else Route(tuple([node * count + link for link in found]), False)
        if not (self.out and self.into and self.out[gpu] and self.into[peer]):
            return None
        way = [node * count + link for link in self.out[gpu]] + [other * count + link for link in self.into[peer]]
        return Route(tuple(way), True)


# ---------------------------------------------------------------------------------------------------------------
# Built-in machines

_SLOTS = ("Simple", 1 << 20, 4 << 19, 2), ("LL", 1 << 12, 64 << 9, 8), ("LL128", 19200, 614400 // 16 * 15, 8)
"""Grain, slot, and slots by protocol. Slots are those of formats/msccl_targets.py. A grain is a slice of a message
(Simple: NCCL's SLICESTEPS, 1 MB), or what the threads of a block store in one pass (512 times 8 bytes for LL; NCCL's
minChunkSize of 640 threads for LL128)."""

_WIRE = {"Simple": 1.0, "LL": 1 / 2, "LL128": 120 / 128}
"""Half of LL is flags, and 8 of 128 bytes of LL128 (MSCCLang, 6.1; NCCL's prims_ll128.h)."""

_NETWORK = {"Simple": 9.6, "LL": 2.7, "LL128": 4.0}
"""Latencies of a hop of a ring between nodes (NCCL 2.8, graph/tuning.cc: hwLat, NET)."""

_TREE_NETWORK = {"Simple": 14.0, "LL": 5.0, "LL128": 8.5}
"""Of a hop of a tree, which NCCL takes on GH200 (NCCL 2.24, the same place)."""


def _protocols(
    hops: Mapping[str, float], blocks: Mapping[str, float], network: Mapping[str, float] = _NETWORK
) -> tuple[Protocol, ...]:
    """Direct is Simple without slots: what it stores is where it is wanted."""
    found = [
        Protocol(name, hops[name], network[name], _WIRE[name], blocks[name], grain, slot, slots)
        for name, grain, slot, slots in _SLOTS
    ]
    return (*found, replace(found[0], name="Direct"))


# Fitted on the NCCL column of the table of NDv4 and the peaks of Figure 8a (benchmarks/sim_paper.py --fit): launch,
# start, decode, wait and publish (as one), local, and the hops and rates of the protocols. A post is one microsecond: a
# guess that nothing was fitted on.
A100 = Costs(
    *(5.24, 0.117, 0.070, 0.195, 0.195, 1.0, 14.3),
    _protocols({"Simple": 6.12, "LL": 0.81, "LL128": 3.38}, {"Simple": 9.23, "LL": 4.42, "LL128": 5.81}),
)
V100 = A100
"""Nothing here was measured on one."""

# Fitted on AllReduce by NCCL 2.23 on 4 GPUs of one node (benchmarks/sim_paper.py --fit --only gh200).
H100 = Costs(
    *(5.04, 0.062, 0.117, 0.315, 0.315, 1.0, 12.9),
    _protocols(
        {"Simple": 2.86, "LL": 0.58, "LL128": 2.61}, {"Simple": 16.15, "LL": 6.47, "LL128": 8.40}, _TREE_NETWORK
    ),
    # Slingshot's NIC sends up to 2048 bytes of a message, and 2049 more if that is all, without being asked (libfabric
    # 2.0, prov/cxi: CXIP_RDZV_THRESHOLD, rdzv_get_min; fi_cxi(7)). A rendezvous is two more ways over the network, each
    # as long as NCCL's shortest hop of one (LL in a ring).
    unasked=4097,
    rendezvous=2 * _NETWORK["LL"],
)
"""Of a GH200's GPU."""


def ndv4(nodes: int = 1) -> Topology:
    """Azure ND A100 v4: 8 A100, 12 NVLinks each through NVSwitch; 8 HDR NICs, two a PCIe switch (paper, Figure 7)."""
    # 12 NVLinks of 25 GB/s raw; 20 are left of each for data (NCCL's graph/topo.h). HDR is 200 Gb/s. PCIe 4.0 x16 to a
    # switch's two GPUs carries 32 GB/s raw each way, 24 for data; that of the NICs is as wide.
    links, within = _switched(8, 12 * 20.0)
    nics = _network(links, nics=range(8), bandwidth=25.0, switches=[g // 2 for g in range(8)], switch=2 * 24.0)
    return _topology("ndv4", nodes, 8, links, within, nics, 108, A100)


def dgx2(nodes: int = 1) -> Topology:
    """NVIDIA DGX-2: 16 V100 on two boards, 6 NVLinks each through NVSwitch, 48 between the boards; a NIC for two."""
    links, within = _switched(16, 6 * 20.0)
    for name in ("boards there", "boards back"):
        links.append(Link(name, 48 * 20.0))
    there, back = len(links) - 2, len(links) - 1
    for (a, b), way in within.items():
        if a // 8 != b // 8:
            within[a, b] = (*way, there if a < 8 else back)
    pairs = [g // 2 for g in range(16)]
    # PCIe 3.0 x16: 16 GB/s raw each way, 12 for data, on the way to a pair's NIC (NCCL's graph/topo.h: PCI_WIDTH 12).
    nics = _network(links, nics=pairs, bandwidth=25.0, switches=pairs, switch=12.0)
    return _topology("dgx2", nodes, 16, links, within, nics, 80, V100)


# Pairs of the DGX-1's hybrid cube mesh that two NVLinks join, then those that one does (NVIDIA DGX-1 white paper).
_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


def dgx1(nodes: int = 1) -> Topology:
    """NVIDIA DGX-1: 8 V100 in a hybrid cube mesh of NVLinks, a NIC of 12.5 GB/s for two."""
    pairs = dict.fromkeys(_DOUBLE, 2 * 20.0) | dict.fromkeys(_SINGLE, 20.0)
    links, within = _joined(pairs)
    halves = [g // 2 for g in range(8)]
    nics = _network(links, nics=halves, bandwidth=12.5, switches=halves, switch=12.0)
    return _topology("dgx1", nodes, 8, links, within, nics, 80, V100)


def gh200(nodes: int = 1) -> Topology:
    """Nodes of 4 GH200: each joined to each by 6 NVLinks of 25 GB/s, and a Slingshot NIC of 25 GB/s for each."""
    pairs = {(a, b): 6 * 25.0 for a in range(4) for b in range(a)}
    links, within = _joined(pairs)
    nics = _network(links, nics=range(4), bandwidth=25.0)
    return _topology("gh200", nodes, 4, links, within, nics, 132, H100)


# Slots of paths: what a rank sends in one round, slot_bytes, lent_tile_bytes (native/policy/tunables.def). A message is
# there when all of a tile is. Times and speeds of a machine are what `hocket calibrate` finds: these are of none.
_PATHS = (
    Protocol("eager", 0.0, 0.0, 1.0, 1e3, 16 << 10, 16 << 10, 4),
    Protocol("fifo", 0.0, 0.0, 1.0, 1e3, 256 << 10, 256 << 10, 4),
    Protocol("zero-copy", 0.0, 0.0, 1.0, 1e3, 1 << 20, 1 << 20, 4),
)
CORES = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e3, _PATHS, memory=(Memory(1, 1, 1.0, 1.0, 1.0, 1.0),))
"""Of cores, which a file of ``like = "cores"`` says all that matters of."""


def cores(name: str, count: int, nodes: int, bandwidth: float, costs: Costs) -> Topology:
    """Cores that share memory. ``bandwidth``: of what one gets from others."""
    links, within = _switched(count, bandwidth, "core")
    return _topology(name, nodes, count, links, within, ((), ()), 1 << 16, costs)


def local_file() -> Path:
    """Where ``hocket calibrate`` leaves the topology of this machine. Raises BadTopology."""
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "hocket" / "local.toml"
    if home := os.environ.get("HOME"):
        return Path(home) / ".cache" / "hocket" / "local.toml"
    raise BadTopology("neither XDG_CACHE_HOME nor HOME says where the topology of this machine is")


def local() -> Topology:
    """This machine, as calibrated. Raises BadTopology."""
    path = local_file()
    if not path.exists():
        raise BadTopology("this machine is not calibrated", "run hocket calibrate, which takes half a minute")
    return load(path)


BUILT_IN: Mapping[str, Callable[[int], Topology]] = MappingProxyType(
    {"ndv4": ndv4, "dgx2": dgx2, "dgx1": dgx1, "gh200": gh200}
)


def named(name: str, nodes: int = 1) -> Topology:
    """A built-in machine, or that of a TOML file. Raises BadTopology."""
    if name in BUILT_IN:
        return BUILT_IN[name](nodes)
    if name == "local":
        if nodes != 1:
            raise BadTopology("local is one node: this machine")
        return local()
    if isinstance(name, str) and name.endswith(".toml"):
        return load(name, nodes)
    known = ", ".join(BUILT_IN)
    raise BadTopology(f"there is no topology {name!r}", f"it is one of {known}, local, or a file NAME.toml")


_Ways = tuple[tuple[int, ...], ...]


def _topology(
    name: str,
    nodes: int,
    gpus: int,
    links: Sequence[Link],
    within: Mapping[tuple[int, int], tuple[int, ...]],
    network: tuple[_Ways, _Ways],
    thread_blocks: int,
    costs: Costs,
) -> Topology:
    return Topology(name, nodes, gpus, tuple(links), MappingProxyType(dict(within)), *network, thread_blocks, costs)


def _switched(
    gpus: int, bandwidth: float, what: str = "GPU"
) -> tuple[list[Link], dict[tuple[int, int], tuple[int, ...]]]:
    """Each GPU has a port of a switch that does not block."""
    links = [Link(f"{what} {g} {way}", bandwidth) for g in range(gpus) for way in ("out", "in")]
    return links, {(a, b): (2 * a, 2 * b + 1) for a in range(gpus) for b in range(gpus) if a != b}


def _joined(pairs: Mapping[tuple[int, int], float]) -> tuple[list[Link], dict[tuple[int, int], tuple[int, ...]]]:
    """Links between two GPUs, as wide in both directions."""
    links, within = list[Link](), dict[tuple[int, int], tuple[int, ...]]()
    for (a, b), bandwidth in sorted(pairs.items()):
        for source, target in ((a, b), (b, a)):
            within[source, target] = (len(links),)
            links.append(Link(f"GPU {source} to {target}", bandwidth))
    return links, within


def _network(
    links: list[Link], nics: Sequence[int], bandwidth: float, switches: Sequence[int] = (), switch: float = 0.0
) -> tuple[_Ways, _Ways]:
    """The ways out and in of each GPU: through its PCIe switch, if it has one, and its NIC. Adds their links."""
    ways = []
    for way in ("out", "in"):
        places: dict[tuple[str, int], int] = {}
        for kind, numbers, width in (("PCIe", switches, switch), ("NIC", nics, bandwidth)):
            for number in sorted(set(numbers)):
                places[kind, number] = len(links)
                links.append(Link(f"{kind} {number} {way}", width))
        ways.append(
            tuple(
                tuple(places[kind, numbers[g]] for kind, numbers in (("PCIe", switches), ("NIC", nics)) if numbers)
                for g in range(len(nics))
            )
        )
    return ways[0], ways[1]


# ---------------------------------------------------------------------------------------------------------------
# Files


def load(path: str | os.PathLike[str], nodes: int = 1) -> Topology:
    """The topology of a TOML file (docs/simulator.md). Raises BadTopology."""
    import tomllib  # programs load this module, and few read a file

    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTopology(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadTopology(f"{path}: {error}") from None
    reader = _Reader(str(path))
    reader.known(given, ("name", "gpus", "thread_blocks", "switch", "pairs", "memory", "network", "like", "costs"), "")
    gpus = reader.whole(given, "gpus")
    like = given.get("like", "ndv4")
    if not isinstance(like, str) or (like not in BUILT_IN and like != "cores"):
        raise reader.wrong(f"like: there is no topology {like!r}")
    name = str(given.get("name", path.stem))
    if like == "cores":
        costs = reader.costs(CORES, reader.table(given, "costs"))
        if len(costs.memory) < 2:
            raise reader.wrong("costs: memory is a list of two or more of what was measured: [[costs.memory]]")
        return cores(name, gpus, nodes, reader.number(given, "switch"), costs)
    if "pairs" in given:
        links, within = _joined(reader.pairs(given["pairs"], gpus))
    else:
        links, within = _switched(gpus, reader.number(given, "switch"))
    if "memory" in given:  # of a node whose ranks share it
        links.append(Link("memory", reader.number(given, "memory")))
        within = {pair: (*way, len(links) - 1) for pair, way in within.items()}
    network: tuple[_Ways, _Ways] = ((), ())
    if "network" in given:
        table = reader.table(given, "network")
        reader.known(table, ("nics", "bandwidth", "switches", "switch"), "network: ")
        nics = reader.numbers(table, "nics", gpus)
        switches = reader.numbers(table, "switches", gpus) if "switches" in table else ()
        switch = reader.number(table, "switch") if switches else 0.0
        network = _network(links, nics, reader.number(table, "bandwidth"), switches, switch)
    base = BUILT_IN[like](1)
    costs = reader.costs(base.costs, reader.table(given, "costs") if "costs" in given else {})
    blocks = reader.whole(given, "thread_blocks") if "thread_blocks" in given else base.thread_blocks
    return _topology(name, nodes, gpus, links, within, network, blocks, costs)


def dump_cores(found: Topology) -> str:
    """The file of a topology of cores: ``load`` reads the same."""
    costs = found.costs
    lines = [f'name = "{found.name}"', 'like = "cores"', f"gpus = {found.gpus}"]
    lines += [f"switch = {found.node_links[0].bandwidth!r}", "", "[costs]"]
    lines += [f"{f.name} = {getattr(costs, f.name)!r}" for f in fields(Costs) if f.type == "float"]
    for protocol in costs.protocols:
        lines += ["", f"[costs.{protocol.name}]"]
        lines += [f"{f.name} = {getattr(protocol, f.name)!r}" for f in fields(Protocol) if f.name != "name"]
    for point in costs.memory:
        lines += ["", "[[costs.memory]]", *(f"{f.name} = {getattr(point, f.name)!r}" for f in fields(Memory))]
    return "\n".join(lines) + "\n"


_MOST = 1e18


class _Reader:
    """Takes values from a file's tables; what is not as it must be is an error that names the file and the key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wrong(self, reason: str) -> BadTopology:
        return BadTopology(f"{self._path}: {reason}")

    def known(self, table: Mapping[str, object], keys: Sequence[str], where: str) -> None:
        for key in table:
            if key not in keys:
                raise self.wrong(f"{where}there is no key {key!r}; there are {', '.join(keys)}")

    def number(self, table: Mapping[str, object], key: str, *, zero: bool = False) -> float:
        value = table.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if 0 < value <= _MOST or (zero and value == 0):
                return float(value)
            value = f"{value:.3g}" if value < _MOST else "so large a one"
        raise self.wrong(f"{key} must be a positive number, not {value}")

    def whole(self, table: Mapping[str, object], key: str) -> int:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(f"{key} must be a positive whole number, not {value!r}")
        return value

    def table(self, given: Mapping[str, object], key: str) -> Mapping[str, object]:
        value = given[key]
        if not isinstance(value, dict):
            raise self.wrong(f"{key} is a table: [{key}]")
        return value

    def numbers(self, table: Mapping[str, object], key: str, length: int) -> list[int]:
        value = table.get(key)
        if not isinstance(value, list) or len(value) != length or not all(type(n) is int for n in value):
            raise self.wrong(f"{key} is a list of {length} numbers, one for each GPU, not {value!r}")
        return value

    def pairs(self, value: object, gpus: int) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, list) or len(entry) != 3:
                raise self.wrong(f"pairs is a list of [GPU, GPU, GB/s], not {entry!r}")
            a, b, bandwidth = entry
            if not (type(a) is type(b) is int and a != b and 0 <= a < gpus and 0 <= b < gpus):
                raise self.wrong(f"pairs: {entry!r} names no two GPUs of {gpus}")
            if (min(a, b), max(a, b)) in found:
                raise self.wrong(f"pairs: {a} and {b} are joined twice")
            found[min(a, b), max(a, b)] = self.number({"pairs": bandwidth}, "pairs")
        return found

    def costs(self, base: Costs, table: Mapping[str, object]) -> Costs:
        """``base``, but for the keys of the table; those of a protocol are in a table of its name."""
        plain = [f.name for f in fields(Costs) if f.name not in ("protocols", "caches", "memory")]
        by_name = {protocol.name: protocol for protocol in base.protocols}
        self.known(table, (*plain, *by_name, "caches", *(["memory"] if base.memory else [])), "costs: ")
        changed = {key: self.number(table, key, zero=key != "local") for key in table if key in plain}
        for key in table:
            if key in by_name:
                inner = self.table(table, key)
                self.known(inner, [f.name for f in fields(Protocol)][1:], f"costs.{key}: ")
                values = {k: self.whole(inner, k) for k in inner if k in ("grain", "slot", "slots")}
                rates = {k: self.number(inner, k, zero="hop" in k or k == "start") for k in inner if k not in values}
                by_name[key] = replace(by_name[key], **values, **rates)  # type: ignore[arg-type]
        found = replace(base, **changed, protocols=tuple(by_name.values()))  # type: ignore[arg-type]
        if "memory" in table:
            found = replace(found, memory=self._memory(table["memory"]))
        return replace(found, caches=self._caches(table["caches"])) if "caches" in table else found

    def _memory(self, value: object) -> tuple[Memory, ...]:
        found = []
        for point in value if isinstance(value, list) else [value]:
            if not isinstance(point, dict):
                raise self.wrong(f"memory is a list of tables: [[costs.memory]], not {point!r}")
            self.known(point, [f.name for f in fields(Memory)], "costs.memory: ")
            whole = [self.whole(point, key) for key in ("ranks", "bytes")]
            found.append(Memory(*whole, *(self.number(point, key) for key in ("copy", "update", "add", "far"))))
        return tuple(sorted(found, key=lambda point: (point.ranks, point.bytes)))

    def _caches(self, value: object) -> tuple[tuple[float, float], ...]:
        found = []
        for level in value if isinstance(value, list) else [value]:
            if not isinstance(level, list) or len(level) != 2:
                raise self.wrong(f"caches is a list of [bytes, GB/s], not {level!r}")
            size, speed = (self.number({"caches": number}, "caches") for number in level)
            found.append((size, speed))
        return tuple(sorted(found))
