"""Tables of a tuner: read strictly, written at once, compared, and exported; each export is a golden file."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from hocket.algorithms.catalogue import CATALOGUE
from hocket.cli import app
from hocket.cli.tune import decided, exported, interval, one, plans
from hocket.config import Config
from hocket.errors import BadTable, UsageError
from hocket.runtime import machine
from hocket.tuner import exports, store
from hocket.tuner.arms import DEFAULT, Arm, Key, steps
from hocket.tuner.exports import Refusal, Run
from hocket.tuner.learner import Learner, Reason, Samples
from hocket.tuner.store import Known, Table, Tuned

HERE = Path(__file__).parent / "tuning_files"


def key(collective: str = "all_reduce", bits: int = 10, **others: object) -> Key:
    about = {"ranks": 4, "nodes": (), "type": "int32", "op": "sum" if "reduce" in collective else "", "root": 0}
    return Key(collective=collective, bits=bits, **{**about, "reproducible": None, "oversubscribed": False, **others})


def arm(name: str, tile: int | None = None, **parameters: int) -> Arm:
    return Arm(f"hocket.algorithms.{name}", tuple(parameters.items()), tile, zero_copy=False)


def tuned(of: Key, chosen: Arm) -> Tuned:
    """With the static policy's arm in 20 us, the chosen in 10."""
    slow = Known.of(DEFAULT, 21.5, 20.0, (18.0, 22.0), 12)
    if chosen == DEFAULT:
        return Tuned.of(of, [slow], 0, "KEPT")
    return Tuned.of(of, [slow, Known.of(chosen, None, 10.0, (9.5, 10.5), 12)], 1, "EXPLOIT")


def table(*keys: Tuned) -> Table:
    return Table("0.1.0", "a machine", "0123456789abcdef", keys)


RING, DOUBLING = arm("ring:all_reduce", ranks=4, channels=1), arm("recursive_doubling:all_reduce", ranks=4)
SEVERAL = table(
    tuned(key(bits=10), DOUBLING),
    tuned(key(bits=11), DOUBLING),
    tuned(key(bits=12), arm("all_pairs:one_shot_all_reduce", ranks=4)),
    tuned(key(bits=14), arm("recursive_halving:all_reduce", ranks=4)),
    tuned(key(bits=15), RING),
    tuned(key(bits=16), arm("swing:all_reduce", ranks=4)),
    tuned(key(bits=17), arm("ring:segmented_all_reduce", ranks=4, segments=3)),
    tuned(key("all_gather", 10), arm("bruck:all_gather", ranks=4)),
    tuned(key("all_gather", 11), arm("neighbor_exchange:all_gather", ranks=4)),
    tuned(key("all_gather", 12), arm("ring:all_gather", ranks=4, channels=2)),
    tuned(key("all_to_all", 10), arm("bruck:all_to_all", ranks=4)),
    tuned(key("all_to_all", 11), arm("pairwise:all_to_all", ranks=4)),
    tuned(key("broadcast", 10), arm("knomial:broadcast", ranks=4, radix=2)),
    tuned(key("broadcast", 11), arm("knomial:broadcast", ranks=4, radix=3)),
    tuned(key("broadcast", 20), arm("chain:broadcast", tile=65536, ranks=4)),
    tuned(key("reduce_scatter", 10), arm("recursive_halving:reduce_scatter", ranks=4)),
    tuned(key("scatter", 10), arm("tree:scatter", ranks=4)),
    tuned(key("gather", 10), arm("tree:gather", ranks=4)),
    tuned(key("scan", 10), arm("scan:scan", ranks=4)),
    tuned(key(ranks=8, bits=10), arm("recursive_doubling:all_reduce", ranks=8)),
)
"""What a tuner has chosen on 4 ranks, and a little on 8: neighbours that are one run, gaps, and what others lack."""


# ---------------------------------------------------------------------------------------------------------------
# The file


def test_a_table_is_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tuned.json"
    store.write(path, SEVERAL)
    assert store.read(path) == SEVERAL
    assert [file.name for file in path.parent.iterdir()] == ["tuned.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_the_file_is_for_people(golden: Callable[[Path, str], None]) -> None:
    small = table(tuned(key(), DOUBLING), tuned(key("broadcast", 14, ranks=2, nodes=(0, 1), root=1), DEFAULT))
    golden(HERE / "table.json", store.dump(small))
    golden(HERE / "empty.json", store.dump(table()))
    for name in ("table", "empty"):
        assert store.dump(store.read(HERE / f"{name}.json")) == (HERE / f"{name}.json").read_text()


def test_what_fails_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuned.json"
    store.write(path, SEVERAL)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadTable, match=r"cannot write .*tuned\.json: No space left on device"):
        store.write(path, table())
    assert store.read(path) == SEVERAL
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.json"]


WRITER = """
import sys
from pathlib import Path
from hocket.tuner import store
from tests.test_tuning_files import RING, key, tuned
path, first, ready = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
Path(f"{ready}{first}").touch()
while not all(Path(f"{ready}{each}").exists() for each in (0, 20)):
    pass
for bits in range(first, first + 20):
    store.update(path, "here", [tuned(key(bits=bits), RING)])
"""


def test_two_who_write_lose_nothing(tmp_path: Path) -> None:
    """Each adds 20 keys, one by one."""
    path = tmp_path / "tuned.json"
    words = (str(path), str(tmp_path / "ready"))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, words[0], str(n), words[1]]) for n in (0, 20)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert [t.key.bits for t in store.read(path).keys] == [*range(40)]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def test_who_writes_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    path = tmp_path / "tuned.json"
    with (
        store._locked(path),
        pytest.raises(BadTable, match=r"another process has locked .*\.tuned\.json\.lock for more than 0\.05 s"),
    ):
        store.update(path, "here", [])
    store.update(path, "here", [tuned(key(), RING)])
    with pytest.raises(BadTable, match=r"tuned\.json is refused: it is of another machine: here, and this is there"):
        store.update(path, "there", [])


BAD: dict[str, Callable[[str], str]] = {
    "no_json": lambda text: text.replace('"format": 1,', '"format": 1;'),
    "twice": lambda text: text.replace('"format": 1,', '"format": 1, "format": 1,'),
    "nan": lambda text: text.replace("20.0", "NaN"),
    "list": lambda text: f"[{text}]",
    "format": lambda text: text.replace('"format": 1', '"format": 2'),
    "unknown": lambda text: text.replace('"tile"', '"tiles"'),
    "missing": lambda text: text.replace('"machine": "a machine",', ""),
    "type": lambda text: text.replace('"ranks": 4', '"ranks": "four"', 1),
    "reason": lambda text: text.replace("EXPLOIT", "GUESS"),
    "contract": lambda text: text.replace('"reproducible": null', '"reproducible": "always"', 1),
    "sizes": lambda text: text.replace('"most": 2047', '"most": 2048'),
    "chosen": lambda text: text.replace('"chosen": 1', '"chosen": 7', 1),
    "interval": lambda text: text.replace('"low_us": 9.5', '"low_us": 10.5'),
    "no_samples": lambda text: text.replace('"samples": 12', '"samples": 0', 1),
    "half": lambda text: text.replace('"low_us": 9.5', '"low_us": null'),
    "same_key": lambda text: text.replace('"least": 2048, "most": 4095', '"least": 1024, "most": 2047'),
    "same_arm": lambda text: text.replace("recursive_doubling:all_reduce", "").replace(
        '"parameters": {"ranks": 4}, "tile": null, "zero_copy": false',
        '"parameters": {}, "tile": null, "zero_copy": true',
    ),
    "nodes": lambda text: text.replace('"nodes": []', '"nodes": [0, 1]', 1),
    "collective": lambda text: text.replace("all_reduce", "all_redcue", 1),
    "root": lambda text: text.replace('"root": 0', '"root": 4', 1),
    "one_rank": lambda text: text.replace('"ranks": 4', '"ranks": 1', 1),
    "ranks": lambda text: text.replace('"ranks": 4', '"ranks": 4097', 1),
    "infinite": lambda text: text.replace('"low_us": 18.0, "high_us": 22.0', '"low_us": 18.0, "high_us": 1e999'),
    "long": lambda text: text.replace("22.0", f"1{'0' * 400}"),
    "no_time": lambda text: text.replace("18.0", "1e-300"),
    "large": lambda text: text.replace('"samples": 12', f'"samples": {10**30}', 1),
    "size": lambda text: text.replace('"least": 1024, "most": 2047', f'"least": {1 << 63}, "most": {(1 << 64) - 1}'),
}


def test_a_bad_file_is_refused_with_its_place(golden: Callable[[Path, str], None]) -> None:
    text = store.dump(table(tuned(key(), DOUBLING), tuned(key(bits=11), DOUBLING)))
    said = []
    for name, damage in BAD.items():
        damaged = damage(text).replace('"program": "hocket.algorithms."', '"program": ""')
        assert damaged != text, name
        with pytest.raises(BadTable) as raised:
            store.parse(damaged, "tuned.json")
        said.append(f"{name}: {raised.value}")
    golden(HERE / "refused.err", "\n".join(said))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match=r"cannot read .*none\.json: No such file"):
        store.read(tmp_path / "none.json")


def test_a_table_is_of_one_machine_and_library() -> None:
    here = Table.of("here", [tuned(key(), RING)])
    assert here.foreign("here") is None
    assert here.foreign("there") == "it is of another machine: here, and this is there"
    assert "other programs" in str(msgspec.structs.replace(here, library="x").foreign("here"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Fast 9000\nmodel name\t: Slow 1\n", "Fast 9000"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n", "0x41 0xd4f"),
        ("", ""),
    ],
)
def test_a_machine_is_called_by_its_processor(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    said = machine.fingerprint(tmp_path, tmp_path / "cpuinfo")
    assert re.fullmatch(rf"\w+ ?{name}, \d+ cores? on 1 socket, \d+ x 1024 KB \+ 1 x 32768 KB of cache", said)


def test_new_keys_take_the_place_of_old() -> None:
    before = Table.of("here", [tuned(key(), RING), tuned(key(bits=11), RING)])
    after = before.updated([tuned(key(bits=12), RING), tuned(key(), DOUBLING)])
    assert [(t.key.bits, t.best.arm) for t in after.keys] == [(10, DOUBLING), (11, RING), (12, RING)]
    (changed, added) = store.changes(before, after)
    assert (changed.moved, changed.key.bits) == (True, 10)
    assert (added.moved, added.before) == (False, None)


arms = st.builds(
    Arm,
    st.sampled_from(["", "hocket.algorithms.ring:all_reduce", "mine.py:tree"]),
    st.sampled_from([(), (("ranks", 2),), (("ranks", 3), ("channels", 2))]),
    st.none() | st.integers(1, 1 << 30),
    st.booleans(),
)
times = st.floats(1e-3, 1e9)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    found = []
    for bits in draw(st.sets(st.integers(0, 40), max_size=3)):
        known = []
        for chosen in draw(st.lists(arms, min_size=1, max_size=4, unique=True)):
            low, mean, high = sorted(draw(st.tuples(times, times, times)))
            measured = draw(st.booleans())
            prior = draw(st.none() | times)
            known.append(Known.of(chosen, prior, mean, (low, high), 7) if measured else Known.of(chosen, prior))
        reason = draw(st.sampled_from(get_args(store.ReasonName)))
        found.append(Tuned.of(key(bits=bits), known, draw(st.integers(0, len(known) - 1)), reason))
    return Table("0.1.0", draw(st.text(max_size=9)), "0", tuple(found))


@given(tables())
def test_every_table_survives_its_file(some: Table) -> None:
    assert store.parse(store.dump(some), "t") == some
    assert [Tuned.of(t.key, t.arms, t.chosen, t.reason) for t in some.keys] == list(some.keys)


def test_the_reasons_are_the_learner_s() -> None:
    assert set(get_args(store.ReasonName)) == {reason.name for reason in Reason}


def test_a_learner_goes_on_from_a_table() -> None:
    """What it knows goes through a file, and is told to another."""
    arms = [DEFAULT, RING, DOUBLING]
    learner = Learner()
    learner.add("k", list(map(str, arms)), [20e-6, 10e-6, 12e-6])
    for _ in range(20):
        for i, seconds in enumerate((20e-6, 10e-6)):
            learner.observe("k", i, Samples.of([math.log2(seconds * (1 + 0.01 * turn)) for turn in range(4)]))
        learner.counted("k", 64)
    learnt = Tuned.learned(key(), arms, learner.why("k"))
    assert (learnt.best.arm, learnt.reason in get_args(store.ReasonName)) == (RING, True)
    assert learnt.arms[2].mean_us is None
    read = store.parse(store.dump(table(learnt)), "t").keys[0]
    other = Learner()
    other.add("k", list(map(str, arms)), [20e-6, 10e-6, 12e-6])
    other.recall("k", [known.recalled for known in read.arms], read.chosen)
    assert other.choice("k").incumbent == 1
    assert other.why("k").candidates[1].samples == learnt.arms[1].samples
    found = learnt.arms[1].recalled
    assert found is not None
    assert found[0] == pytest.approx(10.15e-6, rel=0.01)


# ---------------------------------------------------------------------------------------------------------------
# Exports

MPICH = Path(__file__).parent / "tuning_files" / "selection.json"
"""A selection of MPICH's form, with two collectives."""


def export(table: Table, to: str) -> exports.Export:
    return exported(table, "tuned.json", to, MPICH, "Simple")


@pytest.mark.parametrize("to", ["toml", "nccl", "openmpi", "openmpi-json", "mpich", "ucc"])
def test_an_export_says_what_maps_and_why_the_rest_does_not(to: str, golden: Callable[[Path, str], None]) -> None:
    made = export(SEVERAL, to)
    golden(HERE / f"export.{to}", made.text)
    golden(HERE / f"export.{to}.err", "\n".join(map(str, made.refused)))


def test_hocket_toml_is_read_and_proven(tmp_path: Path) -> None:
    path = tmp_path / "hocket.toml"
    path.write_text(export(SEVERAL, "toml").text)
    found = Config(path).entries(4)
    names = {(entry.schedule.collective.name, entry.sizes.least, entry.sizes.most) for entry in found}
    assert ("allreduce", 1024, 4095) in names
    assert len(found) == 18
    assert {entry.tile for entry in found} == {None, 65536}
    assert len(Config(path).entries(8)) == 1


def test_keys_that_no_file_keeps_apart_must_agree() -> None:
    floats = replace(key(), type="float32", ranks=4)
    same = table(tuned(key(), RING), tuned(floats, RING))
    found, refused = exports.runs(same)
    assert (len(found), refused) == (1, [])
    found, refused = exports.runs(table(tuned(key(), RING), tuned(floats, DOUBLING)))
    assert found == []
    assert {refusal.reason.partition(", which")[0] for refusal in refused} == {
        "by type, operator, contract or cores it is ring:all_reduce channels=1 or recursive_doubling:all_reduce"
    }


def test_what_the_static_policy_takes_is_named_for_others_and_left_out_of_hocket_toml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = table(tuned(key("all_gather", 10), DEFAULT))
    found, refused = exports.runs(small)
    assert ([run.program for run in found], refused) == (["direct:all_gather"], [])
    assert exports.entries(small) == ([], [])
    for program, size in (
        ("direct:all_gather", ""),
        ("knomial:broadcast", "one_way_"),
        ("direct:all_to_all", "exchange_"),
    ):
        large = table(tuned(key(program.partition(":")[2], 20), DEFAULT))
        for least, named in (("1MB", []), ("1025KB", [program])):
            monkeypatch.setenv("HOCKET_TUNABLES", f"attached_{size}bytes={least}")
            found, refused = exports.runs(large)
            assert [run.program for run in found] == named
            assert ["cross-memory attach" in refusal.reason for refusal in refused] == [True] * (not named)


def test_a_file_names_programs_of_the_library_for_its_calls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else it names is not imported: mine.py would raise."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\n")
    other = [
        Arm("mine.py:all_reduce", (("ranks", 4),), None, zero_copy=False),
        arm("ring:all_reduce", ranks=8, channels=1),
        arm("ring:all_reduce", ranks=4, channels=10**9),
        arm("ring:all_reduce", ranks=4),
        arm("ring:all_gather", ranks=4, channels=1),
        arm("ring:AllReduce", ranks=4),
        arm("recursive_doubling:all_gather", ranks=4),
    ]
    found, refused = exports.runs(table(*(tuned(key(bits=bits), each) for bits, each in enumerate(other))))
    assert found == []
    assert all("is no program of the library for such calls" in refusal.reason for refusal in refused)
    assert str(refused[0]).startswith("all_reduce 1 B 4 ranks int32 sum: mine.py:all_reduce ranks=4 is no program of")
    assert exports.entries(table(tuned(key(), other[0])))[0] == []


def test_what_cannot_be_made_is_refused_and_the_rest_is_said() -> None:
    """A ring does not keep the order of ranks."""
    ordered = replace(key(), reproducible="rank-order")
    found, refused = exports._told(table(tuned(ordered, RING), tuned(key(bits=11), RING)), exports._run)
    assert [run.least for run in found] == [2048]
    assert [refusal.what for refusal in refused] == [str(ordered)]
    assert "the order of a sum" in refused[0].reason


def test_an_arm_that_was_not_measured_is_not_exported() -> None:
    unknown = Tuned.of(key(), [Known.of(DEFAULT), Known.of(RING, 3.0)], 1, "PRIOR")
    for made in (exports.runs, exports.entries):
        assert made(table(unknown)) == ([], [Refusal(str(key()), "nothing was measured of the arm that was chosen")])


def test_the_static_policy_is_asked_about_elements_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_TUNABLES", "small_bytes=4KB")
    call = key(type="float64").call()
    assert (call.item, call.tuned.small_bytes) == (8, 4096)


def test_every_program_of_the_tables_is_in_the_library() -> None:
    names = {algorithm.name for algorithm in CATALOGUE}
    for known in (exports._IN_NCCL, exports._OPEN_MPI, exports._MPICH, exports._UCC):
        for name in known:
            program, _, radix = name.partition(" ")
            assert program in names or program.startswith("flat:"), name
            assert not radix or program.startswith("knomial:")


def rule_for(rules: list[list[int]], size: int) -> int:
    """The algorithm of Open MPI's rule for a size."""
    return [rule[1] for rule in rules if rule[0] <= size][-1]


def classic(text: str) -> dict[int, dict[int, list[list[int]]]]:
    """Open MPI's rules: by collective and number of ranks. Reads as coll_tuned_dynamic_file.c does: numbers alone."""
    numbers = iter(int(word) for line in text.splitlines() for word in line.partition("#")[0].split())
    found: dict[int, dict[int, list[list[int]]]] = {}
    for _ in range(next(numbers)):
        collective = found.setdefault(next(numbers), {})
        for _ in range(next(numbers)):
            rules = collective.setdefault(next(numbers), [])
            rules += [[next(numbers) for _ in range(4)] for _ in range(next(numbers))]
            assert rules[0][0] == 0  # it must be
            assert [rule[0] for rule in rules] == sorted(rule[0] for rule in rules)
    assert next(numbers, None) is None
    return found


def test_open_mpi_has_rules_for_these_ranks_and_sizes_alone() -> None:
    rules = classic(export(SEVERAL, "openmpi").text)
    reduces = rules[2]
    assert sorted(reduces) == [0, 4, 5, 8, 9]
    for ranks in (0, 5, 9):
        assert reduces[ranks] == [[0, 0, 0, 0]]
    for size, number in (
        (1023, 0),
        (1024, 3),
        (4095, 3),
        (4096, 0),
        (8191, 0),
        (8192, 0),
        (16384, 6),
        (32768, 4),
        (65536, 0),
    ):
        assert rule_for(reduces[4], size) == number, size
    assert rule_for(rules[7][4], 1 << 20) == 3
    assert rules[7][4][-2][3] == 65536  # the tile
    found = json.loads(export(SEVERAL, "openmpi-json").text)["collectives"]["allreduce"][0]["rules"]
    for rule in found:
        assert rule["msg_size_min"] <= rule["msg_size_max"]
        assert {3: "recursive_doubling", 0: "allgather_reduce", 6: "rabenseifner", 4: "ring"}[
            rule_for(reduces[4], rule["msg_size_min"])
        ] == rule["alg"]


def mpich_choice(tree: dict[str, object], facts: dict[str, object]) -> str:
    """The algorithm that MPICH's search comes to: the first child whose test holds."""
    for test, below in tree.items():
        assert isinstance(below, dict)
        if test.startswith("algorithm="):
            return test.removeprefix("algorithm=MPIR_")
        name, operator, value = re.fullmatch(r"(\w+)(<=|<|=)(\w+)", test).groups()  # type: ignore[union-attr]
        if value == "any" or (
            facts["count"] < 1 << facts["comm_size"].bit_length() - 1  # type: ignore[operator, attr-defined]
            if value == "pow2"
            else facts[name] <= int(value)  # type: ignore[operator]
            if operator == "<="
            else facts[name] < int(value)  # type: ignore[operator]
            if operator == "<"
            else facts[name] == value
        ):
            return mpich_choice(below, facts)
    raise AssertionError("MPICH would abort")


def test_mpich_chooses_as_said_and_as_before_elsewhere() -> None:
    before = json.loads(MPICH.read_text())
    after = json.loads(export(SEVERAL, "mpich").text)

    def choice(tree: dict[str, object], name: str, ranks: int, size: int, **facts: object) -> str:
        about = {
            "collective": name,
            "comm_type": "intra",
            "comm_size": ranks,
            "avg_msg_size": size,
            "is_commutative": "yes",
        }
        about |= {"total_msg_size": size, "is_op_built_in": "yes", "is_sendbuf_inplace": "no", "count": size // 4}
        return mpich_choice(tree, about | facts)

    for ranks, size, name in (
        (4, 1024, "Allreduce_intra_recursive_doubling"),
        (4, 4095, "Allreduce_intra_recursive_doubling"),
        (4, 16384, "Allreduce_intra_reduce_scatter_allgather"),
        (4, 40000, "Allreduce_intra_ring"),
        (8, 1500, "Allreduce_intra_recursive_doubling"),
    ):
        assert choice(after, "allreduce", ranks, size) == name
    for ranks, size in ((3, 1024), (5, 1024), (9, 1500), (4, 1023), (4, 4096), (4, 1 << 17), (8, 2048), (2, 1 << 30)):
        assert choice(after, "allreduce", ranks, size) == choice(before, "allreduce", ranks, size)
    assert choice(after, "allreduce", 4, 40000, is_commutative="no") == choice(before, "allreduce", 4, 40000)
    assert choice(after, "alltoall", 4, 1024 // 4) == "Alltoall_intra_brucks"
    assert choice(after, "alltoall", 4, 1023 // 4) == choice(before, "alltoall", 4, 255)
    assert choice(after, "alltoall", 4, 4095 // 4) == "Alltoall_intra_pairwise"
    assert after["collective=bcast"]["comm_type=inter"] == before["collective=bcast"]["comm_type=inter"]


def test_mpich_s_own_selection_is_found_in_its_library() -> None:
    text = MPICH.read_bytes()
    inside = b'\x7fELF {"collective=' + b"\0" * 9 + text + b"\0more"
    assert json.loads(exports.mpich_selection(inside, "libmpi.so")) == json.loads(text)
    with pytest.raises(BadTable, match=r"libmpi\.so holds no selection of MPICH"):
        exports.mpich_selection(b"\x7fELF", "libmpi.so")


def test_nccl_is_always_told_the_channels() -> None:
    rings = [Run("all_reduce", 8, 1, "ring:all_reduce", {"ranks": 8, "channels": 2}, 4, "LL128", 0, None)]
    assert exports.nccl(rings).text.splitlines()[1] == f"allreduce,0,{2**63 - 1},ring,ll128,8,1,8"
    many = [replace(rings[0], instances=24)]
    assert [str(r) for r in exports.nccl(many).refused] == [
        "ring:all_reduce channels=2 instances=24 LL128: NCCL has 32 channels at most, not 48"
    ]
    silent = replace(rings[0], protocol=None)
    assert [refusal.reason for refusal in exports.nccl([silent]).refused] == [
        "no protocol is said, and each line of the file has one"
    ]
    pat = Run("all_gather", 8, 8, "pat:all_gather", {"ranks": 8}, 1, "Simple", 0, 1023)
    assert exports.nccl([pat]).text.splitlines()[1:] == ["allgather,0,1023,pat,simple,1,8,8"]
    assert "one rank on each node" in str(exports.nccl([replace(pat, nodes=2)]).refused[0])


def test_ucc_has_one_radix_for_all_calls() -> None:
    known = [
        tuned(key("broadcast", bits, ranks=8), arm("knomial:broadcast", ranks=8, radix=r))
        for bits, r in ((10, 2), (11, 4))
    ]
    made = export(table(*known), "ucc")
    assert made.text.splitlines() == [
        "UCC_TL_UCP_TUNE=bcast:1024-2047:host:[8-8]:inf:@knomial",
        "# for every knomial of bcast, of any size, on any number of ranks",
        "UCC_TL_UCP_BCAST_KN_RADIX=2",
    ]
    assert "BCAST_KN_RADIX is one for all calls, and 2 for others" in str(made.refused[0])


def test_a_program_goes_by_another_with_the_same_steps() -> None:
    """On 2 ranks swing is a ring; of 4 ranks nobody has it."""
    made = export(table(tuned(key(ranks=2), arm("swing:all_reduce", ranks=2))), "openmpi-json")
    assert made.refused == ()
    assert '"alg": "ring"' in made.text
    assert len(export(table(tuned(key(), arm("swing:all_reduce", ranks=4))), "openmpi").refused) == 1


def test_arms_with_the_same_steps_count_once() -> None:
    (plan,) = plans("all_gather", 2, [1024], "float32", None)
    schedules = [arm.schedule(plan.call) for arm in plan.arms if arm.program]
    hashes = [steps(schedule) for schedule in schedules if schedule is not None]
    assert len(set(hashes)) == len(hashes)
    assert steps(plan.default) not in hashes


def test_roots_and_nodes_are_not_told_apart_by_others() -> None:
    tree, chain = arm("tree:broadcast", ranks=4), arm("chain:broadcast", ranks=4)
    alike = table(tuned(key("broadcast"), tree), tuned(key("broadcast", root=1), tree))
    assert export(alike, "openmpi").refused == ()
    other = table(tuned(key("broadcast"), tree), tuned(key("broadcast", root=1), chain))
    (refusal,) = export(other, "openmpi").refused
    assert refusal.reason == "roots and nodes count alike; tree:broadcast is said"
    assert export(other, "toml").text.count("[[broadcast]]") == 2


# ---------------------------------------------------------------------------------------------------------------
# Deciding


def rounds(*means: float, noise: float = 0.02) -> list[list[float]]:
    """Seconds of arms in 12 rounds, with what falls on all arms alike, and a little on each."""
    return [
        [m * 1e-6 * (1 + turn % 3) * (1 + noise * ((turn * 7 + i * 3) % 5 - 2)) for i, m in enumerate(means)]
        for turn in range(12)
    ]


def test_only_what_is_faster_in_the_same_rounds_is_chosen() -> None:
    found = decided(key(), [DEFAULT, RING, DOUBLING], [None, 3.0, None], rounds(10, 8, 9))
    assert found.best.arm == RING
    assert found.best.prior_us == 3.0
    assert found.best.low_us is not None
    assert found.best.low_us < 8 * 2 ** (sum(map(float, (0, 1, 1.585))) / 3) < (found.best.high_us or 0)
    assert found.reason == "EXPLOIT"
    kept = decided(key(), [DEFAULT, RING], [None, None], rounds(10, 9.99))
    assert (kept.best.arm, kept.reason) == (DEFAULT, "KEPT")
    assert decided(key(), [DEFAULT, RING], [None, None], rounds(10, 11)).chosen == 0


def test_the_interval_is_student_s() -> None:
    """The quantile for 11 degrees of freedom at 0.99 is 3.1058."""
    values = [float(i % 2) for i in range(12)]
    low, mean, high = interval(values, 0.99)
    assert (mean, high - mean) == pytest.approx((0.5, 3.1058 * (3 / 11) ** 0.5 / 12**0.5), rel=2e-3)
    assert low == pytest.approx(1 - high)


def test_a_plan_has_each_key_once_and_the_static_policy_first() -> None:
    found = plans("all_gather", 2, [1024, 1536, 2048], "float32", None)
    assert [plan.key.bits for plan in found] == [10, 11]
    assert all(plan.arms[0] == DEFAULT and len(plan.arms) > 2 for plan in found)
    assert [plan.key.bits for plan in plans("all_gather", 3, [1024, 2048], "float64", None)] == [10, 11]
    assert plans("reduce", 3, [1 << 10], "int16", "max")[0].key.op == "max"


# ---------------------------------------------------------------------------------------------------------------
# The command line


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["tune", *words])


def test_it_measures_and_keeps_what_it_found(workplace: Path) -> None:
    done = invoke("--collective", "all_gather", "--sizes", "1KB..2KB", "-o", "tuned.json", "--plot", "t.svg")
    assert done.exit_code == 0, done.output
    found = store.read(workplace / "tuned.json")
    assert [t.key.bits for t in found.keys] == [10, 11]
    for t in found.keys:
        assert t.default.arm == DEFAULT
        assert all(known.samples == 12 and known.mean_us for known in t.arms)
    assert (workplace / "t.svg").exists()
    done = invoke("--collective", "broadcast", "--sizes", "1KB", "-o", "tuned.json")
    assert done.exit_code == 0, done.output
    assert {t.collective for t in store.read(workplace / "tuned.json").keys} == {"all_gather", "broadcast"}
    said = invoke("show", "tuned.json").output
    assert "all_gather 2 KB 2 ranks float32" in said
    why = invoke("why", "tuned.json", "all_gather", "1KB").output
    assert "default" in why
    assert "samples" in why
    assert invoke("diff", "tuned.json", "tuned.json").exit_code == 0


def test_results_are_printed_also_where_they_cannot_be_kept(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(wanted: object, done: object) -> tuple[list[Tuned], list[str]]:
        (workplace / "t.json").write_text("[]")  # as another may, meanwhile
        return [tuned(key(), RING)], []

    monkeypatch.setattr("hocket.cli.tune.measured", spoil)
    done = invoke("--collective", "all_gather", "--sizes", "1KB", "-o", "t.json")
    assert done.exit_code == 2
    assert done.output.index("ring:all_reduce") < done.output.index("t.json is no table of a tuner")


def test_the_table_of_this_machine_is_in_the_cache(workplace: Path) -> None:
    done = invoke("--collective", "gather", "--sizes", "64", "--json")
    assert done.exit_code == 0, done.output
    (file,) = (workplace / "cache" / "hocket").glob("*.json")
    assert re.fullmatch(r"tuned-[0-9a-f]{16}\.json", file.name)
    assert store.read(file).foreign(store.read(file).machine) is None


def test_what_means_nothing_is_said(workplace: Path, golden: Callable[[Path, str], None]) -> None:
    store.write(workplace / "tuned.json", msgspec.structs.replace(SEVERAL, library=store.library()))
    store.write(workplace / "foreign.json", msgspec.structs.replace(SEVERAL, machine=machine.fingerprint()))
    (workplace / "no.json").write_text("[]")
    said = []
    for words in (
        [],
        ["--collective", "all_redcue"],
        ["--collective", "all_reduce", "--ranks", "1"],
        ["--collective", "broadcast", "--op", "max"],
        ["--collective", "all_reduce", "--op", "most"],
        ["--collective", "all_reduce", "--sizes", "all"],
        ["--collective", "all_reduce", "-o", "tuned.txt"],
        ["show", "none.json"],
        ["why", "tuned.json", "all_reduce", "1KB"],
        ["why", "tuned.json", "reduce"],
        ["--collective", "all_reduce", "-o", "foreign.json"],
        ["--collective", "all_reduce", "-o", "no.json"],
        ["--collective", "all_reduce", "-o", "no.json/t.json"],
        ["export", "foreign.json", "--to", "toml"],
        ["export", "tuned.json", "--to", "nccl"],
        ["export", "tuned.json", "--to", "nccl", "--protocol", "fast"],
        ["export", "tuned.json", "--to", "ucc", "--protocol", "LL"],
        ["export", "tuned.json", "--to", "slurm"],
        ["export", "tuned.json", "--to", "xml"],
        ["export", "tuned.json", "--to", "mpich"],
        ["export", "tuned.json", "--to", "mpich", "--base", "none.so"],
        ["export", "tuned.json", "--to", "mpich", "--base", "tuned.json"],
    ):
        done = invoke(*words)
        assert done.exit_code == 2, (words, done.output)
        said.append(f"$ hocket tune {' '.join(words)}\n{done.output}")
    golden(HERE / "usage.err", "\n".join(said))


def test_xml_has_the_bytes_of_each_run(workplace: Path) -> None:
    store.write(workplace / "tuned.json", Table.of("there", [tuned(key(), RING), tuned(key(bits=12), DOUBLING)]))
    done = invoke("export", "tuned.json", "--to", "xml", "-o", "xml")
    assert done.exit_code == 0, done.output
    texts = {file.name: file.read_text() for file in (workplace / "xml").iterdir()}
    assert sorted(texts) == ["0_ring_all_reduce_4.xml", "1_recursive_doubling_all_reduce_4.xml"]
    ends = [re.findall(r'(minBytes|maxBytes)="(\d+)"', text) for _, text in sorted(texts.items())]
    assert ends == [
        [("minBytes", "1024"), ("maxBytes", "2048")],
        [("minBytes", "4096"), ("maxBytes", "8192")],
    ]  # without the end


def test_differences_are_shown(workplace: Path, golden: Callable[[Path, str], None]) -> None:
    store.write(workplace / "a.json", table(tuned(key(), RING), tuned(key(bits=12), RING), tuned(key(bits=13), RING)))
    store.write(
        workplace / "b.json", table(tuned(key(), RING), tuned(key(bits=12), DOUBLING), tuned(key(bits=14), DEFAULT))
    )
    done = invoke("diff", "a.json", "b.json")
    assert done.exit_code == 1
    golden(HERE / "diff.txt", "\n".join(line.rstrip() for line in done.output.splitlines()))
    shown = invoke("show", "b.json").output + invoke("why", "b.json", "4KB").output
    shown = re.sub("it is of another machine: .*", "it is of another machine", shown)
    golden(HERE / "show.txt", "\n".join(line.rstrip() for line in shown.splitlines()))


def test_words_name_a_key() -> None:
    assert one(SEVERAL, ["all_reduce", "1500", "ranks=8"]).key.ranks == 8
    with pytest.raises(UsageError, match="2 keys are all_reduce 1KB"):
        one(SEVERAL, ["all_reduce", "1KB"])
    with pytest.raises(UsageError, match="no key is speed=3"):
        one(SEVERAL, ["speed=3"])
