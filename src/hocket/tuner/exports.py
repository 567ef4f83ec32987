"""What a tuner or a search chose, as others read it: hocket.toml, and files of NCCL, Open MPI, MPICH and UCC.

Another library's algorithm stands for a program of ours if the same messages travel. What has none is refused, with the
reason. Where nothing was chosen, the other library decides as it does without a file.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import TypeVar

from hocket.algorithms.catalogue import CATALOGUE
from hocket.algorithms.entry import Algorithm, Parameters
from hocket.errors import BadTable, HocketError
from hocket.program import Contract
from hocket.tuner.arms import DEFAULT, Arm, Key, attaches, steps
from hocket.tuner.store import Table, Tuned
from hocket.tuning import KINDS, choose, has_zero_copy

_LIBRARY = "hocket.algorithms."

Name = tuple[str, tuple[tuple[str, int | tuple[int, ...]], ...]]
"""A program of the library and its arguments, those of ranks, root and instances left out."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sizes of the larger buffer from ``least`` to ``most`` bytes, both included, at which calls take one program.

    ``most``: None is no end. ``program``: ``ring:all_reduce`` of the library, or one of the user's. ``protocol``:
    NCCL's; None where there is no such choice. ``tile`` in bytes; None: from the size. ``others``: programs of the
    library with the same steps.
    """

    collective: str
    ranks: int
    nodes: int
    program: str
    parameters: Parameters
    instances: int
    protocol: str | None
    least: int
    most: int | None
    tile: int | None = None
    others: tuple[Name, ...] = field(default=(), compare=False)

    @property
    def way(self) -> tuple[object, ...]:
        """All but the sizes and the protocol."""
        return self.program, sorted(self.parameters.items()), self.instances, self.tile

    @property
    def place(self) -> tuple[str, int, int, int]:
        root = self.parameters.get("root", 0)
        assert isinstance(root, int)
        return self.collective, self.ranks, self.nodes, root

    @property
    def target(self) -> str:
        """As the command line and hocket.toml name the program."""
        ours = any(self.program == algorithm.name for algorithm in CATALOGUE)
        return f"{_LIBRARY}{self.program}" if ours else self.program

    @property
    def name(self) -> str:
        words = [f"{k}={v}" for k, v in self.parameters.items() if k not in ("ranks", "root")]
        words += [f"instances={self.instances}"] * (self.instances > 1) + [f"tile={self.tile}"] * bool(self.tile)
        return " ".join([self.program, *words])

    @property
    def calls(self) -> str:
        """For which calls it is."""
        most = "" if self.most is None else self.most
        return f"{self.collective} on {self.ranks} ranks, {self.least}..{most} bytes"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a file does not say, and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Export:
    """A file, and what it does not say."""

    text: str
    refused: tuple[Refusal, ...] = ()


class _No(Exception):
    """A run has no counterpart: the reason."""


# ---------------------------------------------------------------------------------------------------------------
# From a table


def entries(table: Table) -> tuple[list[Run], list[Refusal]]:
    """What hocket.toml has to say: nothing where the static policy was chosen."""

    def told(tuned: Tuned) -> Run | None:
        key, arm = tuned.key, tuned.best.arm
        if arm == DEFAULT:
            return None
        if key.nodes:
            raise _No("an entry holds however ranks are on nodes")
        if key.reproducible is not None:
            raise _No(f"an entry is not for calls with reproducible={key.reproducible!r} alone")
        if arm.zero_copy and has_zero_copy(key.collective, key.reproducible, inplace=False):
            raise _No("an entry takes slots, this arm offers zero copies")
        return _run(tuned)

    return _told(table, told)


def runs(table: Table) -> tuple[list[Run], list[Refusal]]:
    """What to say to other libraries. A program that the static policy takes is named: theirs is another."""

    def told(tuned: Tuned) -> Run:
        key, arm = tuned.key, tuned.best.arm
        if not arm.program and arm.zero_copy and attaches(key.call(), key.op):
            raise _No("such calls may go by cross-memory attach, by another program than through slots")
        if key.reproducible is not None:
            raise _No(f"it is of calls with reproducible={key.reproducible!r}, which others do not have")
        return _run(tuned)

    return _told(table, told)


def _told(table: Table, told: Callable[[Tuned], Run | None]) -> tuple[list[Run], list[Refusal]]:
    """The runs of all keys, neighbouring sizes with one program as one. Where keys that no file keeps apart have
    different programs, there is none."""
    groups: defaultdict[tuple[object, ...], list[tuple[Tuned, Run | None]]] = defaultdict(list)
    refused = []
    for tuned in table.keys:
        try:
            if not tuned.best.samples:
                raise _No("nothing was measured of the arm that was chosen")
            run = told(tuned)
        except _No as reason:
            refused.append(Refusal(str(tuned.key), str(reason)))
        except HocketError as error:
            refused.append(Refusal(str(tuned.key), error.diagnostic().message))
        else:
            key = tuned.key
            groups[key.collective, key.ranks, key.nodes, key.root, key.bits].append((tuned, run))
    found = []
    for group in groups.values():
        names = dict.fromkeys("default" if run is None else run.name for _, run in group)
        if len(names) > 1:
            why = f"by type, operator, contract or cores it is {' or '.join(names)}, which no file keeps apart"
            refused += [Refusal(str(tuned.key), why) for tuned, _ in group]
        elif group[0][1] is not None:
            found.append(group[0][1])
    return list(_joined(found)), refused


def _run(tuned: Tuned) -> Run:
    """What the chosen arm of a key runs. Raises _No."""
    key, arm, call = tuned.key, tuned.best.arm, tuned.key.call()
    if arm.program and not _is_ours(arm, key):
        words = [arm.program, *(f"{name}={value}" for name, value in arm.parameters)]
        raise _No(f"{' '.join(words)} is no program of the library for such calls")
    choice = choose(call)
    if not arm.program and choose(replace(call, sockets=2)).line is not choice.line:
        raise _No("what the static policy takes follows from the sockets, which the table does not have")
    schedule = arm.schedule(call) or choice.compile()
    names = _names(key.collective, key.ranks, key.root, key.reproducible).get(steps(schedule), [])
    if arm.program:
        first: Name = arm.program.removeprefix(_LIBRARY), arm.parameters
    elif names:
        first = names[0]
    else:
        raise _No("what the static policy takes is not in the library's catalogue")
    program, parameters = first[0], dict(first[1])
    if not (KINDS[key.collective].reads and KINDS[key.collective].writes):
        parameters["root"] = key.root
    nodes = len(set(key.nodes)) or 1
    others = tuple(name for name in names if name[0] != program)
    return Run(
        key.collective, key.ranks, nodes, program, parameters, 1, None, tuned.least, tuned.most, arm.tile, others
    )


def _is_ours(arm: Arm, key: Key) -> bool:
    """Whether its program is the library's, for the collective and the ranks of a key. A file may name anything:
    nothing else is imported or run."""
    return any(
        arm.program == f"{_LIBRARY}{algorithm.name}" and dict(arm.parameters) in algorithm.cases(key.ranks)
        for algorithm in _algorithms(key.collective)
    )


def _algorithms(collective: str) -> list[Algorithm]:
    return [each for each in CATALOGUE if each.collective.__name__.lower() == collective.replace("_", "")]


@cache
def _names(collective: str, ranks: int, root: int, reproducible: Contract | None) -> dict[str, list[Name]]:
    """What the library calls each schedule that it has for a collective, by its steps."""
    found: defaultdict[str, list[Name]] = defaultdict(list)
    rooted = {} if KINDS[collective].reads and KINDS[collective].writes else {"root": root}
    for algorithm in _algorithms(collective):
        cases = algorithm.cases(ranks)
        cases += [case | {"radix": ranks} for case in cases[:1] if "radix" in case]  # a flat tree
        for parameters in cases:
            try:
                schedule = algorithm.factory(**parameters, **rooted).compile(reproducible=reproducible)
            except HocketError:  # it does not keep the contract
                continue
            found[steps(schedule)].append((algorithm.name, tuple(parameters.items())))
    return found


def _joined(found: Iterable[Run]) -> Iterator[Run]:
    last: Run | None = None
    for run in sorted(found, key=lambda run: (run.place, run.least)):
        if last is not None and (last.place, last.way) == (run.place, run.way) and last.most == run.least - 1:
            last = replace(last, most=run.most)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


# ---------------------------------------------------------------------------------------------------------------
# hocket.toml


def toml(heading: str, found: Iterable[Run]) -> str:
    """For HOCKET_CONFIG (docs/schedules-by-size.md). Neighbours that differ by protocol only are one entry."""
    said = [f"# {heading}\n# No entry names a protocol: the runtime chooses it.\n"]
    for _, group in groupby(found, lambda run: (run.place, run.way)):
        parts = list(group)
        run = parts[0]
        given = ", ".join(f"{k} = {_value(v)}" for k, v in run.parameters.items())
        most = "" if parts[-1].most is None else f"{parts[-1].most}"
        said.append(
            f'[[{run.collective}]]\nprogram = "{run.target}"\narguments = {{ {given} }}\nranks = {run.ranks}\n'
            f'instances = {run.instances}\nsizes = "{run.least}..{most}"\n' + f'tile = "{run.tile}"\n' * bool(run.tile)
        )
    return "\n".join(said)


def _value(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


# ---------------------------------------------------------------------------------------------------------------
# NCCL

_IN_NCCL = {
    "ring:all_reduce": "ring",
    "ring:all_gather": "ring",
    "ring:reduce_scatter": "ring",
    "chain:broadcast": "ring",
    "chain:reduce": "ring",
    "double_tree:all_reduce": "tree",
    "pat:all_gather": "pat",
    "pat:reduce_scatter": "pat",
}
"""What NCCL has of the library, in the words of ext-tuner/example."""

_BETWEEN_NODES = frozenset({"tree", "pat"})
"""What it does with one rank of each node: inside of a node both are chains."""

_CHANNELS = 32
"""NCCL's most (MAXCHANNELS)."""


def nccl(found: Iterable[Run]) -> Export:
    """The CSV of NCCL's example tuner. Channels are always given: the plug-in's default is one."""
    lines = ["# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks"]
    refused = []
    for run in found:
        try:
            algorithm = _peer(run, _IN_NCCL, "NCCL")
            channels = run.instances * int(str(run.parameters.get("channels", 1)))
            if channels > _CHANNELS:
                raise _No(f"NCCL has {_CHANNELS} channels at most, not {channels}")
            if algorithm in _BETWEEN_NODES and run.nodes != run.ranks:
                raise _No(f"NCCL's {algorithm} is such only with one rank on each node")
            if run.protocol is None:
                raise _No("no protocol is said, and each line of the file has one")
            protocol = run.protocol.lower()
            if algorithm == "pat" and protocol != "simple":
                raise _No(f"NCCL's pat has no {run.protocol}")
        except _No as reason:
            refused.append(Refusal(" ".join(filter(None, (run.name, run.protocol))), str(reason)))
            continue
        most = 2**63 - 1 if run.most is None else run.most
        words = (run.collective.replace("_", ""), run.least, most, algorithm, protocol, channels)
        lines.append(",".join(map(str, (*words, run.nodes, run.ranks))))
    return Export("\n".join(lines) + "\n", tuple(dict.fromkeys(refused)))


# ---------------------------------------------------------------------------------------------------------------
# What MPI libraries have in common

_Counterpart = TypeVar("_Counterpart")


def _peer(run: Run, known: Mapping[str, _Counterpart], other: str) -> _Counterpart:
    """What ``other`` has for a program. Raises _No."""
    for program, parameters in ((run.program, tuple(run.parameters.items())), *run.others):
        found = known.get(_plain(program, dict(parameters), run.ranks))
        if found is not None:
            return found
    raise _No(f"{other} has no such algorithm")


def _plain(program: str, parameters: Parameters, ranks: int) -> str:
    """The name of a program by which tables of others know it. Trees go by their radix, of two or of all ranks alike;
    channels make no difference."""
    kind, _, collective = program.partition(":")
    if kind not in ("tree", "knomial") or collective not in ("broadcast", "reduce"):
        return program
    radix = 2 if kind == "tree" else parameters["radix"]
    assert isinstance(radix, int)
    return f"flat:{collective}" if radix >= ranks > 2 else f"knomial:{collective} radix={min(radix, ranks)}"


def _by_calls(found: Iterable[Run]) -> tuple[dict[tuple[str, int], list[Run]], list[Refusal]]:
    """Runs by collective and number of ranks, in the order of sizes, and those for sizes that others have taken
    already, from another root or on other nodes."""
    groups: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
    refused = []
    for run in sorted(found, key=lambda run: (run.collective, run.ranks, run.least, run.place)):
        group = groups[run.collective, run.ranks]
        last = group[-1] if group else None
        if last is None or (last.most is not None and last.most < run.least):
            group.append(run)
        elif (last.least, last.most, last.program) != (run.least, run.most, run.program):
            refused.append(Refusal(f"{run.name}, {run.calls}", f"roots and nodes count alike; {last.name} is said"))
    return dict(groups), refused


def _sorted_out(
    found: Iterable[Run], said: Callable[[Run], _Counterpart]
) -> tuple[dict[tuple[str, int], list[tuple[Run, _Counterpart]]], list[Refusal]]:
    """Each run with its counterpart, by collective and number of ranks; and those that have none."""
    groups, refused = _by_calls(found)
    kept: defaultdict[tuple[str, int], list[tuple[Run, _Counterpart]]] = defaultdict(list)
    for calls, group in groups.items():
        for run in group:
            try:
                counterpart = said(run)
            except _No as reason:
                refused.append(Refusal(f"{run.name}, {run.calls}", str(reason)))
            else:
                kept[calls].append((run, counterpart))
    return dict(kept), refused


# ---------------------------------------------------------------------------------------------------------------
# Open MPI


@dataclass(frozen=True, slots=True)
class _OpenMpi:
    """An algorithm of coll/tuned: of which collective, by its number and its name. ``fan``: its fan-in and fan-out.
    ``cut``: it sends segments of so many bytes as it is told. ``since``: the version that has it first, if not all."""

    collective: str
    number: int
    name: str
    fan: int = 0
    cut: bool = False
    since: int = 0


_OPEN_MPI = {
    "ring:all_gather": _OpenMpi("allgather", 4, "ring"),
    "bruck:all_gather": _OpenMpi("allgather", 2, "bruck-k-fanout", fan=2),
    "recursive_doubling:all_gather": _OpenMpi("allgather", 3, "recursive_doubling"),
    "neighbor_exchange:all_gather": _OpenMpi("allgather", 5, "neighbor"),
    "ring:all_reduce": _OpenMpi("allreduce", 4, "ring"),
    "recursive_doubling:all_reduce": _OpenMpi("allreduce", 3, "recursive_doubling"),
    "recursive_halving:all_reduce": _OpenMpi("allreduce", 6, "rabenseifner"),
    "all_pairs:one_shot_all_reduce": _OpenMpi("allreduce", 7, "allgather_reduce", since=6),
    "direct:all_to_all": _OpenMpi("alltoall", 1, "linear"),
    "pairwise:all_to_all": _OpenMpi("alltoall", 2, "pairwise"),
    "bruck:all_to_all": _OpenMpi("alltoall", 3, "modified_bruck"),
    "flat:broadcast": _OpenMpi("bcast", 1, "basic_linear"),
    "chain:broadcast": _OpenMpi("bcast", 3, "pipeline", cut=True),
    "knomial:broadcast radix=2": _OpenMpi("bcast", 6, "binomial", cut=True),
    "knomial:broadcast radix=4": _OpenMpi("bcast", 7, "knomial", cut=True),
    "scatter_allgather:broadcast": _OpenMpi("bcast", 9, "scatter_allgather_ring"),
    "flat:reduce": _OpenMpi("reduce", 1, "linear"),
    "chain:reduce": _OpenMpi("reduce", 3, "pipeline", cut=True),
    "knomial:reduce radix=2": _OpenMpi("reduce", 5, "binomial", cut=True),
    "recursive_halving:reduce_scatter": _OpenMpi("reduce_scatter_block", 3, "recursive_halving"),
}
"""From the manual's tables of algorithms (docs/tuning-apps/collectives/tuned.rst). The radix of its k-nomial broadcast
is a parameter of all calls, by default 4."""

_OPEN_MPI_IDS = {
    "allgather": 0,
    "allreduce": 2,
    "alltoall": 3,
    "bcast": 7,
    "reduce": 11,
    "reduce_scatter_block": 13,
}

_OPEN_MPI_REFUSES = {
    "gather": "Open MPI reads a count on every rank that means nothing at a root in place: ranks would choose apart",
    "scatter": "Open MPI reads a count on every rank that means something on the root alone",
    "scan": "Open MPI's size of a scan does not depend on the count",
    "exscan": "Open MPI's size of a scan does not depend on the count",
}


def _in_open_mpi(run: Run, version: int) -> tuple[_OpenMpi, int]:
    """The algorithm, and bytes of its segments, 0 for whole messages. Raises _No."""
    if run.collective in _OPEN_MPI_REFUSES:
        raise _No(_OPEN_MPI_REFUSES[run.collective])
    found = _peer(run, _OPEN_MPI, "Open MPI")
    if version < found.since:
        raise _No(f"Open MPI has {found.name} from {found.since} on")
    if run.tile and not found.cut:
        raise _No(f"Open MPI's {found.name} has no segments, this has tiles of {run.tile} bytes")
    return found, run.tile or 0


def open_mpi(found: Iterable[Run]) -> Export:
    """Rules for coll_tuned_dynamic_rules_filename of Open MPI up to 5."""
    groups, refused = _sorted_out(found, lambda run: _in_open_mpi(run, 5))
    collectives: defaultdict[str, list[list[str]]] = defaultdict(list)
    for (_, ranks), group in sorted(groups.items()):
        rules = ["0 0 0 0 # bytes, algorithm (0: as without this file), fan, bytes of a segment"]
        end = 0
        for run, (peer, segment) in group:
            if run.least > end:
                rules += [f"{end} 0 0 0"] * (end > 0)
            elif run.least == 0:
                rules = []
            rules.append(f"{run.least} {peer.number} {peer.fan} {segment} # {peer.name}: {run.name}")
            if run.most is None:
                break
            end = run.most + 1
        else:
            rules.append(f"{end} 0 0 0")
        collectives[group[0][1][0].collective].append([f"{ranks} {len(rules)} # ranks, rules", *rules])
    lines = [
        "# Open MPI up to 5: --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE",
        f"{len(collectives)} # collectives",
    ]
    for name, sizes in collectives.items():
        numbers = [int(size[0].split()[0]) for size in sizes]
        blocks = dict(zip(numbers, sizes, strict=True))
        for number in (0, *(n + 1 for n in numbers)):  # a rule is for its number of ranks and more
            blocks.setdefault(number, [f"{number} 1", "0 0 0 0"])
        lines += [f"{_OPEN_MPI_IDS[name]} # {name}", f"{len(blocks)} # numbers of ranks, each for more up to the next"]
        lines += [line for number in sorted(blocks) for line in blocks[number]]
    return Export("\n".join(lines) + "\n", tuple(refused))


def open_mpi_json(found: Iterable[Run]) -> Export:
    """Rules for coll_tuned_dynamic_rules_filename of Open MPI from 6 on."""
    groups, refused = _sorted_out(found, lambda run: _in_open_mpi(run, 6))
    collectives: defaultdict[str, list[object]] = defaultdict(list)
    for (_, ranks), group in sorted(groups.items()):
        rules = []
        for run, (peer, segment) in group:
            rule: dict[str, object] = {
                "msg_size_min": run.least,
                "msg_size_max": "inf" if run.most is None else run.most,
            }
            rule |= {"alg": peer.name} | ({"faninout": peer.fan} if peer.fan else {})
            rules.append(rule | ({"seg_size": segment} if segment else {}))
        by_ranks = {"comm_size_min": ranks, "comm_size_max": ranks, "rules": rules}
        collectives[group[0][1][0].collective].append(by_ranks)
    said = {"rule_file_version": 3, "module": "tuned", "collectives": dict(collectives)}
    return Export(json.dumps(said, indent=1) + "\n", tuple(refused))


# ---------------------------------------------------------------------------------------------------------------
# MPICH

_Tree = dict[str, "_Tree"]


@dataclass(frozen=True, slots=True)
class _Mpich:
    """An algorithm, and which calls of its collective it does: tests of MPICH's tree, each with the answers that lead
    to it and to what MPICH chose before."""

    name: str
    tests: tuple[tuple[str, str], ...] = ()


_COMMUTES = ("is_commutative=yes", "is_commutative=no")
_APART = ("is_sendbuf_inplace=no", "is_sendbuf_inplace=yes")
_MPICH = {
    "ring:all_gather": _Mpich("Allgather_intra_ring"),
    "bruck:all_gather": _Mpich("Allgather_intra_brucks"),
    "recursive_doubling:all_gather": _Mpich("Allgather_intra_recursive_doubling"),
    "recursive_doubling:all_reduce": _Mpich("Allreduce_intra_recursive_doubling"),
    "ring:all_reduce": _Mpich("Allreduce_intra_ring", (_COMMUTES,)),
    "recursive_halving:all_reduce": _Mpich(
        "Allreduce_intra_reduce_scatter_allgather",
        (("is_op_built_in=yes", "is_op_built_in=no"), ("count=any", "count<pow2")),
    ),
    "direct:all_to_all": _Mpich("Alltoall_intra_scattered", (_APART,)),
    "pairwise:all_to_all": _Mpich("Alltoall_intra_pairwise", (_APART,)),
    "bruck:all_to_all": _Mpich("Alltoall_intra_brucks", (_APART,)),
    "knomial:broadcast radix=2": _Mpich("Bcast_intra_binomial"),
    "scatter_allgather:broadcast": _Mpich("Bcast_intra_scatter_ring_allgather"),
    "knomial:reduce radix=2": _Mpich("Reduce_intra_binomial"),
    "recursive_halving:reduce_scatter": _Mpich("Reduce_scatter_block_intra_recursive_halving", (_COMMUTES,)),
    "direct:reduce_scatter": _Mpich("Reduce_scatter_block_intra_pairwise", (_COMMUTES,)),
}
"""From MPICH's maint/tuning/coll/mpir/generic.json, which has for each the same tests."""

_MPICH_CALLS = {
    "all_gather": ("allgather", "total_msg_size"),
    "all_reduce": ("allreduce", "avg_msg_size"),
    "all_to_all": ("alltoall", "avg_msg_size"),
    "broadcast": ("bcast", "avg_msg_size"),
    "reduce": ("reduce", "avg_msg_size"),
    "reduce_scatter": ("reduce_scatter_block", "total_msg_size"),
}
"""MPICH's name of a collective, and of the size to test: that of the larger buffer, or of an AllToAll's block."""

_MPICH_MOST = 2**31 - 1
"""Bytes that it can compare with: it reads them as int."""


_PAGE = 4096
"""It maps the file and reads to a NUL, which a file of whole pages does not end with."""


def _in_mpich(run: Run, base: _Tree) -> _Mpich:
    """Raises _No."""
    if run.collective not in _MPICH_CALLS:
        raise _No(f"MPICH does not choose a {run.collective} by its size")
    found = _peer(run, _MPICH, "MPICH")
    if run.tile:
        raise _No(f"MPICH's {found.name} has no segments, this has tiles of {run.tile} bytes")
    if (run.most or 0) > _MPICH_MOST:
        raise _No("MPICH compares sizes of less than 2 GB")
    if "comm_type=intra" not in base.get(f"collective={_MPICH_CALLS[run.collective][0]}", {}):
        raise _No("MPICH's own selection is of another form")
    return found


def mpich(found: Iterable[Run], base: str) -> Export:
    """A file for MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE: MPICH's own selection, which the file replaces, with other
    answers for these calls. ``base``: of ``mpich_selection``."""
    tree: _Tree = json.loads(base)
    groups, refused = _sorted_out(found, lambda run: _in_mpich(run, tree))
    by_name: defaultdict[str, dict[int, list[tuple[Run, _Mpich]]]] = defaultdict(dict)
    for (collective, ranks), group in groups.items():
        by_name[collective][ranks] = group
    for collective, by_ranks in by_name.items():
        name, size = _MPICH_CALLS[collective]
        calls = tree[f"collective={name}"]
        before = calls["comm_type=intra"]
        chosen: _Tree = {}
        for ranks in sorted(by_ranks):
            if ranks - 1 not in by_ranks:
                chosen[f"comm_size<={ranks - 1}"] = before
            scale = ranks if collective == "all_to_all" else 1
            chosen[f"comm_size<={ranks}"] = _mpich_sizes(by_ranks[ranks], size, scale, before)
        calls["comm_type=intra"] = chosen | {"comm_size=any": before}
    text = json.dumps(tree, indent=1) + "\n"
    return Export(text + "\n" * (len(text) % _PAGE == 0), tuple(refused))


def _mpich_sizes(group: Sequence[tuple[Run, _Mpich]], size: str, scale: int, before: _Tree) -> _Tree:
    """The tests of sizes; ``scale``: so many times what MPICH tests is the larger buffer."""
    chosen: _Tree = {}
    end = 0
    for run, peer in group:
        if run.least > end:
            chosen[f"{size}<={(run.least - 1) // scale}"] = before
        answer: _Tree = {f"algorithm=MPIR_{peer.name}": {}}
        for yes, no in reversed(peer.tests):
            answer = {no: before, yes: answer}  # "any" has to be the last
        if run.most is None:
            return chosen | {f"{size}=any": answer}
        chosen[f"{size}<={run.most // scale}"] = answer
        end = run.most + 1
    return chosen | {f"{size}=any": before}


_SELECTION = re.compile(rb'\{\s*"collective=')


def mpich_selection(data: bytes, name: str) -> str:
    """MPICH's own selection of algorithms, out of its libmpi.so or as the JSON that it is. Raises BadTable."""
    for match in _SELECTION.finditer(data):
        text = data[match.start() :].partition(b"\0")[0].decode("utf-8", errors="replace")
        try:
            found, _ = json.JSONDecoder(object_pairs_hook=_without_twins).raw_decode(text)
        except ValueError:
            continue
        if "algorithm=MPIR_" in json.dumps(found):
            return json.dumps(found)
    raise BadTable(f"{name} holds no selection of MPICH", "it is libmpi.so of an MPICH, or its coll/mpir/generic.json")


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


# ---------------------------------------------------------------------------------------------------------------
# UCC


@dataclass(frozen=True, slots=True)
class _Ucc:
    """An algorithm of the team layer ucp. ``radix``: the parameter, and its value."""

    collective: str
    name: str
    radix: tuple[str, int] | None = None


_UCC = {
    "ring:all_gather": _Ucc("allgather", "ring"),
    "bruck:all_gather": _Ucc("allgather", "bruck"),
    "neighbor_exchange:all_gather": _Ucc("allgather", "neighbor"),
    "recursive_doubling:all_gather": _Ucc("allgather", "knomial", ("ALLGATHER_KN_RADIX", 2)),
    "ring:all_reduce": _Ucc("allreduce", "ring"),
    "double_tree:all_reduce": _Ucc("allreduce", "dbt"),
    "recursive_doubling:all_reduce": _Ucc("allreduce", "knomial", ("ALLREDUCE_KN_RADIX", 2)),
    "recursive_halving:all_reduce": _Ucc("allreduce", "sra_knomial", ("ALLREDUCE_SRA_KN_RADIX", 2)),
    "direct:all_to_all": _Ucc("alltoall", "pairwise"),
    "bruck:all_to_all": _Ucc("alltoall", "bruck"),
    "double_tree:broadcast": _Ucc("bcast", "dbt"),
} | {
    f"knomial:{ours} radix={radix}": _Ucc(theirs, "knomial", (f"{theirs.upper()}_KN_RADIX", radix))
    for ours, theirs in (("broadcast", "bcast"), ("reduce", "reduce"))
    for radix in (2, 3, 4)
}
"""From the tables of algorithms in UCC's src/components/tl/ucp: each ucc_tl_ucp_COLLECTIVE_algs."""

_UCC_REFUSES = {
    "gather": "UCC's ucp has one algorithm of it",
    "scatter": "UCC's ucp has one algorithm of it",
    "reduce_scatter": "UCC's size of it is that of a block, or of all where it is in place",
}


def _in_ucc(run: Run) -> _Ucc:
    """Raises _No."""
    if run.collective in _UCC_REFUSES:
        raise _No(_UCC_REFUSES[run.collective])
    found = _peer(run, _UCC, "UCC")
    if run.tile:
        raise _No(f"UCC's {found.name} is not told the bytes of a segment, this has tiles of {run.tile} bytes")
    return found


def ucc(found: Iterable[Run]) -> Export:
    """Variables of the environment: UCC_TL_UCP_TUNE, and the radixes that it does not say."""
    groups, refused = _sorted_out(found, _in_ucc)
    words, radixes = [], dict[str, tuple[int, str]]()
    for (_, ranks), group in sorted(groups.items()):
        for run, peer in group:
            if peer.radix is not None:
                name, radix = peer.radix
                taken, _ = radixes.setdefault(name, (radix, f"{peer.name} of {peer.collective}"))
                if taken != radix:
                    reason = f"UCC's {name} is one for all calls, and {taken} for others"
                    refused.append(Refusal(f"{run.name}, {run.calls}", reason))
                    continue
            first = run.least - (run.least == run.most)  # it takes no range of one size
            sizes = f"{first}-{'inf' if run.most is None else run.most}"
            words.append(f"{peer.collective}:{sizes}:host:[{ranks}-{ranks}]:inf:@{peer.name}")
    lines = [f"UCC_TL_UCP_TUNE={'#'.join(words)}"] * bool(words)
    for name, (radix, calls) in radixes.items():
        lines += [f"# for every {calls}, of any size, on any number of ranks", f"UCC_TL_UCP_{name}={radix}"]
    return Export("\n".join([*lines, ""]), tuple(refused))
