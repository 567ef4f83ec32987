import enum
from collections.abc import Callable
from typing import NoReturn

from numpy import generic
from numpy.typing import NDArray

PLAN_MAGIC: int
PLAN_LAYOUT: dict[str, tuple[str, ...]]
ISA: str
ISAS: tuple[str, ...]
TYPES: tuple[str, ...]
OPERATORS_OF: dict[str, tuple[str, ...]]
OPERATORS: tuple[str, ...]
FILE_BYTES: int
STAMP: int
MOST_CONNECTIONS: int
MOST_READERS: int
PROTOCOL: str

class Fault(enum.Enum):
    MISMATCH = ...
    REFUSED = ...
    MEMORY = ...
    PEER = ...
    TIMEOUT = ...
    INTERRUPTED = ...
    DEAD = ...
    BUSY = ...

class Outcome:
    @property
    def fault(self) -> Fault: ...
    @property
    def rank(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def waited(self) -> float: ...
    @property
    def stall(self) -> tuple[int, int, int, int] | None:
        """Thread block, step, tile, and the rank it waits for."""
    @property
    def said(self) -> list[CallHeader]:
        """With MISMATCH: what every rank called, in rank order."""

class CallHeader:
    @property
    def digest(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def tile(self) -> int: ...
    @property
    def type(self) -> int: ...
    @property
    def op(self) -> int: ...
    @property
    def counts(self) -> int: ...
    @property
    def counted(self) -> bool: ...
    @property
    def pairwise(self) -> bool: ...
    @property
    def size_known(self) -> bool: ...
    @property
    def text(self) -> bytes: ...

class Plan: ...

class Units:
    def __init__(self, input: list[int], output: list[int], digest: int | None, text: str) -> None:
        """Bounds of units in bytes; ``digest``: of all units of all ranks, None where a rank knows only its own."""

class Flight:
    """A call in the background."""

    def done(self) -> bool: ...
    def wait(self) -> Outcome | None: ...

class Member:
    def __init__(
        self,
        rank: int,
        size: int,
        descriptor: int,
        lifelines: list[int],
        spins: int,
        yields: int,
        timeout: float,
        threads: int = 1,
        cache_bytes: int = ...,
    ) -> None: ...
    def plan(self, words: bytes, digest: int, name: str) -> Plan: ...
    def run(
        self,
        plan: Plan,
        input: NDArray[generic] | None,
        output: NDArray[generic] | None,
        n: int | None,
        type: int,
        op: int,
        tile: int,
        initial: NDArray[generic] | None = None,
        initial_place: int = 0,
        units: Units | None = None,
    ) -> Outcome | None: ...
    def start(
        self,
        plan: Plan,
        input: NDArray[generic] | None,
        output: NDArray[generic] | None,
        n: int | None,
        type: int,
        op: int,
        tile: int,
        initial: NDArray[generic] | None = None,
        initial_place: int = 0,
        units: Units | None = None,
    ) -> Flight: ...
    def start_barrier(self) -> Flight: ...
    def start_refusal(self, why: str) -> Flight: ...
    def barrier(self) -> Outcome | None: ...
    def exchange(self, word: str) -> Outcome | list[str]:
        """What every rank said, in rank order."""
    def refuse(self, why: str) -> Outcome | None: ...
    def traffic(self) -> tuple[int, int]:
        """Bytes loaded and stored by the kernels in all calls that have ended."""
    def leave(self) -> None: ...
    def fail(self, culprit: int, why: str) -> None: ...
    def forked(self) -> None: ...

class Known:
    """Calls by name that are known to be good."""

    def __init__(self, member: Member, long_way: Callable[..., object], failed: Callable[..., NoReturn]) -> None: ...
    @property
    def call(self) -> Callable[..., object]:
        """Makes a call that is known; for any other it calls ``long_way`` with the same arguments."""
    def learn(
        self,
        arguments: tuple[object, ...],
        plan: Plan,
        schedule: object,
        input: NDArray[generic] | None,
        output: NDArray[generic] | None,
        n: int,
        type: int,
        op: int,
        initial: NDArray[generic] | None,
        place: int,
        result: NDArray[generic] | None,
        taken: int | None,
        average: bool,
    ) -> None:
        """Enter a call that has succeeded: its arguments, and the arrays that it worked on.

        ``taken``: the byte of the input from which on the result was copied.
        """
    def clear(self) -> None: ...

def reserve_control(descriptor: int, ranks: int) -> int:
    """Make sure that there is memory for the control region. Returns 0 or an errno."""

def divide(array: NDArray[generic], type: int, p: int, isa: str = ...) -> None: ...
def reduce(
    destinations: list[NDArray[generic]],
    sources: list[NDArray[generic]],
    type: int,
    op: int,
    isa: str,
    last: int = 0,
) -> None: ...
def cut(
    n: int, itemsize: int, chunks: int, widest: int, most: int, tile: int, work: int = 1, depth: int = 1
) -> tuple[int, int, int]: ...
def piece(
    n: int,
    itemsize: int,
    chunks: int,
    tile_bytes: int,
    unit: int,
    position: int,
    skip: int,
    tile: int,
    bounds: list[int] = ...,
) -> tuple[int, int]: ...
