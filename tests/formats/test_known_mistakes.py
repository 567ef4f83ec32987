"""What MSCCL's reference tools get wrong in the files they write, and what is written here."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket import AllGather, AllReduce, AllToAll, Broadcast, Custom, Program, ReduceScatter, chunk, prove
from hocket.algorithms import all_pairs, hierarchical, ring
from hocket.cli.export import Wishes, export_program
from hocket.errors import TargetLimit
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_loading import refusals
from hocket.formats.msccl_targets import MSCCL, RCCL, TARGETS
from hocket.formats.msccl_xml import read, write
from tests import paper
from tests.reference import check
from tests.test_known_mistakes import four_operations, long_ring

ROOT = Path(__file__).parent.parent.parent


def exported(program: Program, target: str = "msccl", protocol: str = "Simple", inplace: bool | None = None) -> str:
    return export_program(program, Wishes(target, protocol, inplace=inplace))


# "The paper's Figure 3 (N=2, G=3) with instances=2: its XML gives wrong results in 50 of 50 random schedules"


@pytest.mark.parametrize("target", TARGETS)
def test_figure_3_with_two_instances(target: str) -> None:
    with Program(AllReduce((2, 3), chunks=6, inplace=True), instances=2) as p:
        paper.hierarchical_all_reduce(2, 3)
    schedule = read(exported(p, target))
    for slots in (2, 8):
        check(schedule, 96, seeds=range(25), slots=slots)


# "In-place AllGather through the input, in-place ReduceScatter through the output, in-place AllToAll: wrong"


@pytest.mark.parametrize(("target", "inplace"), list(itertools.product(TARGETS, (False, True))))
def test_collectives_in_place(target: str, inplace: bool) -> None:
    with Program(AllGather(3, inplace=True)) as gather:
        for r in range(3):
            c = chunk(r, "in", 0)
            for step in (1, 2):
                c = c.copy((r + step) % 3, "out", r)
    with Program(ReduceScatter(3, inplace=True)) as scatter:
        for r in range(3):
            total = chunk(r, "out", 0)
            for step in (1, 2):
                total = total.reduce(chunk((r + step) % 3, "in", r))
    with Program(AllToAll(3)) as swap:
        for a, b in itertools.product(range(3), range(3)):
            chunk(a, "in", b).copy(b, "out", a)
    programs = [gather, scatter, swap]
    if (target, inplace) == ("msccl", True):
        programs.remove(swap)  # it has no such calls
    for program in programs:
        schedule = read(exported(program, target, inplace=inplace))
        assert schedule.collective.inplace == inplace
        check(schedule, 16, seeds=range(5))


# "Deadlock by slots: an auto-scheduled 4-rank ring with 8 chunks at 2 slots, with 36 chunks at 8"


@pytest.mark.parametrize(("chunks", "protocol"), [(8, "Simple"), (36, "Simple"), (36, "LL"), (40, "LL128")])
def test_rings_of_many_chunks_are_proven_for_the_slots_of_the_protocol(chunks: int, protocol: str) -> None:
    schedule = read(exported(long_ring(4, chunks), "msccl", protocol))
    for slots in {"Simple": (2, 8)}.get(protocol, (8,)):
        check(schedule, chunks * 8, seeds=(0, 1), slots=slots)


# "Two ends of one transfer get different channels"


def test_both_ends_of_a_transfer_have_one_channel() -> None:
    schedule = read(write(four_operations()))
    prove(schedule)
    sends = {
        (r, e.peer, e.channel) for r, rank in enumerate(schedule.ranks) for b in rank.thread_blocks for e in b.sends
    }
    receives = {
        (e.peer, r, e.channel) for r, rank in enumerate(schedule.ranks) for b in rank.thread_blocks for e in b.receives
    }
    assert sends == receives


# "A remote reduce whose two locations differ: the sender's location is written as src"


def test_the_source_of_a_remote_reduce_is_the_receivers() -> None:
    with Program(Custom(2, inputs=4, outputs=1, post=lambda r, i: {(0, 3), (1, 1)} if r == 0 else None)) as p:
        total = chunk(0, "in", 3).reduce(chunk(1, "in", 1))
        total.copy(0, "out", 0)
    (rrc,) = re.findall('<step .*type="rrc".*>', exported(p))
    assert 'srcbuf="i" srcoff="3" dstbuf="i" dstoff="3"' in rrc


# "rcs that compares only one side, for differing counts"


def test_no_rcs_when_counts_differ() -> None:
    with Program(Broadcast(3, chunks=3)) as p:
        chunk(0, "in", 0, 3).copy(0, "out", 0)
        chunk(0, "in", 0, 3).copy(1, "out", 0)
        chunk(1, "out", 0, 2).copy(2, "out", 0)
        chunk(1, "out", 2).copy(2, "out", 2)
    text = exported(p)
    assert "rcs" not in text
    check(read(text), 24)


# "The same program gives different XML in different runs. A second call of XML() fails."

DUMP = """
from hocket.algorithms import all_pairs, hierarchical, ring, two_step
from hocket.cli.export import Wishes, export_program
programs = [ring.all_reduce(5, 2), all_pairs.all_reduce(4), hierarchical.all_reduce(2, 3, 2), two_step.all_to_all(2, 3)]
for program in programs:
    for target in ("msccl", "rccl"):
        for inplace in (False, True):
            if (target, inplace, program.collective.name) != ("msccl", True, "alltoall"):
                print(export_program(program, Wishes(target, instances=2, inplace=inplace)))
"""


def test_same_bytes_whatever_the_hash_seed_and_how_often() -> None:
    outputs = set()
    for seed in ("0", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        outputs.add(subprocess.run([sys.executable, "-c", DUMP], env=env, capture_output=True, check=True).stdout)
    (only,) = outputs
    assert only.count(b"<algo ") == 15
    program = hierarchical.all_reduce(2, 2)
    assert exported(program) == exported(program)


# "More than 32 fused flows on an edge crash. No limit (channels, steps, cnt) is checked."


@pytest.mark.parametrize(("flows", "target"), [(33, "msccl"), (60, "msccl"), (33, "rccl")])
def test_many_fused_flows_on_one_edge(flows: int, target: str) -> None:
    """Every flow crosses 0 -> 1 to a rank of its own."""

    def post(rank: int, index: int) -> set[tuple[int, int]] | None:
        return {(0, rank - 2)} if rank >= 2 else None

    with Program(Custom(flows + 2, inputs=[flows] + [0] * (flows + 1), outputs=1, post=post)) as p:
        for i in range(flows):
            chunk(0, "in", i).copy(1, "sc", i).copy(i + 2, "out", 0)
    if target == "rccl":
        with pytest.raises(TargetLimit, match="no collective custom"):
            exported(p, target)
    else:
        document = parse_document(exported(p, target))
        assert document.channels <= 32
        assert list(refusals(document, MSCCL)) == []


def test_a_count_beyond_the_limit_is_split_and_not_written() -> None:
    with Program(Broadcast(2, chunks=1000)) as p:
        chunk(0, "in", 0, 1000).copy(0, "out", 0)
        chunk(0, "in", 0, 1000).copy(1, "out", 0)
    counts = {int(n) for n in re.findall('cnt="([0-9]+)"', exported(p))}
    assert max(counts) == 71


def test_thirty_four_hops_between_two_ranks() -> None:
    """8 s there, doubling every two hops."""
    with Program(Broadcast(2, root=0)) as p:
        c = chunk(0, "in", 0)
        for hop in range(120):
            c = c.copy(1 - hop % 2, "sc", hop)
        chunk(0, "in", 0).copy(0, "out", 0)
        c.copy(0, "sc", 120).copy(1, "out", 0)
    check(read(exported(p)), 8, seeds=(0,))


# "Its XML lacks minBytes, maxBytes and outofplace: RCCL rejects every file"


def test_every_file_for_rccl_has_what_rccl_wants() -> None:
    text = exported(ring.all_gather(3), "rccl")
    document = parse_document(text)
    assert (document.inplace, document.outofplace, document.min_bytes, document.max_bytes) == (False, True, 0, 0)
    assert list(refusals(document, RCCL)) == []
    assert not re.search("[\t]|<[?]|  [a-z]+=|'", text)  # what its tokenizer cannot read


# "Chained reductions wrong"


def chains(text: str) -> list[list[tuple[int, bool]]]:
    """Runs of reductions that a runtime does as one: for each step its count, and whether it signals."""
    found: list[list[tuple[int, bool]]] = []
    for gpu in parse_document(text).gpus:
        for block in gpu.blocks:
            before = None
            for step in block.steps:
                joined = (
                    before is not None
                    and before.type == step.type == "re"
                    and step.depends is None
                    and not before.signals
                    and (before.dst, before.src[0]) == (step.dst, step.src[0])
                )
                if step.type == "re":
                    if not joined:
                        found.append([])
                    found[-1].append((step.count, step.signals))
                before = step
    return found


def test_no_more_than_16_reductions_are_joined() -> None:
    """On one rank, from 40 chunks that lie there."""
    with Program(Custom(2, inputs=41, outputs=1, post=lambda r, i: {(r, k) for k in range(41)})) as p:
        for r in range(2):
            total = chunk(r, "in", 0)
            for k in range(1, 41):
                total = total.reduce(chunk(r, "in", k))
            total.copy(r, "out", 0)
    text = exported(p)
    assert sorted(len(chain) for chain in chains(text)) == [8, 8, 16, 16, 16, 16]
    prove(read(text))


def test_reductions_of_different_counts_are_not_joined() -> None:
    """A runtime would do all of them with the count of one."""
    wanted = [{(0, 0), (0, 2), (0, 4)}, {(0, 1), (0, 5)}]
    with Program(Custom(2, inputs=6, outputs=2, post=lambda r, i: wanted[i] if r == 0 else None)) as p:
        chunk(0, "in", 0).reduce(chunk(0, "in", 2))
        chunk(0, "in", 0, 2).reduce(chunk(0, "in", 4, 2)).copy(0, "out", 0)
    text = exported(p)
    assert chains(text) == [[(1, True)], [(2, False)]]
    prove(read(text))


def test_all_pairs_of_many_ranks_are_right_where_reductions_wait() -> None:
    text = exported(all_pairs.all_reduce(9))
    check(read(text), 72, seeds=(0, 1))
    for gpu in parse_document(text).gpus:
        for block in gpu.blocks:
            for before, step in itertools.pairwise(block.steps):
                assert before.type != "nop" or step.depends is not None
