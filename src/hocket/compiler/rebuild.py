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
        self._order: list[int] = []
        self._number: list[int] = [0] * len(dag.instrs)
        self._sent: dict[int, int] = {}

    def place(self, number: int) -> None:
        """The whole instruction comes next."""
        self._number[number] = len(self._order)
        self._order.append(number)

    def place_receive(self, number: int) -> None:
        """Only the receiving half of a fused instruction comes next."""
        self.place(number)

    def place_send(self, number: int) -> None:
        """The sending half follows."""
        self._sent[number] = len(self._order)
        self._order.append(number)

    def build(self) -> InstrDag:
        dag, number, sent = self._dag, self._number, self._sent
        instrs: list[Instr] = []
        after: list[tuple[int, ...]] = []
        for here, old in enumerate(self._order):
            instr, before = dag.instrs[old], dag.after[old]
            if sent and old in sent:
                receive, send = unfuse(instr)
                if here == sent[old]:
                    instrs.append(send)
                    after.append((number[old],))
                    continue
                instr = receive
            instrs.append(instr)
            moved = [number[d] for d in before]
            if sent:
                moved += [sent[d] for d in before if d in sent and overwrites(instr, dag.instrs[d])]
            if len(moved) > 1:
                moved.sort()
            after.append(tuple(moved))
        return replace(dag, instrs=tuple(instrs), after=tuple(after))


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
