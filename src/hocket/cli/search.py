"""``hocket search``: which of the library's programs, with which knobs, is fastest on a machine, size by size.

The closed form ranks all candidates at each size; those near its best are simulated, and the best of another program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hocket.algorithms.entry import Algorithm, Parameters
from hocket.cli.catalogue import listed
from hocket.cli.console import say
from hocket.cli.export import write_text
from hocket.cli.target import check_collective
from hocket.errors import BadTopology, HocketError, UsageError, counted
from hocket.formats import msccl_xml
from hocket.sim import Prediction, Simulator
from hocket.topology import Topology
from hocket.tunables import show_size
from hocket.tuner import exports
from hocket.tuner.exports import Run

INSTANCES = (1, 2, 4, 8, 16, 24)
"""Of a whole program, as far as its thread blocks all run at once."""

NEAR = 1.5
"""What the closed form puts within so much of its best is simulated: chosen, and no bound on what it misses. That is
the chain from tile to tile, from a thread block's last receive of one to its first send of the next, and waiting for
shared links and slots."""
MOST = 12
"""But no more than the best so many at a size, beside one of another program."""

CONFIG, TUNER = "hocket.toml", "nccl_tuner.csv"


@dataclass(frozen=True)
class Candidate:
    """A program of the library with its knobs, by a protocol."""

    algorithm: Algorithm
    parameters: Parameters
    instances: int
    protocol: str
    simulator: Simulator

    @property
    def name(self) -> str:
        knobs = {k: v for k, v in self.parameters.items() if k in (self.algorithm.tried or {})}
        words = [f"{k}={v}" for k, v in knobs.items()] + [f"instances={self.instances}"]
        return f"{self.algorithm.name} {' '.join(words)} {self.protocol}"


@dataclass(frozen=True)
class Choice:
    """The fastest at a size, and the fastest of another program: None only where the library has no other."""

    size: int
    winner: Candidate
    found: Prediction
    second: Candidate | None
    behind: Prediction | None

    @property
    def margin(self) -> float | None:
        return None if self.behind is None else self.behind.time / self.found.time - 1

    @property
    def why(self) -> str:
        """What most of its time is: as far as the floors say."""
        latency, link = self.found.latency_floor / self.found.time, self.found.link_floor / self.found.time
        if max(latency, link) < 0.5:
            return "thread blocks"
        return f"latency {latency:.0%}" if latency > link else f"{self.found.busiest} {link:.0%}"


@dataclass(frozen=True)
class Range:
    """Sizes from ``least`` to ``most``, both included, at which one candidate wins; None is no end."""

    least: int
    most: int | None
    candidate: Candidate


def candidates(collective: str, machine: Topology, said: Callable[[str], None]) -> list[Candidate]:
    """All of the library that the machine can run."""
    check_collective(collective)
    found = []
    for algorithm in listed(collective):
        for parameters in algorithm.cases(machine.ranks):
            if not _fits(parameters, machine):
                continue
            said(f"compiling {algorithm.name}")
            for simulator, instances in _simulators(algorithm, parameters, machine):
                found += [
                    Candidate(algorithm, parameters, instances, protocol, simulator)
                    for protocol in simulator.protocols()
                ]
    if not found:
        raise UsageError(f"the library has no program of {collective} for {machine.nodes} x {machine.name}")
    return found


def _fits(parameters: Parameters, machine: Topology) -> bool:
    """Whether what a case says of nodes is what the machine has."""
    if "levels" in parameters or (machine.nodes == 1 and parameters.keys() & {"nodes", "node_of"}):
        return False
    nodes = tuple(rank // machine.gpus for rank in range(machine.ranks))
    return parameters.get("nodes", machine.nodes) == machine.nodes and parameters.get("node_of", nodes) == nodes


def _simulators(algorithm: Algorithm, parameters: Parameters, machine: Topology) -> Iterator[tuple[Simulator, int]]:
    for instances in (1,) if machine.costs.memory else INSTANCES:  # a core has one thread for all of them
        try:
            program = algorithm.factory(**parameters, instances=instances)
            schedule = program.compile() if machine.costs.memory else program.compile(opcodes=True, slots=8)
            yield Simulator(schedule, machine), instances
        except BadTopology:  # more thread blocks than run at once: so have more instances
            return
        except HocketError:  # not with these opcodes, or over a link that is not there
            return


def search(all_candidates: Sequence[Candidate], sizes: Sequence[int], said: Callable[[str], None]) -> list[Choice]:
    """The choice at each size."""
    choices = []
    for number, size in enumerate(sizes):
        said(f"simulating {show_size(size)}, {number + 1} of {counted(len(sizes), 'size')}")
        ranked = sorted(
            ((candidate.simulator.estimate(size, candidate.protocol), i) for i, candidate in enumerate(all_candidates))
        )
        near = [all_candidates[i] for estimate, i in ranked[:MOST] if estimate <= NEAR * ranked[0][0]]
        others = (all_candidates[i] for _, i in ranked if all_candidates[i].algorithm is not near[0].algorithm)
        other = next(others, None)
        if other is not None and other not in near:
            near.append(other)
        found = sorted(((c.simulator.predict(size, c.protocol), c) for c in near), key=lambda pair: pair[0].time)
        prediction, winner = found[0]
        behind, second = next((pair for pair in found if pair[1].algorithm is not winner.algorithm), (None, None))
        choices.append(Choice(size, winner, prediction, second, behind))
    return choices


def ranges(choices: Sequence[Choice]) -> list[Range]:
    """Runs of sizes with one winner; each ends where the next begins, the last nowhere."""
    starts = [c for i, c in enumerate(choices) if not i or c.winner is not choices[i - 1].winner]
    ends: list[int | None] = [choice.size - 1 for choice in starts[1:]]
    return [
        Range(0 if i == 0 else choice.size, end, choice.winner)
        for i, (choice, end) in enumerate(zip(starts, [*ends, None], strict=True))
    ]


# ---------------------------------------------------------------------------------------------------------------
# What is written


def runs(collective: str, found: Sequence[Range], machine: Topology) -> list[Run]:
    """As files say it."""

    def run(part: Range) -> Run:
        c = part.candidate
        about = c.algorithm.name, c.parameters, c.instances, c.protocol
        return Run(collective, machine.ranks, machine.nodes, *about, part.least, part.most)

    return [run(part) for part in found]


def toml(collective: str, found: Sequence[Range], machine: Topology) -> str:
    """For HOCKET_CONFIG."""
    call = f"hocket search --collective {collective} --topology {machine.name} --nodes {machine.nodes}"
    return exports.toml(call, runs(collective, found, machine))


def xml(found: Sequence[Range]) -> Iterator[tuple[str, str | HocketError]]:
    """The name of a file for each range, and MSCCL's XML for the bytes of the range, or why there is none."""
    for number, part in enumerate(found):
        candidate = part.candidate
        name = f"{number}_{_stem(candidate.algorithm)}.xml"
        try:
            yield (
                name,
                msccl_xml.write(
                    candidate.simulator.schedule,
                    protocol=candidate.protocol,
                    min_bytes=part.least,
                    max_bytes=part.most,
                    reproducible="may-differ",
                ),
            )
        except HocketError as error:  # it does not fit MSCCL, or takes more slots there
            yield name, error


def _stem(algorithm: Algorithm) -> str:
    return algorithm.name.replace(":", "_")


def write(folder: Path, collective: str, found: Sequence[Range], machine: Topology, console: Console) -> None:
    """hocket.toml, a file of XML for each range, and the tuner's CSV, in place of an earlier search's.

    Raises UsageError for what cannot be written.
    """
    _clear(folder)
    write_text(folder / CONFIG, toml(collective, found, machine))
    for name, text in xml(found):
        if isinstance(text, HocketError):
            say(console, f"no {name}: {text.diagnostic().message}", "dim")
        else:
            write_text(folder / name, text)
    csv = exports.nccl(runs(collective, found, machine))
    write_text(folder / TUNER, csv.text)
    say(console, f"wrote {folder}: {CONFIG}, files of XML, {TUNER}")
    for refusal in csv.refused:
        say(console, f"not in {TUNER}: {refusal}", "dim")


def _clear(folder: Path) -> None:
    """Make the folder, and remove from it what an earlier search wrote, of whichever collective."""
    stems = {_stem(algorithm) for algorithm in listed(None)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            number, _, stem = path.stem.partition("_")
            if path.name in (CONFIG, TUNER) or (path.suffix == ".xml" and number.isdecimal() and stem in stems):
                path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from None


def print_choices(choices: Sequence[Choice], found: Sequence[Range], console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("size", "us", "winner", "runner-up", "us", "margin", "why"):
        table.add_column(name, justify="right" if name in ("size", "us", "margin") else "left", overflow="fold")
    for choice in choices:
        cells = [show_size(choice.size), f"{choice.found.time:.1f}", choice.winner.name]
        if choice.second is None or choice.behind is None or choice.margin is None:
            cells += ["", "", ""]
        else:
            cells += [choice.second.name, f"{choice.behind.time:.1f}", f"{choice.margin:.0%}"]
        table.add_row(*cells, choice.why)
    console.print(table)
    if len(found) > 1:
        turns = ", ".join(f"at {show_size(part.least)} to {part.candidate.name}" for part in found[1:])
        say(console, f"\nIt changes {turns}.")


def as_json(choices: Sequence[Choice], found: Sequence[Range]) -> Mapping[str, object]:
    return {
        "sizes": [
            {
                "bytes": choice.size,
                "time": choice.found.time,
                "winner": choice.winner.name,
                "runner_up": None if choice.second is None else choice.second.name,
                "margin": choice.margin,
                "why": choice.why,
            }
            for choice in choices
        ],
        "ranges": [{"least": part.least, "most": part.most, "winner": part.candidate.name} for part in found],
    }
