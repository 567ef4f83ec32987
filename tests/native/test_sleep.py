"""Going to sleep (native/cpu/waiting.h), by exhaustive interleaving of a small model with store buffers.

ThreadSanitizer knows no reordering of a store and a later load, so this is where the sequentially consistent stores of
the handshake are shown to be needed: let either linger in its core's store buffer and a wake-up can be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

# Threads: 0 is the sleeper, 1 the publisher. An operation is (kind, word, value). "store" may linger in a buffer that
# only its own thread sees; "store!" reaches memory before anything after it. "if" goes on only if the word holds the
# value. The system calls, "sleep" (which looks at the word once more) and "wake", work on memory.
Operation = tuple[str, str, int]
Programs = tuple[tuple[Operation, ...], tuple[Operation, ...]]


def programs(bell: str, counter: str) -> Programs:
    sleeper: tuple[Operation, ...] = ((bell, "bell", 1), ("if", "counter", 0), ("sleep", "bell", 1))
    publisher: tuple[Operation, ...] = (
        (counter, "counter", 1),
        ("if", "bell", 1),
        ("store", "bell", 0),
        ("wake", "", 0),
    )
    return sleeper, publisher


@dataclass(frozen=True)
class World:
    """Memory; for each thread its position and its buffered stores, oldest first."""

    memory: frozenset[tuple[str, int]] = frozenset({("bell", 0), ("counter", 0)})
    at: tuple[int, int] = (0, 0)
    buffers: tuple[tuple[tuple[str, int], ...], ...] = ((), ())
    asleep: bool = False

    def drained(self, thread: int, stores: int = 1) -> World:
        """The oldest stores of a thread reach memory."""
        buffer = self.buffers[thread]
        memory = frozenset({**dict(self.memory), **dict(buffer[:stores])}.items())
        return replace(self, memory=memory, buffers=self._with(self.buffers, thread, buffer[stores:]))

    def load(self, thread: int, word: str) -> int:
        return {**dict(self.memory), **dict(self.buffers[thread])}[word]

    def moved(self, thread: int, to: int) -> World:
        return replace(self, at=(to, self.at[1]) if thread == 0 else (self.at[0], to))

    def stored(self, thread: int, word: str, value: int) -> World:
        return replace(self, buffers=self._with(self.buffers, thread, (*self.buffers[thread], (word, value))))

    @staticmethod
    def _with(
        buffers: tuple[tuple[tuple[str, int], ...], ...], thread: int, buffer: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[tuple[str, int], ...], ...]:
        return (buffer, buffers[1]) if thread == 0 else (buffers[0], buffer)


def successors(world: World, programs: Programs) -> Iterator[World]:
    for thread, program in enumerate(programs):
        if world.buffers[thread]:
            yield world.drained(thread)
        if world.at[thread] == len(program) or (thread == 0 and world.asleep):
            continue
        kind, word, value = program[world.at[thread]]
        after = world.moved(thread, world.at[thread] + 1)
        if kind == "store":
            yield after.stored(thread, word, value)
        elif kind == "store!":
            stored = after.stored(thread, word, value)
            yield stored.drained(thread, len(stored.buffers[thread]))
        elif kind == "if":
            yield after if world.load(thread, word) == value else world.moved(thread, len(program))
        else:
            settled = after.drained(thread, len(after.buffers[thread]))  # a system call is a full barrier
            yield replace(settled, asleep=kind == "sleep" and dict(settled.memory)[word] == value)


def can_oversleep(programs: Programs) -> bool:
    """Whether there is an end in which the counter has moved, nobody is left to wake, and the sleeper sleeps."""
    seen, todo = {World()}, [World()]
    while todo:
        world = todo.pop()
        following = list(successors(world, programs))
        if not following and world.asleep:
            return True
        for new in following:
            if new not in seen:
                seen.add(new)
                todo.append(new)
    return False


def test_no_wake_up_is_lost() -> None:
    assert not can_oversleep(programs("store!", "store!"))


@pytest.mark.parametrize(("bell", "counter"), [("store", "store!"), ("store!", "store")])
def test_either_store_weakened_loses_one(bell: str, counter: str) -> None:
    assert can_oversleep(programs(bell, counter))
