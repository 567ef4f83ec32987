"""Schedules out to XML and in again, and what files of others may look like."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Custom,
    Program,
    Reduce,
    ReduceScatter,
    Schedule,
    chunk,
    parse_schedule,
    prove,
)
from hocket.algorithms import all_pairs, all_to_next, direct, hierarchical, ring, tree
from hocket.cli.export import Wishes, export_program, placed
from hocket.errors import Deadlock, HocketError, InvalidArgument, Race, SumsDiffer, TargetLimit
from hocket.formats.msccl_document import Document, parse_document, print_document, sizes
from hocket.formats.msccl_legal import cut, legalise, xml_type
from hocket.formats.msccl_loading import refusals
from hocket.formats.msccl_meaning import schedules
from hocket.formats.msccl_targets import MSCCL, RCCL, SLOTS, Target
from hocket.formats.msccl_xml import PROTOCOLS, read, write
from hocket.ir import schedule as msccl_ir
from hocket.ir.chunk_dag import ChunkDag, Span
from hocket.ir.schedule import Send
from hocket.verify import check_program
from tests.formats import random_programs, roundtrip
from tests.property.programs import random_case
from tests.reference import check

SAMPLE = random.Random(7).sample(list(roundtrip.cases(9)), 80)


def name_of(case: roundtrip.Case) -> str:
    return "-".join(map(str, (case.name, *dict(case.arguments).values(), *case[2:])))


@pytest.mark.parametrize("case", SAMPLE, ids=name_of)
def test_library_round_trip(case: roundtrip.Case) -> None:
    if roundtrip.check(case) is None:
        check(read(export_program(case.program(), case.wishes())), 64, seeds=(0,))


def test_the_sample_covers_every_way() -> None:
    for field in (2, 3, 4, 5):
        assert {case[field] for case in SAMPLE} == {case[field] for case in roundtrip.cases(2)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_random_programs_round_trip_and_run(seed: int) -> None:
    random_programs.check(seed)


def test_what_is_read_is_what_was_written() -> None:
    """Where the target has every opcode nothing is rewritten."""
    for program in (ring.all_reduce(4, 2), all_pairs.all_reduce(2), direct.all_to_all(4), tree.broadcast(5)):
        schedule = program.compile(opcodes=True)
        again = read(write(schedule, "msccl"))
        assert replace(again, protocol=schedule.protocol, slots=schedule.slots) == schedule


def test_the_protocol_is_that_of_the_program_or_the_one_asked_for() -> None:
    schedule = ring.all_reduce(2).compile(protocol="simple")
    assert 'proto="Simple"' in write(schedule)
    assert 'proto="LL128"' in write(schedule, protocol="LL128")
    assert read(write(schedule)).protocol == "simple"
    assert read(write(schedule, protocol="LL")).protocol == "auto"
    with pytest.raises(InvalidArgument, match="no protocol 'LL256'"):
        write(schedule, protocol="LL256")
    with pytest.raises(InvalidArgument, match="no target 'nccl'"):
        write(schedule, "nccl")


@pytest.mark.parametrize(
    ("low", "high", "msccl", "rccl"),
    [(0, None, (0, 2**63 - 1), (0, 0)), (1024, 4096, (1024, 4097), (1024, 4096)), (8, 8, (8, 9), (8, 8))],
)
def test_sizes_mean_the_same_for_either_target(
    low: int, high: int | None, msccl: tuple[int, int], rccl: tuple[int, int]
) -> None:
    schedule = ring.all_reduce(2).compile(opcodes=True)
    for target, (least, most) in (("msccl", msccl), ("rccl", rccl)):
        text = write(schedule, target, min_bytes=low, max_bytes=high)
        assert f'minBytes="{least}" maxBytes="{most}"' in text
        assert sizes(parse_document(text)) == (low, high)


@pytest.mark.parametrize(("low", "high"), [(5, 4), (-1, None), (0, 0), (0, 2**63)])
def test_absurd_sizes(low: int, high: int | None) -> None:
    with pytest.raises(InvalidArgument, match="no call has"):
        write(ring.all_reduce(2).compile(opcodes=True), min_bytes=low, max_bytes=high)


def test_a_file_of_msccl_that_does_not_say_ends_at_128_mb() -> None:
    text = write(ring.all_reduce(2).compile(opcodes=True))
    text = re.sub(' minBytes="[0-9]+" maxBytes="[0-9]+"', "", text)
    assert sizes(parse_document(text)) == (0, 2**27 - 1)


def test_a_name_cannot_break_the_file() -> None:
    with Program(Broadcast(2), name='a "quoted" <name> & more -->' + "x" * 300) as p:
        chunk(0, "in", 0).copy(0, "out", 0)
        chunk(0, "in", 0).copy(1, "out", 0)
    text = write(p.compile(opcodes=True))
    assert read(text).name == ("a _quoted_ _name_ _ more --_" + "x" * 300)[:254]
    assert write(read(text)) == text


# Un-fusing, splitting, renumbering ------------------------------------------------------------------------------


def legal(text: str, target: Target) -> Schedule:
    """Legalised: the same meaning, in opcodes of the target, contiguous."""
    schedule = parse_schedule(text)
    prove(schedule)
    found = legalise(schedule, target)
    prove(replace(found, slots=8))
    for _, _, _, step in found.steps():
        assert xml_type(step) in target.opcodes
        assert all(o.stride == 1 or o.count == 1 for o in (*step.srcs, *step.dsts) if isinstance(o, Span))
    assert read(write(schedule, target)).collective == schedule.collective
    return found


TWO = (
    'schedule "x"\ncollective custom(ranks=2, chunks=1, inputs=2:2, outputs=2:2, post={post})\nprotocol auto\nslots 2\n'
    "rank 0 scratch 0\n  block 0 >1.0\n    0: send in[0] -> >1.0\n"
    "rank 1 scratch 0\n  block 0 <0.0\n    0: {step}\n"
)


KEPT = "recv <0.0 -> out[1]\n    1: "


@pytest.mark.parametrize(
    ("step", "post", "msccl", "rccl"),
    [
        ("rrc <0.0 in[1] -> in[1]\n    1: copy in[1] -> out[0]", "0.0+1.1", "rrc cpy", "r re cpy"),
        ("rrc <0.0 in[1] -> out[0]", "0.0+1.1", "rrc", "r re"),
        ("r2l0-s0l1 <0.0 -> out[0]", "", "", ""),
        ("r1l2-s0l1 <0.0 in[0] in[1] -> out[0]", "0.0+1.0+1.1", "r re re", "r re re"),
        ("r1l0-s0l2 <0.0 -> out[0] out[1]", "0.0", "r cpy", "r cpy"),
        ("r1l1-s0l2 <0.0 in[1] -> out[0] in[1]", "0.0+1.1", "rrc cpy", "r re cpy"),
        (f"{KEPT}reduce in[0] in[1] -> out[0]", "1.0+1.1", "r cpy re", "r cpy re"),
        (f"{KEPT}r0l3-s0l1 in[0] in[1] out[1] -> out[0]", "0.0+1.0+1.1", "r cpy re re", "r cpy re re"),
        (f"{KEPT}reduce in[0] in[1] -> in[1]\n    2: copy in[1] -> out[0]", "1.0+1.1", "r re cpy", "r re cpy"),
    ],
)
def test_shapes_become_opcodes(step: str, post: str, msccl: str, rccl: str) -> None:
    if not post:
        with pytest.raises(HocketError):  # a step uses one end once
            parse_schedule(TWO.format(step=step, post="-,-;-,-"))
        return
    text = TWO.format(step=step, post=f"-,-;{post},-")
    everything = replace(RCCL, words=MSCCL.words)
    for target, wanted in ((MSCCL, msccl), (everything, rccl)):
        (block,) = legal(text, target).ranks[1].thread_blocks
        assert " ".join(str(xml_type(s)) for s in block.steps) == wanted


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("rrs <0.0 in[0] -> >2.0", "r re s"),
        ("rrcs <0.0 in[0] -> >2.0 in[0]", "r re s"),
        ("rrcs <0.0 in[0] -> >2.0 out[0]", "r re s"),
        ("rcs <0.0 -> >2.0 out[0]", "r s"),
    ],
)
def test_fused_steps_are_unfused_for_rccl(step: str, wanted: str) -> None:
    post = "0.0+1.0" if step.startswith("rr") else "0.0"
    text = (
        f'schedule "x"\ncollective custom(ranks=3, chunks=1, inputs=1:1:1, outputs=1:1:1, post=-;-;{post})\n'
        "protocol auto\nslots 2\n"
        "rank 0 scratch 0\n  block 0 >1.0\n    0: send in[0] -> >1.0\n"
        f"rank 1 scratch 0\n  block 0 <0.0 >2.0\n    0: {step}\n"
        "rank 2 scratch 0\n  block 0 <1.0\n    0: recv <1.0 -> out[0]\n"
    )
    (block,) = legal(text, replace(RCCL, words=MSCCL.words)).ranks[1].thread_blocks
    assert " ".join(str(xml_type(s)) for s in block.steps) == wanted
    (block,) = legal(text, MSCCL).ranks[1].thread_blocks
    assert [s.opcode for s in block.steps] == [step.partition(" ")[0]]


def counts(schedule: Schedule) -> list[int]:
    return [step.count or 0 for _, _, _, step in schedule.steps() if any(isinstance(d, Send) for d in step.dsts)]


def gather(chunks: int, instances: int = 1) -> Program:
    with Program(AllGather(2, chunks=chunks), instances=instances) as p:
        for r in range(2):
            chunk(r, "in", 0, chunks).copy(r, "out", r * chunks)
            chunk(r, "in", 0, chunks).copy(1 - r, "out", r * chunks)
    return p


def test_long_steps_are_split_at_71_chunks_at_both_ends() -> None:
    schedule = read(write(gather(150).compile(opcodes=True), protocol="LL"))
    assert counts(schedule) == [71, 71, 8] * 2
    check(schedule, 150 * 8)


def test_scattered_steps_are_split_into_chunks_at_both_ends() -> None:
    """With two instances each moves every other chunk."""
    schedule = gather(3, 2).compile(opcodes=True)
    assert counts(schedule) == [3] * 4
    assert counts(read(write(schedule))) == [1] * 12
    check(read(write(schedule)), 3 * 16)


def test_channels_are_dense_and_few() -> None:
    with Program(AllReduce(3, inplace=True)) as p:
        total = chunk(0, "in", 0).reduce(chunk(1, "in", 0), ch=700).reduce(chunk(2, "in", 0), ch=31)
        total.copy(1, "in", 0, ch=9).copy(2, "in", 0, ch=9)
    text = write(p.compile(opcodes=True))
    assert 'nchannels="3"' in text
    check(read(text), 8)


def test_more_channels_than_there_are_become_fewer_where_pairs_of_ranks_differ() -> None:
    with Program(Broadcast(40)) as p:
        for r in range(1, 40):
            chunk(0, "in", 0).copy(r, "out", 0, ch=r)
        chunk(0, "in", 0).copy(0, "out", 0)
    text = write(p.compile(opcodes=True))
    assert 'nchannels="2"' in text  # 39 thread blocks of rank 0 send; 32 can on a channel
    check(read(text), 8, seeds=(0,))


def test_one_end_of_many_connections_is_refused() -> None:
    text = (
        'schedule "x"\ncollective broadcast(ranks=3, chunks=1, root=0)\nprotocol auto\nslots 2\n'
        "rank 0 scratch 0\n  block 0 >1.0 >2.0\n    0: copy in[0] -> out[0]\n    1: send in[0] -> >1.0\n"
        "    2: send in[0] -> >2.0\n"
        "rank 1 scratch 0\n  block 0 <0.0\n    0: recv <0.0 -> out[0]\n"
        "rank 2 scratch 0\n  block 0 <0.0\n    0: recv <0.0 -> out[0]\n"
    )
    with pytest.raises(TargetLimit, match="sends to 2 ranks or channels"):
        write(parse_schedule(text))


def fused_ring(chunks: int) -> Program:
    """A ring whose every step is on several chunks: as several operations, its fused steps fill each other's slots."""
    with Program(AllReduce(3, chunks=3 * chunks, inplace=True)) as p:
        for i in range(3):
            c = chunk((i + 1) % 3, "in", i * chunks, chunks)
            for step in (1, 2):
                c = chunk((i + step + 1) % 3, "in", i * chunks, chunks).reduce(c)
            for step in (1, 2):
                c = c.copy((i + step) % 3, "in", i * chunks)
    return p


def test_a_fused_ring_of_long_steps_is_unfused_where_slots_are_few() -> None:
    schedule = fused_ring(2).compile(opcodes=True)
    with pytest.raises(Deadlock):
        prove(replace(cut(schedule, 1), slots=2))
    text = write(schedule)
    check(read(text), 6 * 8)
    assert "rrcs" not in text
    assert "rrcs" in write(schedule, protocol="LL")


def test_what_sends_more_than_slots_hold_before_it_receives_is_compiled_again() -> None:
    """Three operations before the first receive, two slots: no un-fusing helps, another order does."""
    with pytest.raises(Deadlock):
        write(fused_ring(3).compile(opcodes=True))
    schedule = read(export_program(fused_ring(3), Wishes("msccl")))
    assert set(counts(schedule)) == {1}
    check(schedule, 9 * 8)


def test_a_chunk_that_comes_back_before_the_next_has_left_is_a_race() -> None:
    """Whole, rank 0 overwrites in[1] after both chunks were sent; in parts, perhaps before the second is."""
    schedule = parse_schedule(
        'schedule "x"\ncollective custom(ranks=2, chunks=1, inputs=3:0, outputs=0:2, post=;0.0,0.1)\n'
        "protocol auto\nslots 2\n"
        "rank 0 scratch 0\n  block 0 >1.0\n    0: send in[0:+2] -> >1.0\n"
        "  block 1 <1.0\n    0: recv <1.0 -> in[1:+2]\n"
        "rank 1 scratch 0\n  block 0 <0.0 >0.0\n    0: rcs <0.0 -> >0.0 out[0:+2]\n"
    )
    prove(schedule)
    with pytest.raises(Race):
        prove(cut(schedule, 1))
    assert "rcs" not in write(schedule)


# Limits ---------------------------------------------------------------------------------------------------------


def refused(program: Program, target: str, **wishes: object) -> str:
    with pytest.raises(TargetLimit) as caught:
        export_program(program, Wishes(target, **wishes))  # type: ignore[arg-type]
    assert caught.value.target == target
    return str(caught.value)


def test_limits_are_named_with_lines() -> None:
    with Program(Broadcast(2, chunks=300)) as many:
        chunk(0, "in", 0, 300).copy(0, "out", 0)
        for i in range(300):
            chunk(0, "in", i).copy(1, "out", i)
    text = refused(many, "msccl")
    assert "msccl: at most 256 steps in a thread block; rank 0, thread block " in text
    assert 'chunk(0, "in", i).copy(1, "out", i)' in text
    assert "rccl: at most 64 steps" in refused(many, "rccl")
    assert "at most 64 thread blocks; rank 0 has 66" in refused(all_pairs.all_reduce(12), "rccl", instances=3)
    assert "it has no collective alltonext" in refused(all_to_next.all_to_next(2, 2), "rccl")
    with Program(Custom(2, inputs=40000, outputs=1, post=lambda r, i: {(0, 39999)})) as wide:
        chunk(0, "in", 39999).copy(0, "out", 0)
        chunk(0, "in", 39999).copy(1, "out", 0)
    assert "at most 32768 chunks in a buffer; here is chunk 39999" in refused(wide, "msccl")
    with Program(Broadcast(2, chunks=33)) as channels:
        chunk(0, "in", 0, 33).copy(0, "out", 0)
        for i in range(33):
            chunk(0, "in", i).copy(1, "out", i, ch=i)
    assert "there are 32 channels" in refused(channels, "msccl")
    ranks = 1025
    with Program(Broadcast(ranks)) as line:
        c = chunk(0, "in", 0).copy(0, "out", 0)
        for r in range(1, ranks):
            c = c.copy(r, "out", 0)
    assert "at most 1024 ranks; there are 1025" in refused(line, "msccl")


def test_a_rank_keeps_4095_elements_of_a_file() -> None:
    with Program(Broadcast(2, chunks=4400)) as p:
        chunk(0, "in", 0, 4400).copy(0, "out", 0)
        for i in range(4400):
            chunk(0, "in", i).copy(1, "out", i, ch=i % 22)
    assert "at most 4095 elements for a rank; rank 0 has" in refused(p, "msccl")


def test_a_table_of_ones_own() -> None:
    """Say, RCCL built with all its opcodes."""
    schedule = ring.all_reduce(3).compile(opcodes=True)
    assert "rrcs" not in write(schedule, RCCL)
    assert "rrcs" in write(schedule, replace(RCCL, opcodes=MSCCL.opcodes))


# Files of others ------------------------------------------------------------------------------------------------


def step(s: int, type_: str, src: str = "i-1", dst: str = "o-1", cnt: int = 1, dep: str = "-1 -1", has: int = 0) -> str:
    depid, deps = dep.split()
    return (
        f'<step s="{s}" type="{type_}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{cnt}" depid="{depid}" deps="{deps}" hasdep="{has}"/>'
    )


def tb(number: int, send: int, recv: int, *steps: str, chan: int = 0) -> str:
    return f'<tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">\n' + "\n".join(steps) + "\n</tb>"


def algo(coll: str, loop: int, gpus: Sequence[tuple[str, Sequence[str]]], more: str = 'inplace="1"') -> str:
    """``gpus``: chunks such as ``2 0 1``, and thread blocks."""
    out = [f'<algo name="x" nchannels="1" nchunksperloop="{loop}" proto="LL" ngpus="{len(gpus)}" coll="{coll}" {more}>']
    for r, (chunks, blocks) in enumerate(gpus):
        i, o, s = chunks.split()
        out.append(f'<gpu id="{r}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        out += [*blocks, "</gpu>"]
    return "\n".join([*out, "</algo>"])


def exchange(more: str = 'inplace="1"', *, cpy: str = "nop") -> str:
    """AllReduce of two ranks as RCCL ships it: local thread blocks that name a channel, nops, chained reductions."""

    def gpu(r: int) -> tuple[str, list[str]]:
        return "2 0 2", [
            tb(0, 1 - r, -1, step(0, "s", "i0", "s0"), step(1, "s", "i1", "s1", has=1)),
            tb(1, -1, 1 - r, step(0, "r", "i0", "s0"), step(1, "r", "i1", "s1", has=1)),
            tb(
                2,
                -1,
                -1,
                step(0, "nop", cnt=0, dep="0 0"),
                step(1, "re", "s0", "i0", dep="1 0"),
                step(2, "re", "s1", "i1"),
                chan=0,
            ),
        ]

    return algo("allreduce", 2, [gpu(0), gpu(1)], more)


def test_a_file_as_rccl_ships_them() -> None:
    """A wait for step 0 is one for the next step that signals; o_chunks=0 as all is in place; more attributes."""
    text = "<!-- made by hand -->\n\n" + exchange('inplace="1" outofplace="0" minBytes="0" maxBytes="65536" extra="x"')
    schedule = read(text)
    assert schedule.collective == AllReduce(2, 2, True)
    check(schedule, 32, seeds=range(20))
    assert [w.step for _, _, _, s in schedule.steps() for w in s.waits] == [1, 1, 1, 1]
    assert write(schedule, "msccl", protocol="LL") == write(read(write(schedule, protocol="LL")), protocol="LL")


def test_without_the_wait_for_the_sends_it_is_a_race() -> None:
    text = exchange().replace(step(0, "nop", cnt=0, dep="0 0") + "\n", "").replace('s="1" type="re"', 's="0" type="re"')
    with pytest.raises(Race) as caught:
        read(text.replace('s="2" type="re"', 's="1" type="re"'))
    assert {caught.value.first.operation[:4], caught.value.second.operation[:4]} == {"send", "redu"}


def test_steps_in_errors_are_numbered_as_in_the_file() -> None:
    """Step 1 of thread block 2 is the first that does something."""
    text = exchange().replace('cnt="0" depid="0" deps="0"', 'cnt="0" depid="1" deps="1"')
    with pytest.raises(Race) as caught:
        read(text)
    name = max(caught.value.first, caught.value.second, key=lambda n: n.thread_block)
    assert (name.thread_block, name.step) == (2, 1)
    assert name.where is not None
    assert text.splitlines()[name.where.resolve().line - 1].startswith('<step s="1" type="re"')


def in_and_out(reads: str) -> str:
    """AllGather of one chunk from two ranks, which sends from ``reads``."""
    gpus = [
        ("1 2 0", [tb(0, 1, 1, step(0, "s", reads.format(0)), step(1, "r", dst="o1"), step(2, "cpy", "i0", "o0"))]),
        ("1 2 0", [tb(0, 0, 0, step(0, "s", reads.format(1)), step(1, "r", dst="o0"), step(2, "cpy", "i0", "o1"))]),
    ]
    return algo("allgather", 2, gpus, 'inplace="1" outofplace="1" minBytes="0" maxBytes="0"')


def test_a_file_for_both_places_is_proven_for_both() -> None:
    both = in_and_out("i0")
    assert [s.collective for s in schedules(parse_document(both))] == [AllGather(2), AllGather(2, inplace=True)]
    assert read(both).collective == AllGather(2)
    only = in_and_out("o{}")  # in place its own part of the output is the input
    with pytest.raises(HocketError, match="holds nothing yet"):
        read(only)
    assert read(only.replace('outofplace="1"', 'outofplace="0"')).collective.inplace


def test_steps_of_no_chunks_do_nothing_but_signal() -> None:
    """cnt=0: who waits for such a step waits for what it waits for, and for what comes before."""
    text = algo(
        "broadcast",
        1,
        [
            ("1 1 1", [tb(0, 1, -1, step(0, "s", "i0", has=1)), tb(1, -1, -1, step(0, "cpy", "i0", "o0"))]),
            (
                "0 1 1",
                [
                    tb(0, -1, 0, step(0, "r", dst="s0", has=1)),
                    tb(1, -1, -1, step(0, "cpy", "i0", "o0", cnt=0, dep="0 0", has=1)),
                    tb(2, -1, -1, step(0, "cpy", "s0", "o0", dep="1 0")),
                ],
            ),
        ],
        'inplace="0"',
    )
    schedule = read(text)
    assert schedule.ranks[1].thread_blocks[1].steps == ()
    assert [(w.thread_block, w.step) for w in schedule.ranks[1].thread_blocks[2].steps[0].waits] == [(0, 0)]
    check(schedule, 8)


def test_a_broadcast_in_place_may_call_its_buffer_either_name() -> None:
    for name in "io":
        receiver = tb(0, -1, 0, step(0, "r", dst=f"{name}0"))
        text = algo("broadcast", 1, [("1 1 0", [tb(0, 1, -1, step(0, "s", "i0"))]), ("1 1 0", [receiver])])
        assert read(text).collective == Broadcast(2, inplace=True)


@pytest.mark.parametrize("root", range(4))
def test_the_root_is_in_the_comment_or_else_who_never_receives(root: int) -> None:
    for program, kind in ((tree.broadcast(4), Broadcast), (tree.reduce(4), Reduce)):
        said = for_root(parse_document(write(program.compile(opcodes=True))), root)
        for document in (said, replace(said, promise=None)):
            assert read(print_document(document)).collective == kind(4, 1, True, root=root)


def for_root(document: Document, root: int) -> Document:
    """The same with ranks 0 and ``root`` exchanged."""

    def rank(r: int | None) -> int | None:
        return {0: root, root: 0}.get(r, r) if r is not None else None

    gpus = [
        replace(gpu, blocks=tuple(replace(block, send=rank(block.send), recv=rank(block.recv)) for block in gpu.blocks))
        for gpu in document.gpus
    ]
    gpus[0], gpus[root] = gpus[root], gpus[0]
    assert document.promise is not None
    return replace(document, gpus=tuple(gpus), promise=document.promise.replace("root=0", f"root={root}"))


def test_a_custom_collective_without_a_promise_is_judged_for_race_and_deadlock() -> None:
    text = write(all_to_next.all_to_next(2, 2).compile(opcodes=True)).partition("\n")[2]
    found = read(text).collective
    assert isinstance(found, Custom)
    assert all(found.required(r, i) is None for r in range(4) for i in range(found.outputs(r)))


def test_what_a_runtime_would_not_load() -> None:
    def found(text: str, target: Target) -> list[str]:
        return [refusal.reason for refusal in refusals(parse_document(text), target)]

    bare = write(ring.all_reduce(3).compile(opcodes=True)).replace(' minBytes="0"', "")
    bare = re.sub(' maxBytes="[0-9]+"', "", bare)
    assert found(bare, MSCCL) == []
    assert found(bare, RCCL) == [
        "it demands the attributes outofplace, minBytes, maxBytes",
        "its default build does not do rrs",
        "its default build does not do rrs",
        "its default build does not do rrs",
    ]
    no_limit = write(ring.all_reduce(3).compile(opcodes=True), "rccl")
    assert found(no_limit, RCCL) == []
    assert found(no_limit, MSCCL) == ["it takes calls of 0 bytes or more, but fewer than maxBytes=0: none"]


# In place and apart ---------------------------------------------------------------------------------------------


def written(dag: ChunkDag) -> set[tuple[int, str]]:
    return {(node.dst.rank, node.dst.buffer) for _, node in dag.operations()}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_random_programs_in_the_other_place(seed: int) -> None:
    case = random_case(random.Random(seed))
    dag = case.program().chunk_dag
    other = placed(dag, not case.inplace)
    assert other.collective == dag.collective.placed(not case.inplace)
    check_program(other)
    if case.inplace:
        assert not any(buffer == "in" for _, buffer in written(other))
    assert placed(dag, case.inplace) is dag


@pytest.mark.parametrize(
    "collective",
    [AllReduce(2, 2, True), AllGather(2, 2, True), ReduceScatter(2, 2, True), Broadcast(2, 2, True, root=1)],
    ids=str,
)
def test_an_empty_program_apart_copies_what_lies_there_already(collective: Collective) -> None:
    with Program(collective) as p:
        pass
    copies = placed(p.chunk_dag, False).operations()
    alias = {r: collective.alias(r) for r in range(2)}
    wanted = {r: min(collective.inputs(r), collective.outputs(r)) for r in range(2) if alias[r] is not None}
    found: dict[int, int] = {}
    for _, node in copies:
        assert node.src is not None
        assert (node.src.buffer, node.dst.buffer) == ("in", "out")
        found[node.dst.rank] = found.get(node.dst.rank, 0) + node.dst.count
    assert found == wanted


def test_in_place_costs_no_copy_where_nothing_is_overwritten_too_early() -> None:
    dag = placed(ring.all_gather(3).chunk_dag, True)
    assert not any(buffer == "sc" for _, buffer in written(dag))
    assert any(buffer == "sc" for _, buffer in written(placed(direct.all_to_all(3).chunk_dag, True)))


def test_documents_compare_by_what_they_say() -> None:
    text = write(hierarchical.all_reduce(2, 2).compile(opcodes=True))
    one, two = parse_document(text, "one"), parse_document("<!-- x -->\n" + text, "two")
    assert isinstance(one, Document)
    assert one == two
    assert SLOTS[one.proto] == 2


def test_long_chains_of_steps_that_do_nothing() -> None:
    """Every one waits for all before it, to and fro between two thread blocks: neither too deep nor too many."""

    def silent(s: int, wait: str) -> str:
        return step(s, "cpy", "i0", "o0", cnt=0, dep=wait, has=1)

    fro = [silent(s, f"1 {s - 1}" if s else "-1 -1") for s in range(250)]
    to = [silent(s, f"0 {s}") for s in range(250)]
    last = step(0, "cpy", "i0", "o0", dep="1 249")
    gpu = ("1 1 0", [tb(0, -1, -1, *fro), tb(1, -1, -1, *to), tb(2, -1, -1, last)])
    schedule = read(algo("broadcast", 1, [gpu], 'inplace="0"'))
    assert prove(schedule).steps == 1
    assert schedule.ranks[0].thread_blocks[2].steps[0].waits == ()


def test_every_protocol_of_a_schedule_has_a_name_there() -> None:
    assert set(PROTOCOLS) == set(msccl_ir.PROTOCOLS)


def test_a_contract_on_bits_holds_for_the_file() -> None:
    def program(contract: Literal["across-ranks", "across-sizes"]) -> Program:
        with Program(AllReduce(3, chunks=3, inplace=True), reproducible=contract) as p:
            for i in range(3):
                c = chunk((i + 1) % 3, "in", i)
                for hop in (1, 2):
                    c = chunk((i + hop + 1) % 3, "in", i).reduce(c)
                for hop in (1, 2):
                    c = c.copy((i + hop) % 3, "in", i)
        return p

    assert read(export_program(program("across-ranks"), Wishes("rccl"))).collective.size == 3
    with pytest.raises(SumsDiffer):
        export_program(program("across-sizes"), Wishes("rccl"))
