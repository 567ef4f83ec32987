"""Random valid programs, with a model that says what each must compute."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket import AllReduce, Custom, Program, Reduce, ReduceScatter, Schedule, chunk, parallelize
from hocket.ir.chunk_dag import STORAGES, Storage
from hocket.semantics import reference

CHUNKS = 3
"""Chunks of each buffer of each rank."""

Place = tuple[int, str, int]


@dataclass(frozen=True)
class Operation:
    """One copy or reduce of ``count`` chunks, with its directives."""

    kind: str
    src: Place
    dst: Place
    count: int
    channel: int | None
    factor: int
    storage: Storage | None


@dataclass(frozen=True)
class Case:
    """A program to be: its operations, and what each output chunk then holds (None: nothing, or a chunk twice)."""

    ranks: int
    inplace: bool
    operations: tuple[Operation, ...]
    outputs: dict[Place, frozenset[tuple[int, int]] | None]

    def program(self) -> Program:
        collective = Custom(
            self.ranks,
            inputs=CHUNKS,
            outputs=CHUNKS,
            post=lambda rank, index: self.outputs.get((rank, "out", index)),
            inplace=self.inplace,
        )
        with Program(collective, name="random") as program:
            for op in self.operations:
                with parallelize(op.factor) if op.factor > 1 else nullcontext():
                    source = chunk(*op.src, op.count)
                    if op.kind == "copy":
                        source.copy(*op.dst, ch=op.channel, storage=op.storage)
                    else:
                        chunk(*op.dst, op.count).reduce(source, ch=op.channel, storage=op.storage)
        return program

    def run(self, inputs: list[NDArray[np.float64]]) -> dict[Place, NDArray[np.float64]]:
        """Execute the operations one after another, as the language defines them."""
        parts = {(r, "in", i): part for r in range(self.ranks) for i, part in enumerate(np.split(inputs[r], CHUNKS))}
        for op in self.operations:
            values = [parts[self.name(op.src, i)] for i in range(op.count)]
            for i, value in enumerate(values):
                place = self.name(op.dst, i)
                parts[place] = value if op.kind == "copy" else parts[place] + value
        return parts

    def name(self, place: Place, offset: int = 0) -> Place:
        rank, buffer, index = place
        return rank, "in" if self.inplace and buffer == "out" else buffer, index + offset


def random_average(rng: random.Random, ranks: int) -> Program:
    """A sum over all ranks of random chunks at a time, in a random order, from which outputs are copied from anywhere.

    Many a step that adds several chunks completes the sum of some and not of others.
    """
    kind = rng.choice((AllReduce, ReduceScatter, Reduce))
    collective = kind(ranks, rng.randint(1, 3), rng.random() < 0.5)
    chunks, everyone = collective.inputs(0), (1 << ranks) - 1
    held = {(r, c): 1 << r for r in range(ranks) for c in range(chunks)}  # whose terms a place has
    with Program(collective, name="random_average") as program:
        while any(0 < mask < everyone for mask in held.values()):
            source, target = rng.sample(range(ranks), 2)
            first = rng.randrange(chunks)
            count = rng.randint(1, chunks - first)
            added = [(held[source, c], held[target, c]) for c in range(first, first + count)]
            if all(a and b for a, b in added):
                chunk(target, "in", first, count).reduce(chunk(source, "in", first, count), storage=_storage(rng))
                for c in range(first, first + count):
                    held[target, c] |= held[source, c]
                    held[source, c] = 0
        for c in range(chunks):
            places: list[Place] = [next((r, "in", c) for r in range(ranks) if held[r, c])]
            outputs: list[Place] = [
                (r, "out", i)
                for r in range(ranks)
                for i in range(collective.outputs(r))
                if collective.required(r, i) == ((c, everyone),)
            ]
            for place in rng.sample(outputs, len(outputs)):
                if collective.inplace and places[0] == (place[0], "in", c):
                    continue
                chunk(*rng.choice(places)).copy(*place, storage=_storage(rng))
                places.append(place)
    return program


def _storage(rng: random.Random) -> Storage | None:
    return rng.choice((None, None, None, *STORAGES))


def random_case(rng: random.Random, *, directives: bool = True) -> Case:
    """2 to 6 ranks, up to 24 operations between any places, counts 1 to 3."""
    ranks = rng.randint(2, 6)
    inplace = rng.random() < 0.3
    case = Case(ranks, inplace, (), {})
    held: dict[Place, frozenset[tuple[int, int]] | None] = {
        (r, "in", i): frozenset({(r, i)}) for r in range(ranks) for i in range(CHUNKS)
    }
    operations: list[Operation] = []
    wanted = rng.randint(1, 24)
    while len(operations) < wanted:
        count = rng.choice((1, 1, 1, 2, 3))
        src, dst = (
            (rng.randrange(ranks), rng.choice(("in", "out", "sc")), rng.randrange(CHUNKS - count + 1)) for _ in "sd"
        )
        kind = rng.choice(("copy", "reduce"))
        sources = [case.name(src, i) for i in range(count)]
        targets = [case.name(dst, i) for i in range(count)]
        if not all(s in held for s in sources) or set(sources) & set(targets):
            continue
        if kind == "reduce" and not all(t in held for t in targets):
            continue
        for s, t in zip(sources, targets, strict=True):
            mine, theirs = held[s], held.get(t)
            if kind == "copy":
                held[t] = mine
            else:
                held[t] = None if mine is None or theirs is None or mine & theirs else mine | theirs
        channel = rng.choice((None, None, 0, 1, 2)) if directives else None
        factor = rng.choice((1, 1, 1, 1, 2, 3)) if directives else 1
        storage = rng.choice((None, None, None, *STORAGES)) if directives else None
        operations.append(Operation(kind, src, dst, count, channel, factor, storage))
    outputs = {(r, "out", i): held.get(case.name((r, "out", i))) for r in range(ranks) for i in range(CHUNKS)}
    return Case(ranks, inplace, tuple(operations), outputs)


def check_reference(case: Case, schedule: Schedule, seed: int, n: int = 12) -> None:
    """The reference, in a random order of events, computes to the bit what the operations say."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(CHUNKS * n) for _ in range(case.ranks)]
    expected = case.run(inputs)
    found = reference(schedule, inputs, seed=seed)
    for (rank, _, index), holds in case.outputs.items():
        if holds is not None:
            part = found[rank][index * n : (index + 1) * n]
            assert part.tobytes() == expected[case.name((rank, "out", index))].tobytes(), (rank, index)
