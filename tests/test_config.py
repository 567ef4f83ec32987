"""Schedules of the user's own from a file: HOCKET_CONFIG, and ``hocket check`` of it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import hocket
from hocket import Communicator
from hocket.algorithms import recursive_halving, ring
from hocket.cli import app
from hocket.config import Config
from hocket.errors import BadConfig, BootstrapFailed
from hocket.formats.msccl_xml import write
from hocket.tunables import CONFIG
from hocket.tuning import NAMED, Call, Entry, choose, digest
from tests.runtime.test_stores import Files

XML = write(ring.all_reduce(2).compile(opcodes=True))
REFUTED = XML.replace('type="rrcs" srcbuf="i" srcoff="0"', 'type="rrcs" srcbuf="i" srcoff="1"')
MINE = """from hocket import AllReduce, Broadcast, Program, chunk

def down(root, ranks=2, name="down"):
    with Program(Broadcast(ranks, root=root), name=name) as p:
        for rank in range(ranks):
            chunk(root, "in", 0).copy(rank, "out", 0)
    return p

def wrong(ranks):
    with Program(AllReduce(ranks, inplace=True)) as p:
        chunk(0, "in", 0).reduce(chunk(1, "in", 0))
    return p

def differs(ranks):
    with Program(AllReduce(ranks)) as p:
        for rank in range(ranks):
            first, *others = [chunk((rank + i) % ranks, "in", 0) for i in range(ranks)]
            total = first.copy(rank, "out", 0)
            for other in others:
                total = total.reduce(other)
    return p

def raises(ranks):
    raise KeyError("no such thing")

def misspells(ranks):
    with Program(AllReduce(ranks)) as p:
        chunk(0, "inn", 0)
    return p

pair = down(0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "two.xml").write_text(XML)
    (tmp_path / "bad.xml").write_text(REFUTED)
    return tmp_path


def config(text: str) -> Config:
    Path("hocket.toml").write_text(text)
    return Config(Path("hocket.toml"))


def refused(text: str, ranks: int = 2) -> BadConfig:
    with pytest.raises(BadConfig) as caught:
        config(text).entries(ranks)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


# What a file says ---------------------------------------------------------------------------------------------------

ENTRY = "[[all_reduce]]\nprogram = 'ring:all_reduce'\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (ENTRY + "rank = 2", 3, "an entry has no 'rank'"),
        (ENTRY + "ranks = 'two'", 3, "ranks: Expected `int | array | null`, got `str`"),
        (ENTRY + "ranks = [2, 0]", 3, "ranks: Expected `int` >= 1"),
        (ENTRY + "ranks = []", 3, "ranks: Expected `array` of length >= 1"),
        (ENTRY + "\ninstances = true", 4, "instances: Expected `int | null`, got `bool`"),
        (ENTRY + "reproducible = 'always'", 3, "reproducible: Invalid enum value 'always'"),
        (ENTRY + "sizes = '3MB..1MB'", 3, "'3MB..1MB' is no range of sizes"),
        (ENTRY + "sizes = 4096", 3, "sizes: Expected `str | null`, got `int`"),
        (ENTRY + "tile = '48KB'", 3, "'48KB' is no tile"),
        (ENTRY + "tile = '32'", 3, "'32' is no tile"),
        (ENTRY + "tile = 64", 3, "tile: Expected `str | null`, got `int`"),
        (ENTRY + "xml = 'two.xml'", 1, "an entry names a program or a file of xml, one of them"),
        ("\n# mine\n[[all_reduce]]\nsizes = '1MB..'", 3, "an entry names a program or a file of xml, one of them"),
        ("[[all_reduce]]\nxml = 'two.xml'\nprotocol = 'simple'", 3, "a file of XML is compiled already"),
        ("[[allreduce]]\nprogram = 'ring:all_reduce'", 1, "there is no collective 'allreduce'"),
        ("version = 1\n" + ENTRY, 1, "there is no collective 'version'"),
        ("version = []\n" + ENTRY, 1, "there is no collective 'version'"),
        ("[all_reduce]\nprogram = 'ring:all_reduce'", 1, "an entry of all_reduce begins with [[all_reduce]]"),
        ("all_reduce = [1]", 1, "an entry of all_reduce begins with [[all_reduce]]"),
        (ENTRY + "sizes =\nranks = 2", 3, "Invalid value"),
        (ENTRY + 'sizes = """\n', 3, "Unterminated string"),
        (ENTRY + "[all_reduce.arguments]\nrank = 2\n[all_reduce.more]\nranks = 1", 5, "an entry has no 'more'"),
        ("[[broadcast]]\nxml = 'x'\n" + ENTRY + "[[broadcast.ranks]]\nx = 1", 5, "ranks: Expected"),
        ("all_reduce = [{program = 'ring:all_reduce'}, {rank = 2}]", 1, "an entry has no 'rank'"),
        (
            ENTRY + "[all_reduce.arguments]\ntext = '''\n[[all_reduce]]\nnothing = 1\n'''\n" + ENTRY + "rank = 2",
            10,
            "an entry has no 'rank'",
        ),
        ('[[all_reduce]]\r\nprogram = """ring:\\\r\nall_reduce"""\r\nrank = 3', 4, "an entry has no 'rank'"),
    ],
)
def test_a_mistake_has_its_line(text: str, line: int, reason: str) -> None:
    error = refused(text)
    assert error.where is not None
    assert (error.where.line, error.reason.startswith(reason)) == (line, True), error
    assert f" --> hocket.toml:{line}:1\n{line} | " in str(error)


def test_what_was_meant_is_offered() -> None:
    assert refused(ENTRY + "rank = 2").help == "did you mean ranks?"
    assert refused("[[allreduce]]").help == "did you mean all_reduce?"
    assert refused(ENTRY + "tile = '1'").help == "a tile is a power of two from 64 to 256MB, such as 64KB"
    assert refused("[[x]]").help == f"it is one of {', '.join(NAMED)}"


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(BadConfig, match=r"cannot read none\.toml: No such file or directory"):
        Config(Path("none.toml")).entries(2)


def test_entries() -> None:
    found = config(
        """
        [[broadcast]]
        program = "mine.py:down"
        arguments = {root = 1}
        [[all_reduce]]  # the first
        program = "ring:all_reduce"
        sizes = "1KB..64KB"
        instances = 2
        [[all_reduce]]
        program = "swing:all_reduce"
        protocol = "simple"
        [[all_reduce]]
        xml = "two.xml"
        [[broadcast]]
        program = "mine:pair"
        [[broadcast]]
        program = "mine.py:down"
        ranks = [2, 5]
        [broadcast.arguments]
        root = 0
        """
    )
    names = {ranks: [entry.schedule.name for entry in found.entries(ranks)] for ranks in (1, 2, 3, 5)}
    assert names == {
        1: [],
        2: ["down", "down", "down", "ring_all_reduce", "swing_all_reduce", "ring_all_reduce"],
        3: ["down", "ring_all_reduce"],  # swing takes even numbers of ranks
        5: ["down", "down", "ring_all_reduce"],
    }
    down, _, _, two_rings, swing, _ = found.entries(2)
    assert down.said == f"{CONFIG} at hocket.toml:2:9"
    assert two_rings.said == f"{CONFIG} at hocket.toml:5:9"
    assert two_rings.schedule == ring.all_reduce(2).compile(instances=2)
    assert swing.schedule.protocol == "simple"
    assert down.schedule.collective == hocket.Broadcast(2, root=1)
    assert [down.takes(Call("broadcast", 2, 64, root)) for root in (0, 1)] == [False, True]
    taken = {size: choose(Call("all_reduce", 2, size), found.entries(2)).entry for size in (512, 1024, 65536, 65540)}
    assert taken == {512: swing, 1024: two_rings, 65536: two_rings, 65540: swing}
    assert found.entries(2) is found.entries(2)


@pytest.mark.parametrize("source", ["program = 'ring:all_reduce'", "xml = 'two.xml'"])
def test_an_entry_may_have_a_tile(source: str) -> None:
    entries = config(f"[[all_reduce]]\n{source}\ntile = '64KB'\nsizes = '1MB..'").entries(2)
    assert choose(Call("all_reduce", 2, 1 << 20), entries).tile == 64 << 10
    assert choose(Call("all_reduce", 2, 1 << 19), entries).tile is None


def test_names_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "four.xml").write_text(write(ring.all_reduce(4).compile(opcodes=True)))
    config(f"[[all_reduce]]\nxml = 'two.xml'\n{ENTRY}ranks = [3, 4]\n[[all_reduce]]\nxml = 'four.xml'\nranks = 4")
    monkeypatch.chdir(folder / "elsewhere")
    found = Config(Path("../hocket.toml"))
    assert [len(found.entries(ranks)) for ranks in (2, 3)] == [1, 1]
    monkeypatch.chdir(folder)  # what is not for two ranks is read after that
    assert len(found.entries(4)) == 2


def test_a_digest_tells_entries_apart() -> None:
    schedule = ring.all_reduce(2).compile()
    one = config(ENTRY).entries(2)
    assert digest(one) == digest([Entry(schedule, one[0].sizes, "elsewhere")])
    others = [config(ENTRY + more).entries(2) for more in ("sizes = '1KB'", "instances = 2", "tile = '64KB'", ENTRY)]
    assert len({digest(entries) for entries in (one, *others)}) == 5
    assert digest(()) == "" != digest(one)


@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        (
            "program = 'mine.py:wrong'",
            ["mine.py:wrong on 2 ranks is refused: rank 1 out[0] does not hold", "mine.py:11:"],
        ),
        ("xml = 'bad.xml'", ["bad.xml on 2 ranks is refused: ", "bad.xml:"]),
        ("program = 'mine.py:differs'", ["allreduce is not across-ranks", 'say so: reproducible="may-differ"']),
        ("program = 'ring:all_gather'", ["ring:all_gather on 2 ranks is refused: it is allgather on 2 ranks"]),
        ("program = 'swing:all_reduce'\nranks = 3", ["ValueError: Swing takes an even number of ranks, not 3"]),
        ("xml = 'two.xml'\nranks = 3", ["two.xml on 3 ranks is refused: it is allreduce on 2 ranks"]),
        ("program = 'mine.py:raises'", ["tracing mine.py:raises: KeyError: 'no such thing'", "mine.py:24:"]),
        ("program = 'mine.py:misspells'", ["mine.py:misspells on 2 ranks is refused: ", "inn", "mine.py:28:"]),
        ("program = 'builtins:max'", ["builtins:max is refused: builtins:max does not say what its parameters are"]),
        ("program = 'os:getcwd'", ["os:getcwd is refused: os:getcwd returned '/"]),
        ("program = 'mine.py:wrongs'", ["mine.py has no function 'wrongs'", "did you mean wrong?"]),
        ("program = 'mine.py'", ["which function of mine.py?"]),
        ("program = 'none.py:wrong'", ["there is no file ", "none.py", "mine.py?"]),
        ("program = 'mine.py:pair'\narguments = {root = 1}", ["mine.py:pair is a program; it takes no arguments"]),
        ("program = 'ring:all_reduce'\narguments = {rank = 1}", ["unexpected keyword argument 'rank'"]),
        ("program = 'ring:all_reduce'\nprotocol = 'fast'", ["there is no protocol 'fast'"]),
        ("xml = 'none.xml'", ["none.xml is refused: cannot read it: No such file"]),
        ("xml = 'mine.py'", ["mine.py is refused: ", "mine.py:1:1"]),
    ],
)
def test_what_is_not_proven_is_refused_with_its_line(entry: str, texts: list[str]) -> None:
    error = refused(f"# mine\n\n[[all_reduce]]\n{entry}\n", 3 if "ranks = 3" in entry or "differs" in entry else 2)
    for text in ["error[config]: ", " --> hocket.toml:3:1\n", "^^^^^^^^^^^^^^ this entry", *texts]:
        assert text in str(error)
    assert "test_config.py" not in str(error)  # where it is called is not where the mistake is


def test_a_contract_can_be_said() -> None:
    may_differ = config("[[all_reduce]]\nprogram = 'mine.py:differs'\nreproducible = 'may-differ'").entries(3)
    assert choose(Call("all_reduce", 3, 64), may_differ).entry is may_differ[0]
    assert choose(Call("all_reduce", 3, 64, reproducible="across-ranks"), may_differ).entry is None
    assert refused(ENTRY + "reproducible = 'rank-order'", 3).cause is not None


# The command --------------------------------------------------------------------------------------------------------

MANY = """
[[all_reduce]]
program = "ring:all_reduce"
sizes = "32KB..3MB"
[[all_reduce]]
program = "swing:all_reduce"
sizes = "1MB.."
[[all_reduce]]
program = "ring:all_reduce"
sizes = "64KB..1MB"
arguments = {channels = 2}
[[broadcast]]
program = "mine.py:down"
arguments = {root = 1}
sizes = "..4KB"
"""


SKIPPED = "tracing swing:all_reduce: ValueError: Swing takes an even number of ranks, not 3"
SHADOWED = "entries before it are for all of its sizes"


def check(*words: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, ["check", "hocket.toml", *words])
    assert done.exit_code == exit_code, done.output
    return done.output


def test_the_table_by_size() -> None:
    config(MANY)
    lines = [" ".join(line.split()) for line in check("ranks=2..3").splitlines()]
    assert lines == [
        "collective ranks sizes takes",
        "all_reduce 2 less than 32 KB default",
        "all_reduce 2 32 KB to 3 MB ring:all_reduce, hocket.toml:2:1",
        "all_reduce 2 more than 3 MB swing:all_reduce, hocket.toml:5:1",
        "broadcast, root 1 2 0 B to 4 KB mine.py:down, hocket.toml:12:1",
        "broadcast, root 1 2 more than 4 KB default",
        "all_reduce 3 less than 32 KB default",
        "all_reduce 3 32 KB to 3 MB ring:all_reduce, hocket.toml:2:1",
        "all_reduce 3 more than 3 MB default",
        "broadcast, root 1 3 0 B to 4 KB mine.py:down, hocket.toml:12:1",
        "broadcast, root 1 3 more than 4 KB default",
        "",
        f"hocket.toml:5:1: swing:all_reduce ranks=3 is skipped: {SKIPPED}",
        f"ring:all_reduce channels=2 ranks=2: warning[shadowed]: {SHADOWED}",
        f"ring:all_reduce channels=2 ranks=3: warning[shadowed]: {SHADOWED}",
        "7 of 7 proven.",
    ]


def test_it_proves_for_the_numbers_that_entries_name() -> None:
    config("[[all_reduce]]\nxml = 'two.xml'")
    assert [row["ranks"] for row in json.loads(check("--json"))["sizes"]] == [2]
    config("[[all_reduce]]\nxml = 'two.xml'\n" + ENTRY + "ranks = [2, 11]")
    found = json.loads(check("--json"))
    assert [(row["ranks"], row["takes"]["line"]) for row in found["sizes"]] == [(2, 1), (11, 3)]
    assert [(result["target"], result["parameters"]) for result in found["results"]] == [
        ("two.xml", {"ranks": 2}),
        ("ring:all_reduce", {"ranks": 2}),
        ("ring:all_reduce", {"ranks": 11}),
    ]
    warnings = [[warning["code"] for warning in result["warnings"]] for result in found["results"]]
    assert warnings == [[], ["shadowed"], []]
    config(ENTRY)
    assert {row["ranks"] for row in json.loads(check("--json"))["sizes"]} == set(range(2, 9))


def test_where_no_entry_is_for_the_ranks_nothing_is_proven() -> None:
    config("[[all_reduce]]\nxml = 'two.xml'\n[[all_reduce]]\nprogram = 'swing:all_reduce'")
    said = check("ranks=3", exit_code=2)
    assert "no entry of hocket.toml is for ranks=3" in said
    assert "hocket.toml:1:1: two.xml ranks=3 is skipped: it is for 2 ranks" in said
    found = json.loads(check("ranks=3", "--json", exit_code=2))
    assert (found["verdict"], found["error"]["code"], found["results"], found["sizes"]) == ("invalid", "usage", [], [])
    assert [line.partition(" ")[0] for line in found["skipped"]] == ["hocket.toml:1:1:", "hocket.toml:3:1:"]
    assert len(json.loads(check("ranks=2..3", "--json"))["skipped"]) == 2
    config("")
    assert "there is no entry in hocket.toml" in check(exit_code=2)


def test_a_missing_file_is_that_of_the_variable_only_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG, raising=False)
    assert "(HOCKET_CONFIG)" not in check(exit_code=2)
    monkeypatch.setenv(CONFIG, "hocket.toml")
    assert "cannot read hocket.toml: No such file or directory (HOCKET_CONFIG)" in check(exit_code=2)


def test_rows_of_json() -> None:
    config("[[broadcast]]\nprogram = 'mine.py:down'\narguments = {root = 1}\nsizes = '1..7'")
    rows = json.loads(check("--json", "ranks=2"))["sizes"]
    takes = {"target": "mine.py:down", "file": "hocket.toml", "line": 1}
    assert [(row["collective"], row["root"], row["least"], row["most"], row["takes"]) for row in rows] == [
        ("broadcast", 1, 0, 0, None),
        ("broadcast", 1, 1, 7, takes),
        ("broadcast", 1, 8, None, None),
    ]


def test_what_is_wrong_is_said_and_the_rest_is_proven() -> None:
    text = "[[all_reduce]]\nprogram = 'mine.py:wrong'\nranks = 2\n" + ENTRY + "ranks = 2\n"
    config(text)
    said = check(exit_code=1)
    assert "1 of 2 proven." in said
    assert "error[config]: mine.py:wrong on 2 ranks is refused: rank 1 out[0] does not hold" in said
    config(text + "[[all_reduce]]\nprogram = 'nowhere:f'\n")
    found = json.loads(check("--json", exit_code=2))
    assert [result["verdict"] for result in found["results"]] == ["invalid", "refuted", "proven"]
    assert [result["error"]["line"] for result in found["results"][:2]] == [7, 1]
    assert "::error file=hocket.toml,line=7" in check("--format", "github", exit_code=2)
    config("[[all_reduce]]\nprogram = 'mine.py:wrong'\n")
    assert check(exit_code=1).count("is refused") == 1  # not once for each number of ranks
    config(ENTRY + "rank = 2")
    assert json.loads(check("--json", exit_code=2))["error"]["line"] == 3
    for words in (["--instances", "2"], ["--target", "msccl"], ["root=1"], ["ranks=0"]):
        check(*words, exit_code=2)


# On ranks -----------------------------------------------------------------------------------------------------------


def taken(comm: Communicator) -> list[str]:
    """What calls of some sizes take, by the line that says so, and that they are right; then what others say on top."""

    def said(by: Communicator, size: int) -> str:
        why = by.explain("all_reduce", size).why
        return why.removeprefix(f"{CONFIG} at hocket.toml:").partition(":1, for")[0] if CONFIG in why else "default"

    for size in (512, 1024, 65536, 65540, 1 << 20):
        x = np.arange(size // 4, dtype=np.float32) + comm.rank
        before = comm.traffic()
        comm.all_reduce(x)
        ran = comm.traffic() - before
        assert (x == comm.size * np.arange(size // 4) + sum(range(comm.size))).all()
        if said(comm, size) == "4":
            before = comm.traffic()
            comm.run(ring.all_reduce(comm.size).compile(), x)
            assert comm.traffic() - before == ran
    for root in range(comm.size):
        assert comm.broadcast(np.full(3, comm.rank), root=root).tolist() == [root] * 3
    counts = [1, 0, 2][: comm.size]
    assert comm.all_gather(np.full(counts[comm.rank], comm.rank), counts=counts).size == sum(counts)
    if comm.rank < 2:
        pair = comm.subgroup([1, 0])
        assert (pair.all_reduce(np.ones(64, np.float32)) == 2).all()
        assert comm.sendrecv(np.array([comm.rank]), 1 - comm.rank, np.zeros(1, int), 1 - comm.rank)[0] == 1 - comm.rank
        of_pair = [said(pair, size) for size in (512, 1024, 1 << 20)]
    else:
        of_pair = []
    alone = comm.split(comm.rank)
    assert alone is not None
    sizes = [said(comm, size) for size in (512, 1024, 65536, 65540, 1 << 20)]
    own = [said(comm.dup(), 1024), said(alone, 1024)]
    comm.use(recursive_halving.all_reduce(comm.size).compile(), "..1KB")
    return [*sizes, *own, *of_pair, said(comm, 1024), comm.explain("all_reduce", 1024).program]


def test_calls_take_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    config(
        "[[all_reduce]]\nxml = 'two.xml'\nsizes = '1MB..'\n"
        + ENTRY
        + "sizes = '1KB..64KB'\n[[broadcast]]\nprogram = 'mine.py:down'\narguments = {root = 1}\n"
        + "[[all_gather]]\nprogram = 'direct:all_gather'\n"
    )
    monkeypatch.setenv(CONFIG, "hocket.toml")
    pair, last = ["default", "4", "1"], ["default", "recursive_halving_all_reduce"]
    assert hocket.spawn(taken, 2) == [["default", "4", "4", "default", "1", "4", "default", *pair, *last]] * 2
    three = ["default", "4", "4", "default", "default", "4", "default"]  # the file of XML is for two
    assert hocket.spawn(taken, 3) == [[*three, *pair, *last]] * 2 + [[*three, *last]]


def nothing(comm: Communicator) -> None:
    pytest.fail("it began")


def test_a_broken_entry_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    config(ENTRY + "[[all_reduce]]\nprogram = 'mine.py:wrong'\n")
    monkeypatch.setenv(CONFIG, "hocket.toml")
    for ranks in (2, 1):
        if ranks == 1:
            config("[[all_reduce]]\nxml = 'bad.xml'\nranks = 1\n")
        with pytest.raises(BadConfig, match="is refused") as caught:
            hocket.spawn(nothing, ranks)
        assert f" --> hocket.toml:{3 if ranks == 2 else 1}:1\n" in str(caught.value)


def cannot_split(comm: Communicator) -> str:
    with pytest.raises(BadConfig, match="is refused") as caught:
        comm.split(comm.rank)
    comm.barrier()
    return str(caught.value)


def test_one_that_is_broken_for_fewer_ranks_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    config(ENTRY + "[[all_reduce]]\nxml = 'bad.xml'\nranks = 1\n")
    monkeypatch.setenv(CONFIG, "hocket.toml")
    for said in hocket.spawn(cannot_split, 2):
        assert " --> hocket.toml:3:1\n" in said


def differ(comm: Communicator, files: list[str], stores: Path) -> list[str]:
    """What becomes of meetings in which rank 1 alone has other files, by a launcher and by a store."""
    found = []
    for file in files:
        if comm.rank == 1:
            os.environ[CONFIG] = file
        for store in (None, Files(stores)):
            place = {} if store is None else {"rank": comm.rank, "size": comm.size, "store": store}
            try:
                with hocket.init(timeout=20, **place) as other:  # type: ignore[arg-type]
                    found.append(str(other.all_gather(np.array([comm.rank])).tolist()))
            except BootstrapFailed as error:
                found.append(f"{type(error).__name__}: {error.reason}")
    return found


def test_ranks_that_differ_refuse_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(ENTRY)
    (folder / "same.toml").write_text(f"# of the same meaning\n{ENTRY}{ENTRY.replace('ring', 'swing')}ranks = 4\n")
    (folder / "other.toml").write_text(ENTRY + "sizes = '..1MB'\n")
    (folder / "wrong.toml").write_text("\n" + ENTRY.replace("all_reduce'", "all_gather'"))
    (folder / "stores").mkdir()
    monkeypatch.setenv(CONFIG, "hocket.toml")
    files = ["same.toml", "other.toml", "", "wrong.toml", "none.toml"]
    first, second = hocket.spawn(differ, 2, (files, folder / "stores"))
    other = "BootstrapFailed: rank 1 takes other schedules than rank 0"
    refusal = "ring:all_gather on 2 ranks is refused"
    missing = f"cannot read none.toml: No such file or directory ({CONFIG})"
    wrong = f"BootstrapFailed: rank 1: {refusal}: it is allgather on 2 ranks (wrong.toml:2:1)"
    assert first[::2] == ["[0, 1]", other, other, wrong, f"BootstrapFailed: rank 1: {missing}"]
    assert second[::2] == ["[0, 1]", other, other, f"BadConfig: {refusal}", f"BadConfig: {missing}"]
    assert (first[1::2], second[1::2]) == (first[::2], second[::2])


def test_nothing_is_loaded_without_a_file() -> None:
    loaded = hocket.spawn(lambda comm: [name for name in ("hocket.config", "tomllib") if name in sys.modules], 1)
    assert loaded == [[]]
