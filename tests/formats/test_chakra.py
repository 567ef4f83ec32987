"""Chakra's execution traces: what protobuf reads in them, and a replay as ASTRA-sim's custom collectives do it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
from typer.testing import CliRunner

from hocket import AllReduce, Program, Schedule, chunk, parse_schedule
from hocket.algorithms import all_pairs, hierarchical, ring, two_step
from hocket.cli import app
from hocket.errors import InvalidArgument
from hocket.formats.chakra import COMPUTE, RECEIVE, SEND, traces
from hocket.ir.schedule import Receive, Send

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

SCHEMA = {
    "AttributeProto": {
        "name": (1, "string"),
        "int32_val": (7, "int32"),
        "int64_val": (9, "int64"),
        "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),  # an enum, which is as good as an int32 on the wire
        "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"),
        "attr": (10, "AttributeProto*"),
    },
}
"""What is used of mlcommons/chakra, schema/protobuf/et_def.proto."""


def message_classes() -> dict[str, type[Message]]:
    file = FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field, (number, kind) in fields.items():
            plain = kind.removesuffix("*")
            made = message.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            if plain in SCHEMA:
                made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".ChakraProtoMsg.{plain}"
            else:
                made.type = getattr(FieldDescriptorProto, f"TYPE_{plain.upper()}")
            if field.endswith("_val"):
                made.oneof_index = 0
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}")) for name in SCHEMA}


CLASSES = message_classes()


@dataclass(frozen=True)
class Node:
    id: int
    name: str
    type: int
    needs: frozenset[int]
    attributes: dict[str, object]


def split(file: bytes) -> Iterator[bytes]:
    """The messages of a file, each after its length, a varint."""
    at = 0
    while at < len(file):
        length = shift = 0
        while True:
            byte, at = file[at], at + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + length <= len(file)
        yield file[at : at + length]
        at += length


def values(attributes: Any) -> dict[str, object]:
    return {attribute.name: getattr(attribute, attribute.WhichOneof("value")) for attribute in attributes}


def decode(file: bytes) -> tuple[dict[str, object], list[Node]]:
    """The metadata, and the nodes."""
    head, *rest = split(file)
    metadata: Any = CLASSES["GlobalMetadata"].FromString(head)
    nodes = []
    for content in rest:
        node: Any = CLASSES["Node"].FromString(content)
        nodes.append(Node(node.id, node.name, node.type, frozenset(node.data_deps), values(node.attr)))
    return values(metadata.attr), nodes


def replay(files: list[list[Node]]) -> list[tuple[int, Node]]:
    """Nodes in an order in which they end: a receive when its message has been sent, all others at once.

    The order in which ASTRA-sim issues nodes that are free is that of a hash table: here it is the last first.
    """
    waiting = [{node.id: set(node.needs) for node in nodes} for nodes in files]
    by_id = [{node.id: node for node in nodes} for nodes in files]
    after = [{node.id: [n.id for n in nodes if node.id in n.needs] for node in nodes} for nodes in files]
    free = deque((rank, node.id) for rank, nodes in enumerate(files) for node in nodes if not node.needs)
    sent: set[tuple[object, ...]] = set()
    posted: dict[tuple[object, ...], tuple[int, int]] = {}
    ended = []

    def end(rank: int, number: int) -> None:
        ended.append((rank, by_id[rank][number]))
        for other in after[rank][number]:
            waiting[rank][other].discard(number)
            if not waiting[rank][other]:
                free.append((rank, other))

    while free:
        rank, number = free.pop()
        node = by_id[rank][number]
        message = tuple(node.attributes.get(f"comm_{name}") for name in ("src", "dst", "tag", "size"))
        if node.type == SEND:
            assert node.attributes["comm_src"] == rank
            assert message not in sent
            sent.add(message)
            if message in posted:
                end(*posted.pop(message))
            end(rank, number)
        elif node.type == RECEIVE and message not in sent:
            assert node.attributes["comm_dst"] == rank
            posted[message] = rank, number
        else:
            end(rank, number)
    assert not posted
    return ended


PROGRAMS: dict[str, Callable[[], Schedule]] = {
    "ring": lambda: ring.all_reduce(4, channels=2, instances=2).compile(opcodes=True, slots=8),
    "hierarchical": lambda: hierarchical.all_reduce(2, 2).compile(opcodes=True, slots=8),
    "of hocket's own steps": lambda: all_pairs.all_reduce(5).compile(),
    "in place": lambda: all_pairs.all_reduce(4).compile(storage="peer"),
    "two steps": lambda: two_step.all_to_all(3, 2).compile(opcodes=True, slots=8),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_replay_ends_and_moves_what_the_schedule_does(program: str) -> None:
    schedule = PROGRAMS[program]()
    larger = max(schedule.collective.inputs(0), schedule.collective.outputs(0))
    size = 1000 * larger
    files = [decode(file)[1] for file in traces(schedule, size)]
    assert len(replay(files)) == sum(map(len, files))
    moved: Counter[tuple[int, int, str]] = Counter()
    for r, _, _, step in schedule.steps():
        for source in step.srcs:
            if isinstance(source, Receive):
                moved[source.peer, r, "received"] += 1000 * (step.count or 0)
        for target in step.dsts:
            if isinstance(target, Send):
                moved[r, target.peer, "sent"] += 1000 * (step.count or 0)
    found: Counter[tuple[int, int, str]] = Counter()
    for nodes in files:
        for node in nodes:
            if node.type != COMPUTE:
                a: Any = node.attributes
                found[a["comm_src"], a["comm_dst"], "sent" if node.type == SEND else "received"] += a["comm_size"]
    assert found == moved


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_step_comes_after_those_before_it_and_those_it_waits_for(program: str) -> None:
    schedule = PROGRAMS[program]()
    for rank, file in enumerate(traces(schedule, 1 << 20)):
        nodes = decode(file)[1]
        assert [node.id for node in nodes] == list(range(len(nodes)))
        of_step: dict[tuple[int, int], list[Node]] = {}
        for node in nodes:
            block, step = map(int, node.name.partition(" ")[0].split("."))
            of_step.setdefault((block, step), []).append(node)
        before: dict[int, set[int]] = {}

        def all_before(number: int, nodes: list[Node] = nodes, known: dict[int, set[int]] = before) -> set[int]:
            if number not in known:
                known[number] = set().union(nodes[number].needs, *(all_before(n) for n in nodes[number].needs))
            return known[number]

        for b, block in enumerate(schedule.ranks[rank].thread_blocks):
            for s, step in enumerate(block.steps):
                earlier = [(wait.thread_block, wait.step) for wait in step.waits] + ([(b, s - 1)] if s else [])
                for node in of_step[b, s]:
                    assert {other.id for name in earlier for other in of_step[name]} <= all_before(node.id)
        assert set(of_step) == {(b, s) for r, b, s, _ in schedule.steps() if r == rank}


PAIR = """schedule "pair"
collective allreduce(ranks=2, chunks=1, inplace)
protocol auto
slots 1
rank 0 scratch 0
  block 0 <1.0 >1.0
    0: rrc <1.0 in[0] -> in[0]
    1: send in[0] -> >1.0
rank 1 scratch 0
  block 0 <0.0 >0.0
    0: send in[0] -> >0.0
    1: recv <0.0 -> in[0]
"""


def test_a_sum_is_a_receive_and_a_computation() -> None:
    about, nodes = decode(next(traces(parse_schedule(PAIR, "pair.txt"), 6)))
    assert about["schedule"] == "pair"
    said = [(node.name, node.type, sorted(node.needs), node.attributes.get("comm_size")) for node in nodes]
    assert said == [
        ("0.0 rrc", RECEIVE, [], 6),
        ("0.0 rrc", COMPUTE, [0], None),
        ("0.1 send", SEND, [1], 6),
    ]


def test_bytes_of_a_trace(golden: Callable[[Path, str], None]) -> None:
    """Any change of what is written shows, also one that protobuf reads alike."""
    files = traces(parse_schedule(PAIR, "pair.txt"), 1 << 40)
    text = "\n\n".join("\n".join(wrap(file.hex(), 64)) for file in files)
    golden(Path(__file__).parent / "golden" / "chakra_pair.txt", text)


def test_a_rank_that_does_nothing_has_a_node() -> None:
    with Program(AllReduce(1, inplace=True)) as alone:
        chunk(0, "in", 0)
    (file,) = traces(alone.compile(), 8)
    assert [(node.name, node.type) for node in decode(file)[1]] == [("nothing", COMPUTE)]
    with pytest.raises(InvalidArgument, match="at least a byte, not 0"):
        next(traces(alone.compile(), 0))


def test_commands_write_a_file_for_each_rank_and_size(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    words = ["sim", "ring:all_reduce", "ranks=4", "--sizes", "1KB..2KB", "--chakra", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    names = {f"ring_all_reduce_{size}.{rank}.et" for size in (1024, 2048) for rank in range(4)}
    assert {path.name for path in folder.iterdir()} == names
    files = [decode((folder / f"ring_all_reduce_1024.{rank}.et").read_bytes())[1] for rank in range(4)]
    assert len(replay(files)) == sum(map(len, files))
    words = ["search", "--topology", "dgx1", "--collective", "all_gather", "--sizes", "1KB", "--chakra", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert len({path.name for path in folder.iterdir()} - names) == 8
    refused = CliRunner().invoke(
        app, ["sim", "ring:all_reduce", "ranks=4", "--chakra", str(folder / next(iter(names)))]
    )
    assert refused.exit_code == 2
