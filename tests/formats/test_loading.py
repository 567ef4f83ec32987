"""What a runtime does when it loads a file: what it refuses, reserves, and uses for calls that it gets wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hocket import Custom, Program, Reduce, Schedule, chunk
from hocket.algorithms import all_pairs, all_to_next, direct, ring, tree
from hocket.cli import app
from hocket.errors import TargetLimit
from hocket.formats.msccl_document import parse_document, sizes
from hocket.formats.msccl_loading import refusals, remarks
from hocket.formats.msccl_targets import AWAITED, MSCCL, RCCL, TARGETS, Target
from hocket.formats.msccl_xml import read, write
from hocket.ir.schedule import Rank, Step, ThreadBlock, Wait
from tests.reference import check


def hocket(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def reasons(text: str, target: Target) -> list[str]:
    return [refusal.reason for refusal in refusals(parse_document(text), target)]


def step(s: int, type_: str, src: str = "i0", dst: str = "i0", cnt: int = 1, dep: str = "-1 -1", has: int = 0) -> str:
    depid, deps = dep.split()
    return (
        f'<step s="{s}" type="{type_}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{cnt}" depid="{depid}" deps="{deps}" hasdep="{has}"/>'
    )


def alone(*steps: str, chan: int = 0, blocks: Sequence[str] = (), more: str = "") -> str:
    """A file of one rank, with these steps in its first thread block."""
    first = f'<tb id="0" send="-1" recv="-1" chan="{chan}">\n' + "\n".join(steps) + "\n</tb>"
    return (
        '<algo name="x" proto="LL" nchannels="1" nchunksperloop="4" ngpus="1" coll="allreduce" inplace="1" '
        f'outofplace="0" minBytes="0" maxBytes="1024"{more}>\n<gpu id="0" i_chunks="4" o_chunks="4" s_chunks="2">\n'
        + "\n".join([first, *blocks, "</gpu>", "</algo>"])
    )


# Scratch --------------------------------------------------------------------------------------------------------


def test_without_a_maximum_msccl_reserves_scratch_for_128_mb_at_most() -> None:
    """It allocates for maxBytes when a communicator is made; RCCL does when a call comes."""
    schedule = all_pairs.all_reduce(4).compile(opcodes=True)
    text = write(schedule)
    assert 'maxBytes="134217728"' in text
    assert sizes(parse_document(text)) == (0, 2**27 - 1)
    assert 'maxBytes="1073741825"' in write(schedule, max_bytes=1 << 30)
    assert 'maxBytes="0"' in write(schedule, "rccl")
    without = write(ring.all_reduce(4).compile(opcodes=True))
    assert 's_chunks="0"' in without
    assert sizes(parse_document(without)) == (0, None)


def test_a_smallest_call_beyond_the_default_needs_a_largest() -> None:
    schedule = all_pairs.all_reduce(2).compile(opcodes=True)
    with pytest.raises(TargetLimit, match="max_bytes has to say"):
        write(schedule, min_bytes=1 << 27)
    assert sizes(parse_document(write(schedule, min_bytes=1 << 27, max_bytes=1 << 28))) == (1 << 27, 1 << 28)


def test_scratch_that_no_gpu_has_is_refused() -> None:
    schedule = all_pairs.all_reduce(4).compile(opcodes=True)
    with pytest.raises(TargetLimit, match="it would allocate 4 TB of scratch on a GPU"):
        write(schedule, max_bytes=1 << 42)
    old = write(schedule).replace('maxBytes="134217728"', f'maxBytes="{2**63 - 1}"')
    assert reasons(old, MSCCL) == [f"it would allocate 8 EB of scratch on a GPU, for calls of maxBytes={2**63 - 1}"]
    missing = re.sub(' m(in|ax)Bytes="[0-9]+"', "", write(schedule))
    assert reasons(missing, MSCCL) == []


@pytest.mark.parametrize(
    ("words", "cost"),
    [
        (["--target", "msccl"], "msccl: it allocates 128 MB of scratch on each GPU for a communicator"),
        (["--max-bytes", "512MB"], "msccl: it allocates 512 MB of scratch on each GPU for a communicator"),
        (["--target", "rccl"], "rccl: it allocates 1 times the bytes of a call for scratch on each GPU"),
        (["--target", "rccl", "--max-bytes", "1M"], "rccl: it allocates up to 1 MB of scratch on each GPU for a call"),
    ],
)
def test_export_and_check_say_what_scratch_a_file_costs(
    words: list[str], cost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = hocket("export", "hocket.algorithms.all_pairs:all_reduce", "ranks=4", *words, "-o", "a.xml")
    assert f"note: {cost}\n" in done.stderr
    assert f"a.xml: {cost}\n" in hocket("check", "a.xml").stdout


# Chunks of buffers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [direct.gather(3), direct.scatter(3), all_to_next.all_to_next(2, 2)], ids=str)
def test_what_is_custom_there_has_all_chunks_of_the_loop_in_its_buffers(program: Program) -> None:
    schedule = program.compile(opcodes=True)
    text = write(schedule)
    document = parse_document(text)
    assert {gpu.chunks[key] for gpu in document.gpus for key in "io"} <= {0, document.loop_chunks}
    assert reasons(text, MSCCL) == []
    assert read(text).collective == schedule.collective
    assert write(read(text)) == text
    check(read(text), 24, seeds=(0,))


def test_ragged_buffers_too() -> None:
    """As in an AllToAll of different lengths."""
    with Program(Custom(3, inputs=[1, 2, 0], outputs=[0, 1, 4], post=lambda r, i: None)) as p:
        chunk(1, "in", 1).copy(2, "out", 3)
    text = write(p.compile(opcodes=True))
    assert re.findall('i_chunks="(.)" o_chunks="(.)"', text) == [("4", "0"), ("4", "4"), ("0", "4")]
    assert read(text).collective == p.collective


def test_files_of_others_are_judged_by_their_chunks() -> None:
    gather = write(direct.gather(3).compile(opcodes=True)).replace('i_chunks="3"', 'i_chunks="1"')
    assert reasons(gather, MSCCL) == [f"rank {r} has i_chunks=1, which is not nchunksperloop=3" for r in range(3)]
    for program in (ring.all_gather(3), ring.reduce_scatter(3)):
        text = write(program.compile(opcodes=True))
        assert reasons(text, MSCCL) == []
        wrong = re.sub('nchunksperloop="[0-9]+"', 'nchunksperloop="6"', text)
        assert any("=1, which, times 3 ranks, is not nchunksperloop=6" in reason for reason in reasons(wrong, MSCCL))
        assert reasons(write(program.compile(opcodes=True), "rccl"), RCCL) == []


# Thread blocks --------------------------------------------------------------------------------------------------


def hub(ranks: int) -> Schedule:
    """Rank 0 hands on what comes from rank 1; the thread block that all others wait for is its last."""
    post = [[(1, 0)]] * ranks
    with Program(Custom(ranks, inputs=1, outputs=1, post=lambda r, i: post[r] if r > 1 else None)) as p:
        c = chunk(1, "in", 0).copy(0, "sc", 0)
        for r in range(2, ranks):
            c.copy(r, "out", 0)
    schedule = p.compile(opcodes=True)
    first, *others = schedule.ranks
    last = len(first.thread_blocks) - 1
    blocks = [
        ThreadBlock(
            block.receives,
            block.sends,
            tuple(
                Step(step.srcs, step.dsts, tuple(Wait(last - w.thread_block, w.step) for w in step.waits))
                for step in block.steps
            ),
        )
        for block in reversed(first.thread_blocks)
    ]
    return replace(schedule, ranks=(Rank(first.scratch, tuple(blocks)), *others))


def test_only_low_thread_blocks_are_waited_for() -> None:
    """MSCCL keeps their numbers in 8 bits with a sign."""
    schedule = hub(140)
    assert {w.thread_block for _, _, _, step in schedule.steps() for w in step.waits} == {137}
    text = write(schedule)
    assert {int(found) for found in re.findall('depid="([0-9]+)"', text)} == {0}
    assert write(read(text)) == text
    blocks = [f'<tb id="{b}" send="-1" recv="-1" chan="0">{step(0, "cpy", has=1)}</tb>' for b in range(1, 130)]
    late = alone(step(0, "cpy", dep=f"{AWAITED} 0"), blocks=blocks)
    assert reasons(late, MSCCL) == ["only thread blocks 0 to 127 can be waited for; here is 128"]
    assert reasons(alone(step(0, "cpy", dep="127 0"), blocks=blocks), MSCCL) == []


def test_more_thread_blocks_that_are_waited_for_are_refused() -> None:
    with Program(Reduce(131)) as p:
        total = chunk(0, "in", 0).copy(0, "out", 0)
        for r in range(1, 131):
            chunk(r, "in", 0).copy(0, "sc", r)
        for r in range(1, 131):
            total = total.reduce(chunk(0, "sc", r))
    with pytest.raises(TargetLimit, match="only thread blocks 0 to 127 can be waited for"):
        write(p.compile(opcodes=True))


# Steps and attributes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cnt", [0, 1])
@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (lambda cnt: step(0, "cpy", "i9", cnt=cnt), "chunk 9 is outside of i_chunks=4"),
        (lambda cnt: step(0, "re", dst="s2", cnt=cnt), "chunk 2 is outside of s_chunks=2"),
        (lambda cnt: step(0, "s", cnt=cnt), "s in a thread block with send=-1"),
        (lambda cnt: step(0, "r", cnt=cnt), "r in a thread block with recv=-1"),
        (
            lambda cnt: step(0, "cpy", dep="200 0", cnt=cnt),
            "only thread blocks 0 to 127 can be waited for; here is 200",
        ),
    ],
)
def test_steps_without_chunks_are_checked_like_others(of: Callable[[int], str], reason: str, cnt: int) -> None:
    for target in TARGETS.values():
        assert reasons(alone(of(cnt)), target) == [reason]


def test_nops_and_rrc_are_not_checked() -> None:
    assert reasons(alone(step(0, "nop", "i9", "o-1", dep="0 0"), step(1, "cpy", dep="0 0")), MSCCL) == []
    receives = alone(step(0, "rrc", "i9", "i9", cnt=0)).replace('recv="-1"', 'recv="0"')
    assert reasons(receives, MSCCL) == []


def test_a_fused_step_without_chunks_is_not_done_by_rccl_either() -> None:
    text = alone(step(0, "rcs", cnt=0)).replace('send="-1" recv="-1"', 'send="0" recv="0"')
    assert reasons(text, RCCL) == ["its default build does not do rcs"]


def test_a_thread_block_without_connections_has_a_channel() -> None:
    for target in TARGETS.values():
        assert reasons(alone(step(0, "cpy"), chan=-1), target) == [
            "chan=-1: a thread block without connections has a channel, too"
        ]


def test_long_reductions_are_ended_by_whoever_writes_them() -> None:
    """A runtime ends one by itself only after the 16th reduction of a thread block."""

    def run(n: int, *, after: int = 0) -> str:
        before = [step(s, "re", "s1", "i1", has=1) for s in range(after)]
        return alone(*before, *(step(after + s, "re", "s0", "i2") for s in range(n)))

    assert reasons(run(32), MSCCL) == []
    too_long = "it does at most 16 reductions into one place as one; here are 17, and none but the last has hasdep=1"
    assert reasons(run(33), MSCCL) == [too_long]
    assert reasons(run(16, after=1), MSCCL) == []
    assert reasons(run(17, after=16), MSCCL) == [too_long]
    assert reasons(run(17, after=16), RCCL) == [too_long]


def test_nthreads_are_whole_warps() -> None:
    assert reasons(alone(step(0, "cpy"), more=' nthreads="100"'), MSCCL) == ["nthreads=100 is no multiple of 32"]
    assert reasons(alone(step(0, "cpy"), more=' nthreads="512"'), MSCCL) == []
    assert reasons(alone(step(0, "cpy"), more=' nthreads="100"'), RCCL) == []


# Calls that a file is used for -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("make", [tree.broadcast, tree.reduce])
def test_only_files_for_root_0_are_written(make: Callable[..., Program], target: str) -> None:
    """No runtime compares the root of a call with that of a file."""
    with pytest.raises(TargetLimit, match="it uses a file for calls of any root, so only files for root 0 are written"):
        write(make(4, 2).compile(opcodes=True), target)
    text = write(make(4).compile(opcodes=True), target)
    said = list(remarks(parse_document(text), read(text).collective, TARGETS[target]))
    assert said[:1] == ["it uses the file for calls of any root; only those of root 0 come out right"]


def test_a_gather_that_is_called_by_its_number_has_any_root() -> None:
    schedule = direct.gather(3, 1).compile(opcodes=True)
    assert read(write(schedule)).collective == schedule.collective
    with pytest.raises(TargetLimit, match="only files for root 0"):
        write(schedule, "rccl")


def test_check_warns_of_other_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = write(tree.broadcast(2).compile(opcodes=True)).partition("\n")[2]
    swapped = (
        text.replace('gpu id="0"', 'gpu id="x"').replace('gpu id="1"', 'gpu id="0"').replace('gpu id="x"', 'gpu id="1"')
    )
    Path("a.xml").write_text(swapped.replace('send="1"', 'send="0"').replace('recv="0"', 'recv="1"'))
    done = hocket("check", "a.xml")
    assert done.exit_code == 0
    assert "a.xml: msccl: it uses the file for calls of any root; only those of root 1 come out right\n" in done.stdout


def test_msccl_has_no_alltoall_in_place() -> None:
    """It would use the file for calls out of place."""
    schedule = direct.all_to_all(2).compile(opcodes=True)
    text = write(schedule)
    assert reasons(text, MSCCL) == []
    assert reasons(text.replace('inplace="0"', 'inplace="1"'), MSCCL) == ["it has no calls of alltoall in place"]


# The command line ------------------------------------------------------------------------------------------------


def test_words_of_a_file_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[x].xml").write_text(alone(step(0, "cpy")).replace("allreduce", "[/x]"))
    done = hocket("check", "[x].xml")
    assert done.exit_code == 2
    assert "msccl: line 1: it has no collective [/x]" in done.stdout
    Path("[").mkdir()
    done = hocket("export", "hocket.algorithms.ring:all_reduce", "ranks=2", "-o", "[/x].xml")
    assert (done.exit_code, done.stderr) == (0, "wrote [/x].xml\n")


def test_a_huge_file_that_shows_no_sign_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(3 << 30)
    for command in ("check", "show", "export"):
        done = hocket(command, huge)
        assert done.exit_code == 2
        assert "is neither Python with a function in it nor the text of a schedule nor XML" in done.stderr
    with huge.open("r+b") as file:
        file.write(b"schedule ")
    assert "is too large for a program or a schedule" in hocket("check", huge).stderr
