"""Going to sleep (native/protocol/waiting.h), by exhaustive interleaving of a small model with store buffers.

ThreadSanitizer knows no reordering of a store and a later load, so this is where the sequentially consistent stores of
the handshake are shown to be needed: let either linger in its core's store buffer and a wake-up can be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

# An operation is (kind, word, value). "store" may linger in a buffer that only its own thread sees; "store!" reaches
# memory before anything after it, as "add!", an atomic addition, does. "if" goes on only if the word holds the value,
# and ends the thread otherwise. "note" keeps the value of a word for "sleep", which goes on at once if memory holds
# another by then, and else waits for "wake". After either, a sleeper begins again.
Operation = tuple[str, str, int]
Program = tuple[Operation, ...]
Buffered = tuple[tuple[str, int], ...]


def sleeper(counter: str, raise_: str = "store!") -> Program:
    return (("note", "strikes", 0), (raise_, "raised", 1), ("if", counter, 0), ("sleep", "strikes", 0))


def publisher(counter: str, publish: str = "store!", *, strike_first: bool = False) -> Program:
    lower, strike = ("store", "raised", 0), ("add!", "strikes", 1)
    ring = (strike, lower) if strike_first else (lower, strike)
    return ((publish, counter, 1), ("if", "raised", 1), *ring, ("wake", "strikes", 0))


@dataclass(frozen=True)
class Thread:
    at: int = 0
    noted: int = 0
    asleep: bool = False
    buffer: Buffered = ()  # stores, oldest first


@dataclass(frozen=True)
class World:
    memory: frozenset[tuple[str, int]]
    threads: tuple[Thread, ...]

    def load(self, number: int, word: str) -> int:
        return {**dict(self.memory), **dict(self.threads[number].buffer)}[word]

    def drained(self, number: int, stores: int) -> World:
        """The oldest stores of a thread reach memory."""
        buffer = self.threads[number].buffer
        memory = frozenset({**dict(self.memory), **dict(buffer[:stores])}.items())
        return replace(self, memory=memory).changed(number, buffer=buffer[stores:])

    def settled(self, number: int) -> World:
        return self.drained(number, len(self.threads[number].buffer))

    def changed(
        self,
        number: int,
        *,
        at: int | None = None,
        noted: int | None = None,
        asleep: bool | None = None,
        buffer: Buffered | None = None,
    ) -> World:
        old = self.threads[number]
        new = Thread(
            old.at if at is None else at,
            old.noted if noted is None else noted,
            old.asleep if asleep is None else asleep,
            old.buffer if buffer is None else buffer,
        )
        return replace(self, threads=(*self.threads[:number], new, *self.threads[number + 1 :]))


def successors(world: World, programs: tuple[Program, ...]) -> Iterator[World]:
    for number, program in enumerate(programs):
        thread = world.threads[number]
        if thread.buffer:
            yield world.drained(number, 1)
        if thread.at == len(program) or thread.asleep:
            continue
        kind, word, value = program[thread.at]
        after = world.changed(number, at=thread.at + 1)
        if kind == "store":
            yield after.changed(number, buffer=(*thread.buffer, (word, value)))
        elif kind == "store!":
            yield after.changed(number, buffer=(*thread.buffer, (word, value))).settled(number)
        elif kind == "add!":
            settled = after.settled(number)
            yield replace(
                settled, memory=frozenset({**dict(settled.memory), word: settled.load(number, word) + value}.items())
            )
        elif kind == "if":
            yield after if world.load(number, word) == value else world.changed(number, at=len(program))
        elif kind == "note":
            yield after.changed(number, noted=world.load(number, word))
        elif kind == "sleep":  # a system call is a full barrier
            settled = world.settled(number).changed(number, at=0)
            yield settled.changed(number, asleep=settled.load(number, word) == thread.noted)
        else:
            woken = after.settled(number)
            for other in range(len(programs)):
                woken = woken.changed(other, asleep=False)
            yield woken


def can_oversleep(*programs: Program) -> bool:
    """Whether there is an end in which nobody is left to wake, and a sleeper whose counter has moved sleeps."""
    words = {word for program in programs for _, word, _ in program}
    start = World(frozenset((word, 0) for word in words), tuple(Thread() for _ in programs))
    seen, todo = {start}, [start]
    while todo:
        world = todo.pop()
        following = list(successors(world, programs))
        if not following and any(thread.asleep for thread in world.threads):
            return True
        for new in following:
            if new not in seen:
                seen.add(new)
                todo.append(new)
    return False


def test_no_wake_up_is_lost() -> None:
    assert not can_oversleep(sleeper("counter"), publisher("counter"))


@pytest.mark.parametrize(("raise_", "publish"), [("store", "store!"), ("store!", "store")])
def test_either_store_weakened_loses_one(raise_: str, publish: str) -> None:
    assert can_oversleep(sleeper("counter", raise_), publisher("counter", publish))


def test_two_threads_sleep_on_one_bell() -> None:
    """Each is woken for its own counter, whoever lowers the bell that the other has raised."""
    assert not can_oversleep(sleeper("a"), sleeper("b"), publisher("a"), publisher("b"))


def test_a_bell_that_is_struck_before_it_is_lowered_loses_one() -> None:
    late = publisher("b", strike_first=True)
    assert can_oversleep(sleeper("a"), sleeper("b"), publisher("a", strike_first=True), late)
