"""The text of Instruction DAG and Schedule: it parses back to an equal value, and nothing else parses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hocket import AllReduce, Broadcast, Custom, Program, chunk, prove
from hocket.algorithms import all_pairs, all_to_next, hierarchical, ring, sccl, two_step
from hocket.errors import HocketError, InvalidSchedule, ParseError, WrongType
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import InstrDag
from hocket.ir.schedule import Receive, Schedule, Step
from hocket.ir.text import (
    Stage,
    parse_instr_dag,
    parse_schedule,
    print_instr_dag,
    print_schedule,
    print_stage,
)
from tests.reference import check

LIBRARY: dict[str, Callable[[], Program]] = {
    "ring.all_reduce": lambda: ring.all_reduce(5, 2),
    "ring.all_gather": lambda: ring.all_gather(3),
    "ring.reduce_scatter": lambda: ring.reduce_scatter(4, 2),
    "all_pairs": lambda: all_pairs.all_reduce(4),
    "hierarchical": lambda: hierarchical.all_reduce(2, 3, 2),
    "two_step": lambda: two_step.all_to_all(2, 3),
    "all_to_next": lambda: all_to_next.all_to_next(3, 2),
    "sccl": sccl.all_gather,
}


def stages(program: Program, **options: int) -> list[Stage]:
    """Every stage of a compilation."""
    found: list[Stage] = []
    program.compile(observer=lambda name, before, after, seconds: found.append(after), **options)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("instances", [1, 2, 3])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_stage_parses_back_to_an_equal_value(name: str, instances: int) -> None:
    program = LIBRARY[name]()
    for stage in [*stages(program, instances=instances), program.compile(instances=instances)]:
        for locations in (True, False):
            text = print_stage(stage, locations=locations)
            if isinstance(stage, InstrDag):
                assert parse_instr_dag(text) == stage
                assert print_instr_dag(parse_instr_dag(text), locations=locations) == text
            elif isinstance(stage, Schedule):
                assert parse_schedule(text) == stage
                assert hash(parse_schedule(text)) == hash(stage)
                assert parse_schedule(text).digest() == stage.digest()
                assert print_schedule(parse_schedule(text), locations=locations) == text


@pytest.mark.parametrize("name", ["", "two words", '"quotes" and \\', "a  # b", "#", "line\nbreak", "é合", " ", "\x00"])
def test_any_name_survives(name: str) -> None:
    with Program(AllReduce(1), name=name) as p:
        chunk(0, "in", 0).copy(0, "out", 0)
    schedule = p.compile()
    assert parse_schedule(print_schedule(schedule)) == schedule
    for stage in stages(p):
        if isinstance(stage, InstrDag):
            assert parse_instr_dag(print_instr_dag(stage)) == stage


@pytest.mark.parametrize("file", ["plain.py", "with  # hash.py", "a, b.py", "new\nline.py", "<stdin>", "<cell 1>"])
def test_any_file_name_survives(file: str) -> None:
    body = "with Program(AllReduce(1)) as p:\n    chunk(0, 'in', 0).copy(0, 'out', 0)\n"
    source = f"from hocket import AllReduce, Program, chunk\n{body}"
    scope: dict[str, Program] = {}
    exec(compile(source, file, "exec"), scope)
    schedule = scope["p"].compile()
    assert parse_schedule(print_schedule(schedule)) == schedule


def test_locations_survive() -> None:
    schedule = ring.all_reduce(3).compile()
    text = print_schedule(schedule)
    assert "ring.py:" in text
    assert print_schedule(parse_schedule(text)) == text


def test_narrowings_survive() -> None:
    with Program(Custom(2, inputs=1, outputs=1, post=lambda r, i: {(0, 0)})) as p:
        c = chunk(0, "in", 0)
        c.copy(0, "out", 0)
        c.copy(1, "out", 0)
    assert p.compile().narrowings == ()
    with Program(Broadcast(2, chunks=2)) as p:
        first = chunk(0, "in", 0)
        first.copy(1, "out", 1).copy(1, "out", 0)
        chunk(0, "in", 1).copy(1, "out", 1)
        chunk(0, "in", 0, 2).copy(0, "out", 0)
    schedule = p.compile()
    (narrowing,) = schedule.narrowings
    assert (narrowing.value, narrowing.location) == (0, 1)
    assert parse_schedule(print_schedule(schedule)) == schedule


def test_operands() -> None:
    assert str(Span(0, "in", 2)) == "in[2]"
    assert str(Span(0, "sc", 2, 3)) == "sc[2:+3]"
    assert str(Span(0, "out", 2, 3, 4)) == "out[2:+3x4]"
    assert str(Step((Receive(3, 0), Span(1, "in", 2)), (Span(1, "in", 2),))) == "rrc <3.0 in[2] -> in[2]"


def test_an_excerpt_holds_one_rank() -> None:
    program = ring.all_reduce(3)
    schedule = program.compile()
    text = print_stage(schedule, ranks=[1], locations=False)
    assert "rank 1" in text
    assert "rank 0" not in text
    assert "rank 2" not in text
    for stage in stages(program):
        if isinstance(stage, InstrDag):
            lines = print_stage(stage, ranks=[1], locations=False).splitlines()
            assert all("@1" in line for line in lines if "@" in line)


Given = TypeVar("Given")
Result = TypeVar("Result")
PROOF_CODES = ("deadlock", "race", "postcondition", "uninitialized-chunk", "invalid-schedule", "count-mismatch")
unhurried = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

# What does not parse ----------------------------------------------------------------------------------------

SCHEDULE = print_schedule(hierarchical.all_reduce(2, 2, 2).compile())
INSTRS = print_instr_dag(next(s for s in stages(two_step.all_to_all(2, 2))[::-1] if isinstance(s, InstrDag)))
TEXTS = {"schedule": (parse_schedule, SCHEDULE), "instructions": (parse_instr_dag, INSTRS)}


@pytest.mark.parametrize("kind", TEXTS)
def test_comments_blank_lines_and_line_ends_do_not_matter(kind: str) -> None:
    parse, text = TEXTS[kind]
    value = parse(text)
    assert parse("# a comment\n\n" + text.replace("\n", "\n\n")) == value
    assert parse(text.replace("\n", "\r\n")) == value
    assert parse(text.replace("\n", "   \n")) == value
    assert parse(text.replace("  after ", "  \t  after ")) == value
    assert parse("\n".join(line.partition("  # ")[0] for line in text.split("\n"))) == value


@pytest.mark.parametrize("kind", TEXTS)
def test_a_cut_text_is_refused(kind: str) -> None:
    parse, text = TEXTS[kind]
    lines = text.splitlines()
    heading = 5 if kind == "instructions" else 0
    for n in range(len(lines) - 1):
        if n == heading > 0:  # no edges and no instructions: a program that does nothing
            continue
        with pytest.raises(HocketError) as caught:
            parse("\n".join(lines[:n]))
        assert caught.value.code in ("parse", "invalid-schedule", "unmatched-transfer")


@pytest.mark.parametrize("kind", TEXTS)
def test_a_line_of_garbage_is_refused_with_its_number(kind: str) -> None:
    parse, text = TEXTS[kind]
    lines = text.splitlines()
    for n in range(len(lines)):
        with pytest.raises(ParseError) as caught:
            parse("\n".join([*lines[:n], "garbage", *lines[n:]]), "some.txt")
        assert caught.value.line == n + 1
        assert caught.value.source == "some.txt"


@pytest.mark.parametrize(
    "line",
    [
        "collective allreduce(ranks=0, chunks=1)",
        "collective allreduce(ranks=2, chunks=-1)",
        "collective allreduce(ranks=2)",
        "collective allreduce",
        "collective allreduce(ranks=2, chunks=1, chunks=1)",
        "collective allreduce(ranks=2, chunks=1_0)",
        "collective allreduce(ranks= 2, chunks=1)",
        "collective allreduce(ranks=2, chunks=1, root=0)",
        "collective broadcast(ranks=2, chunks=1)",
        "collective broadcast(ranks=2, chunks=1, root=2)",
        "collective custom(ranks=2, chunks=1, inputs=1:1, outputs=1:1, post=0.0)",
        "collective custom(ranks=2, chunks=1, inputs=1:1, outputs=1:1, post=0.0;9.0)",
        "collective custom(ranks=2, chunks=0, inputs=1:1, outputs=1:1, post=0.0;1.0)",
        "collective custom(ranks=2, chunks=1, inputs=1, outputs=1, post=0.0;1.0)",
        "collective custom(ranks=2, chunks=1, inputs=1:1, outputs=999999999999999:1, post=0.0;1.0)",
        f"collective allreduce(ranks={'x'.join(['9' * 18] * 300)}, chunks=1)",
        "collective None",
    ],
)
def test_a_wrong_collective_is_refused(line: str) -> None:
    lines = SCHEDULE.splitlines()
    with pytest.raises(ParseError) as caught:
        parse_schedule("\n".join([lines[0], line, *lines[2:]]))
    assert caught.value.line == 2
    assert "error[" not in caught.value.reason


@pytest.mark.parametrize("parse", [parse_schedule, parse_instr_dag])
def test_only_a_text_can_be_parsed(parse: Callable[[object], Stage]) -> None:
    with pytest.raises(WrongType, match=r"not PosixPath(.|\n)*read_text\(\)"):
        parse(Path("ring.txt"))


@pytest.mark.parametrize("name", ["5", "null", "ring", '["a"]', '"ring', "[" * 100_000, ""])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_schedule(f"schedule {name}\n" + SCHEDULE.partition("\n")[2])
    assert caught.value.line == 1
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "body",
    [
        "edge 0: 0 -> 7 x1\n0: @0 send in[0] -> >0\n1: @7 recv <0 -> in[0]\n",
        "edge 0: 0 -> 0 x1\n0: @0 send in[0] -> >0\n1: @0 recv <0 -> in[0]\n",
        "edge 0: 0 -> 1 x0\n0: @0 send in[0] -> >0\n1: @1 recv <0 -> in[0]\n",
        "edge 0: 0 -> 1 x1  instance 1\n0: @0 send in[0] -> >0\n1: @1 recv <0 -> in[0]\n",
        "edge 0: 0 -> 1 x1\n0: @1 recv <0 -> in[0]\n1: @0 send in[0] -> >0\n",
        "edge 0: 0 -> 1 x1\n0: @0 send in[0] -> >0\n",
        "0: @0 copy in[0] -> in[0:+2]\n",
        "0: @2 copy in[0] -> out[0]\n",
        "0: @0 copy in[9] -> out[0]\n",
        "0: @0 copy in[0] -> out[0]  after 0\n",
        "0: @0 copy in[0] -> out[0]\n1: @1 copy in[0] -> out[0]  after 0\n",
        "0: @0 copy in[0:+2x0] -> out[0:+2]\n",
    ],
)
def test_an_instruction_dag_that_breaks_its_form_is_refused(body: str) -> None:
    head = 'instructions "x"\ncollective allreduce(ranks=2, chunks=2)\nprotocol auto\nrefinement 1\n'
    parse_instr_dag(head + "scratch 0 0\n0: @0 copy in[0] -> out[0]\n")
    with pytest.raises(HocketError) as caught:
        parse_instr_dag(head + "scratch 0 0\n" + body)
    assert caught.value.code == "invalid-schedule"


@pytest.mark.parametrize("blocks", [("  block 0", ""), ("", "  block 0")])
def test_all_instructions_have_a_thread_block_or_none(blocks: tuple[str, str]) -> None:
    head = 'instructions "x"\ncollective allreduce(ranks=2, chunks=2)\nprotocol auto\nrefinement 1\nscratch 0 0\n'
    body = [f"{i}: @0 copy in[{i}] -> out[{i}]{block}" for i, block in enumerate(blocks)]
    with pytest.raises(ParseError, match="either every instruction has a thread block, or none") as caught:
        parse_instr_dag(head + "\n".join(body))
    assert caught.value.line == 7


@pytest.mark.parametrize("scratch", ["", "0", "0 0 0"])
def test_sizes_of_scratch_are_one_a_rank(scratch: str) -> None:
    head = 'instructions "x"\ncollective allreduce(ranks=2, chunks=2)\nprotocol auto\nrefinement 1\n'
    with pytest.raises(HocketError):
        parse_instr_dag(f"{head}scratch {scratch}\n0: @1 copy in[0] -> out[0]\n")


COPIES = "\n".join(["  block 0", *(f"    {i}: copy in[0:+400000] -> out[0:+400000]" for i in range(4))])


def stands_for(collective: str, rank: str) -> str:
    return f'schedule "x"\ncollective {collective}\nprotocol auto\nslots 2\nrank 0 {rank}\n'


@pytest.mark.parametrize(
    ("collective", "rank"),
    [
        ("allreduce(ranks=1, chunks=8000000)", "scratch 0"),
        ("allreduce(ranks=1, chunks=1)", "scratch 8000000"),
        ("custom(ranks=1, chunks=1, inputs=8000000, outputs=1, post=-)", "scratch 0"),
        ("custom(ranks=1, chunks=8000000, inputs=1, outputs=1, post=-)", "scratch 0"),
        ("allreduce(ranks=1, chunks=400000)", f"scratch 0\n{COPIES}"),
    ],
    ids=["chunks", "scratch", "inputs", "chunks of inputs", "counts"],
)
def test_what_a_text_stands_for_is_bounded_by_its_length(collective: str, rank: str) -> None:
    """A proof takes memory and time for each chunk of a buffer and of a step."""
    text = stands_for(collective, rank)
    with pytest.raises(InvalidSchedule, match=f"a text of {len(text)} characters may have 10[0-9]{{5}}$"):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("collective", "error", "reason"),
    [
        ("allreduce(ranks=1, chunks={})", ParseError, "ranks times chunks must be no more than 67108864"),
        (
            "custom(ranks=1, chunks=1, inputs={}, outputs=1, post=-)",
            InvalidSchedule,
            "its buffers have more than 67108864 chunks in all",
        ),
    ],
)
def test_numbers_that_python_does_not_print(collective: str, error: type[HocketError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        parse_schedule(stands_for(collective.format("9" * 4300), "scratch 0"))


def test_a_longer_text_may_stand_for_more() -> None:
    text = stands_for("allreduce(ranks=1, chunks=400000)", f"scratch 0\n{COPIES}")
    assert parse_schedule(text + "#" * 50_000).collective.chunks == 400_000


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A text with a few characters or lines changed."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 4))):
        i = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                del lines[i]
            case 1:
                lines.insert(i, lines[draw(st.integers(0, len(lines) - 1))])
            case 2:
                j = draw(st.integers(0, len(lines) - 1))
                lines[i], lines[j] = lines[j], lines[i]
            case _:
                at = draw(st.integers(0, len(lines[i])))
                width = draw(st.integers(0, 3))
                new = draw(st.text('0123456789 <>[]:+-x.@#"(),=;abcinoutscrafe\t²٣é\\', max_size=3))
                lines[i] = lines[i][:at] + new + lines[i][at + width :]
        if not lines:
            break
    return "\n".join(lines)


def accepted(function: Callable[[Given], Result], value: Given, codes: tuple[str, ...]) -> Result | None:
    """What a function makes of a value; None if it raises one of the expected errors. Others are passed on."""
    try:
        return function(value)
    except HocketError as error:
        if error.code not in codes or not str(error).startswith(f"error[{error.code}]: "):
            raise
        return None


@unhurried
@given(damaged(SCHEDULE))
def test_a_damaged_schedule_parses_or_is_refused(text: str) -> None:
    codes = ("parse", "invalid-schedule", "channel-conflict", "unmatched-transfer")
    schedule = accepted(parse_schedule, text, codes)
    if schedule is not None:
        assert parse_schedule(print_schedule(schedule)) == schedule
        modest = schedule.collective.chunks < 1000 and all(rank.scratch < 1000 for rank in schedule.ranks)
        if modest and accepted(prove, schedule, PROOF_CODES) is not None:
            check(schedule, 5, seeds=(0, 1))


@unhurried
@given(damaged(INSTRS))
def test_damaged_instructions_parse_or_are_refused(text: str) -> None:
    dag = accepted(parse_instr_dag, text, ("parse", "invalid-schedule"))
    if dag is not None:
        assert parse_instr_dag(print_instr_dag(dag)) == dag


@unhurried
@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (parse_schedule, parse_instr_dag):
        with pytest.raises(ParseError):
            parse(text)
