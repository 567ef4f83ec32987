"""The catalogue: proven and counted for many numbers of ranks, complete, and what the document shows."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction

import pytest

import hocket.algorithms
from hocket import AllGather, AllReduce, Broadcast, Program, chunk, cost
from hocket.algorithms import catalogue, direct, dpml, knomial, movement_avoiding, ring
from hocket.algorithms.catalogue import CATALOGUE, EVEN, POWERS_OF_TWO
from hocket.algorithms.entry import Algorithm
from hocket.cost import Cost, count
from hocket.verify import CONTRACTS, kept
from tests.algorithms import table
from tests.algorithms.prove import counted, differences, main

EVERY = pytest.mark.parametrize("algorithm", CATALOGUE, ids=lambda algorithm: algorithm.name)
RANKS = (*range(1, 10), 16, 17)


@EVERY
def test_is_proven_and_costs_what_it_says(algorithm: Algorithm) -> None:
    """``python -m tests.algorithms.prove`` does so for all numbers of ranks up to 33, which takes two minutes."""
    met: dict[str, bool] = {}
    for ranks in RANKS:
        for parameters in algorithm.cases(ranks):
            program = algorithm.factory(**parameters)
            assert type(program.collective) is algorithm.collective
            assert program.collective.size == ranks
            found = counted(program)
            assert differences(algorithm, ranks, parameters, found) == []
            for field in fields(Cost):
                reached = getattr(found, field.name) == getattr(algorithm.cost(ranks, parameters), field.name) > 0
                met[field.name] = met.get(field.name, False) or reached
    for field in fields(Cost):
        assert met[field.name] or getattr(algorithm, field.name) == "0", f"the bound of {field.name} is never met"


@EVERY
def test_keeps_the_contract_on_bits_that_it_says(algorithm: Algorithm) -> None:
    found = {
        kept(algorithm.factory(**parameters).compile(instances=2))
        for ranks in range(3, 10)
        for parameters in algorithm.cases(ranks)
    }
    assert min(found, key=(None, *CONTRACTS).index) == algorithm.sums


@pytest.mark.parametrize(
    "algorithm",
    [a for a in CATALOGUE if a.takes is catalogue.ANY and "log" in a.rounds + a.hops],
    ids=lambda algorithm: algorithm.name,
)
def test_33_ranks(algorithm: Algorithm) -> None:
    """Where one rank more than a power of two makes a round more."""
    parameters = algorithm.cases(33)[-1]
    assert differences(algorithm, 33, parameters, counted(algorithm.factory(**parameters))) == []


@pytest.mark.parametrize("algorithm", [a for a in CATALOGUE if a.takes in (EVEN, POWERS_OF_TWO)], ids=lambda a: a.name)
def test_other_numbers_of_ranks_are_refused(algorithm: Algorithm) -> None:
    for ranks in range(1, 18):
        if not algorithm.cases(ranks):
            with pytest.raises(ValueError, match=rf"(number|power of two) of ranks.*not {ranks}"):
                algorithm.factory(ranks)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(a, name) for a in CATALOGUE for name in a.takes.shapes(8)[0]],
    ids=lambda v: getattr(v, "name", v),
)
def test_no_ranks_are_refused(algorithm: Algorithm, name: str) -> None:
    nothing = {"counts": (), "levels": (0, 2), "node_of": ()}.get(name, 0)
    with pytest.raises(ValueError, match=r"(ranks|chunks) must be|number of ranks|square table"):
        algorithm.factory(**algorithm.cases(8)[0] | {name: nothing})


def test_a_tree_has_a_radix() -> None:
    with pytest.raises(ValueError, match="radix of at least 2, not 1"):
        knomial.broadcast(4, radix=1)


@pytest.mark.parametrize("factory", [ring.all_reduce, ring.all_gather, ring.reduce_scatter])
def test_a_ring_has_a_channel(factory: Callable[..., Program]) -> None:
    with pytest.raises(ValueError, match="at least 1 channel, not 0"):
        factory(3, channels=0)


@pytest.mark.parametrize("factory", [movement_avoiding.reduce, dpml.all_reduce])
def test_a_machine_has_a_socket(factory: Callable[..., Program]) -> None:
    with pytest.raises(ValueError, match="at least one socket, not 0"):
        factory(3, sockets=0)


def test_ranks_fill_sockets_evenly() -> None:
    assert movement_avoiding.by_socket(7, 2) == [range(3), range(3, 7)]
    assert movement_avoiding.by_socket(2, 3) == [range(1), range(1, 2)]


def test_every_program_of_the_library_is_in_it_once() -> None:
    found = set()
    for module in pkgutil.iter_modules(hocket.algorithms.__path__, "hocket.algorithms."):
        for name, function in vars(importlib.import_module(module.name)).items():
            if inspect.isfunction(function) and inspect.get_annotations(function).get("return") == "Program":
                found.add((module.name, name))
    listed = [(algorithm.factory.__module__, algorithm.factory.__name__) for algorithm in CATALOGUE]
    assert len(listed) == len(set(listed))
    assert set(listed) == found


def test_a_case_for_every_split_of_the_ranks() -> None:
    assert catalogue.TWO_LEVELS.shapes(6) == [
        {"nodes": 1, "gpus": 6},
        {"nodes": 2, "gpus": 3},
        {"nodes": 3, "gpus": 2},
        {"nodes": 6, "gpus": 1},
    ]
    assert [case["levels"] for case in catalogue.ANY_LEVELS.shapes(8)] == [(8,), (2, 4), (4, 2), (2, 2, 2)]


def test_the_document_shows_the_catalogue() -> None:
    assert table.shown(table.DOCUMENT.read_text()) == table.table()


# The counting itself ----------------------------------------------------------------------------------------


def costs(program: Program) -> tuple[Fraction | int, ...]:
    found = counted(program)
    return tuple(getattr(found, field.name) for field in fields(Cost))


def test_counts_of_programs_counted_by_hand() -> None:
    with Program(Broadcast(4, 2, inplace=True)) as star:  # one way out of the root
        for rank in (1, 2, 3):
            chunk(0, "out", 0, 2).copy(rank, "out", 0)
    assert costs(star) == (1, 3, 3, 0, 0)
    with Program(Broadcast(4, 2, inplace=True)) as halves:  # the second half follows the first; 3 gets it all from 2
        for half in (0, 1):
            c = chunk(0, "out", half)
            for rank in (1, 2, 3):
                c = c.copy(rank, "out", half)
    assert costs(halves) == (3, 3, 1, 0, 0)
    with Program(AllReduce(2, inplace=True)) as swap:  # read at the beginning of a round, stored at its end
        one, two = chunk(0, "in", 0), chunk(1, "in", 0)
        saved = one.copy(1, "sc", 3)
        one.reduce(two)
        two.reduce(saved)
    assert costs(swap) == (1, 1, 1, 1, 4)
    with Program(AllGather(3)) as star_of_three:  # 1 to 0; 2 to 0 and 0 to 2; 0 to 1, which waits for the block of 2
        for rank in range(3):
            chunk(rank, "in", 0).copy(rank, "out", rank)
        chunk(1, "out", 1).copy(0, "out", 1)
        chunk(2, "out", 2).copy(0, "out", 2)
        for rank in (1, 2):
            for index in {0, 1, 2} - {rank}:
                chunk(0, "out", index).copy(rank, "out", index)
    assert costs(star_of_three) == (2, 3, 4, 0, 0)


def test_a_wrong_formula_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = next(algorithm for algorithm in CATALOGUE if algorithm.factory is ring.all_gather)
    for wrong in (replace(honest, rounds="p"), replace(honest, rounds="≤ p - 2"), replace(honest, scratch="1")):
        monkeypatch.setattr("tests.algorithms.prove.CATALOGUE", (wrong,))
        with pytest.raises(SystemExit, match=r"ring:all_gather .* is 2, not|scratch is 0, not 1 = 1"):
            main(3)
    monkeypatch.setattr("tests.algorithms.prove.CATALOGUE", (replace(honest, rounds="≤ p"),))
    main(3)
    assert "6 programs: all proven, 0 other than said" in capsys.readouterr().out


def test_rounds_are_not_counted_where_that_would_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    program = direct.all_to_all(8)
    schedule = program.compile()
    assert count(schedule, program.chunk_dag).rounds == 7
    assert count(schedule).rounds is None
    monkeypatch.setattr(cost, "_MOST_LOOKS", 100)
    assert count(schedule, program.chunk_dag).rounds is None
    assert count(schedule, program.chunk_dag).volume == 7


def test_a_long_chain_of_local_operations_is_counted() -> None:
    with Program(Broadcast(1)) as p:
        c = chunk(0, "in", 0)
        for index in range(2000):
            c = c.copy(0, "sc", index)
        c.copy(0, "out", 0)
    assert count(p.compile(), p.chunk_dag).rounds == 0
