"""Files that ``hocket tune export`` writes, loaded by the MPI that they are for: its calls compute what they must."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

import pytest

from hocket.tuner import exports
from hocket.tuner.exports import Run
from tests.integrations.mpi.conftest import Program
from tests.integrations.mpi.launch import Mpi
from tests.integrations.mpi.test_programs import ends_well

RANKS = 4
COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter")


def run_of(name: str) -> Run:
    """All sizes of a collective by what a table of ``exports`` has under a name."""
    program, _, radix = name.partition(" radix=")
    kind, _, function = program.partition(":")
    parameters: dict[str, int | tuple[int, ...]] = {"ranks": RANKS}
    if kind == "flat" or radix:
        program, parameters["radix"] = f"knomial:{function}", int(radix or RANKS)
    collective = next(known for known in COLLECTIVES if function.endswith(known))
    return Run(collective, RANKS, 1, program, parameters, 1, None, 0, None)


def choices(names: object) -> list[list[Run]]:
    """Every counterpart once: in each list one of each collective that still has any."""
    assert isinstance(names, dict)
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for name in names:
        run = run_of(name)
        groups[run.collective].append(run)
    return [[run for run in turn if run is not None] for turn in zip_longest(*groups.values())]


def variables(mpi: Mpi, found: list[Run], folder: Path) -> dict[str, str]:
    """How the MPI is told to load the file of these runs, which is written to a folder."""
    path = folder / "tuned"
    if mpi.kind == "openmpi":
        made = exports.open_mpi(found)
        path.write_text(made.text)
        names = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_dynamic_rules_filename": str(path)}
        given = {f"OMPI_MCA_{name}": value for name, value in names.items()}
    else:
        library = next(file for file in (mpi.folder / "lib").glob("libmpi.so.*") if file.stat().st_size > 1 << 20)
        made = exports.mpich(found, exports.mpich_selection(library.read_bytes(), str(library)))
        path.write_text(made.text)
        given = {"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(path), "MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
    assert [refusal for refusal in made.refused if "from 6 on" not in refusal.reason] == []
    return given


@pytest.mark.parametrize("turn", range(5))
def test_every_counterpart_is_taken_and_right(mpi: Mpi, program: Program, turn: int, tmp_path: Path) -> None:
    if mpi.kind == "impi" or mpi.abi:
        pytest.skip(f"no file is for {mpi.name}")
    found = choices(exports._OPEN_MPI if mpi.kind == "openmpi" else exports._MPICH)
    if turn >= len(found):
        pytest.skip(f"no collective has {turn + 1} counterparts")
    given = variables(mpi, found[turn], tmp_path)
    ends_well(mpi.run(program("collectives.c"), "401", str(turn), ranks=RANKS, variables=given))


def test_mpich_aborts_where_a_file_has_no_answer(mpi: Mpi, program: Program, tmp_path: Path) -> None:
    """So the file is asked, and has to have all that MPICH chooses by itself."""
    if mpi.kind != "mpich" or mpi.abi:
        pytest.skip("of MPICH")
    given = variables(mpi, [run_of("ring:all_reduce")], tmp_path)
    path = tmp_path / "tuned"
    path.write_text(path.read_text().replace("MPIR_Allreduce_intra_ring", "MPIR_Allreduce_intra_rung"))
    done = mpi.run(program("collectives.c"), "401", "0", ranks=2, variables=given)
    assert done.code != 0
