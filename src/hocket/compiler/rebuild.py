"""Cutting fused instructions in two again, and putting instructions in a new order."""

from __future__ import annotations

from dataclasses import replace

from hocket.compiler.fuse import unfuse
from hocket.ir.chunk_dag import Span
from hocket.ir.instr_dag import Instr, InstrDag


class Rebuild:
    """Instructions in a new order, some of them cut in two; processing edges follow them.

    What came after a fused instruction comes after its receiving half. Only what overwrites the place in between has
    to come after its sending half too; to ask more would order operations that the program does not order.
    """

    def __init__(self, dag: InstrDag) -> None:
        self._dag = dag
        self._number: list[int] = [0] * len(dag.instrs)
        self._sent: dict[int, int] = {}
        self._instrs: list[Instr] = []

    def place(self, number: int) -> None:
        """The whole instruction comes next."""
        self._add(number, self._dag.instrs[number])

    def place_receive(self, number: int) -> None:
        """Only the receiving half of a fused instruction comes next."""
        self._add(number, unfuse(self._dag.instrs[number])[0])

    def place_send(self, number: int) -> None:
        """The sending half follows."""
        _, send = unfuse(self._dag.instrs[number])
        self._sent[number] = len(self._instrs)
        self._instrs.append(replace(send, after=(self._number[number],)))

    def _add(self, number: int, instr: Instr) -> None:
        after = [self._number[old] for old in instr.after]
        if self._sent:
            after += [
                self._sent[old] for old in instr.after if old in self._sent and overwrites(instr, self._dag.instrs[old])
            ]
        self._number[number] = len(self._instrs)
        after.sort()
        self._instrs.append(Instr(instr.rank, instr.srcs, instr.dsts, tuple(after), None, instr.where))

    def build(self) -> InstrDag:
        return replace(self._dag, instrs=tuple(self._instrs))


def overwrites(instr: Instr, fused: Instr) -> bool:
    """Whether an instruction stores to a chunk that the two halves of a fused one hand on.

    An rrs stores nothing, but what overwrites its place after it relies on it to come after what read the place before.
    """
    between = unfuse(fused)[0].dsts[0]
    assert isinstance(between, Span)
    chunks = set(between.indices())
    received, _, _, stored = instr.shape
    targets = instr.srcs if received and not stored else instr.dsts
    return any(
        isinstance(target, Span) and target.buffer == between.buffer and not chunks.isdisjoint(target.indices())
        for target in targets
    )
