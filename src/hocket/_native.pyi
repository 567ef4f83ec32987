from collections.abc import Callable, Mapping, Sequence
import enum
import threading
from typing import Generic, Literal, TypeVar

import numpy
import numpy.typing

PLAN_MAGIC: int = 1751842826

PLAN_LAYOUT: dict[str, tuple[str, ...]]

MOST_READERS: int = 31

FILE_BYTES: int = 18014399583223808

PLANS: int = 536870912

STAMP: int = 1073737728

ADOPTED: int = 72057594037927936

SPLIT: int = 1

ADOPT: int = 2

USE: int = 3

LOOK: int = 4

WITNESS: int

def can_attach(process: int, witness: int) -> bool:
    """
    Whether this process may read what another has at its WITNESS, and store it there again.
    """

def reserve_control(descriptor: int, ranks: int, on_several_nodes: bool) -> int:
    """
    Make sure that there is memory for the control region. Returns 0 or an errno.
    """

MOST_CONNECTIONS: int = 16777216

PROTOCOL: str

ISA: str

ISAS: tuple[str, ...]

TYPES: tuple[str, ...]

TYPE_BYTES: dict[str, int]

OPERATORS_OF: dict[str, tuple[str, ...]]

OPERATORS: tuple[str, ...]

def reduce(
    destinations: Sequence[numpy.typing.NDArray[numpy.generic]],
    sources: Sequence[numpy.typing.NDArray[numpy.generic]],
    type: int,
    op: int,
    isa: str,
    last: int = 0,
    divisor: int | None = None,
    factor: float = 1.0,
    ahead: int = 0,
    stored_ahead: int = 0,
) -> None: ...

class Geometry:
    @property
    def chunk(self) -> int: ...
    @property
    def tile(self) -> int: ...
    @property
    def tiles(self) -> int: ...

class Piece:
    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...

def cut(
    n: int, itemsize: int, chunks: int, widest: int, most: int, tile: int, work: int = 1, depth: int = 1
) -> Geometry: ...
def piece(
    n: int,
    itemsize: int,
    chunks: int,
    tile_bytes: int,
    unit: int,
    position: int,
    skip: int,
    tile: int,
    bounds: Sequence[int] = [],
) -> Piece: ...

class CacheLevel:
    """The bytes of one cache, and how many there are."""

    @property
    def bytes(self) -> int: ...
    @property
    def instances(self) -> int: ...

class Caches:
    @property
    def second(self) -> CacheLevel: ...
    @property
    def third(self) -> CacheLevel: ...
    def bytes(self, ranks: int) -> int:
        """What those of so many ranks hold together (YHCCL, section 4)."""

def find_caches(processors: int, cpus: str) -> Caches:
    """Those of so many processors."""

class Tunable:
    """A tuned number, with its default on this processor."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def least(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def scope(self) -> Literal["common", "local", "fixed"]:
        """Who must have the same value."""

    @property
    def value(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def reason(self) -> str: ...

TUNABLES: list[Tunable]

class Fault(enum.Enum):
    NONE = 0

    MISMATCH = 1

    REFUSED = 2

    DECLINED = 3

    MEMORY = 4

    PEER = 5

    TIMEOUT = 6

    INTERRUPTED = 7

    DEAD = 8

    BUSY = 9

class Stall:
    """Where a call stood, and the rank that it waited for."""

    @property
    def block(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def peer(self) -> int: ...

class Outcome:
    @property
    def fault(self) -> Fault: ...
    @property
    def rank(self) -> int: ...
    @property
    def variant(self) -> int:
        """
        How the call went: 0 through slots or eagerly, else 1 + that of VARIANTS.
        """

    @property
    def text(self) -> str: ...
    @property
    def waited(self) -> float: ...
    @property
    def stall(self) -> Stall | None: ...
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
    def element(self) -> int:
        """
        A hash of what elements are whose type has no number, or of what is made of a sum.
        """

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
    def text(self) -> str:
        """
        The schedule's name; on further lines the counts, and what ``element`` is a hash of.
        """

class CallEvent:
    """
    A call that has ended. Times are nanoseconds of CLOCK_MONOTONIC, sizes bytes.
    """

    @property
    def number(self) -> int:
        """The same on all ranks."""

    @property
    def plan(self) -> int:
        """The number of a plan; BARRIER; 0: an exchange of words."""

    @property
    def begin(self) -> int: ...
    @property
    def agreed(self) -> int:
        """When all ranks had entered it; 0 if it was not carried out."""

    @property
    def end(self) -> int: ...
    @property
    def unit(self) -> int: ...
    @property
    def tile(self) -> int: ...
    @property
    def tiles(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def streams(self) -> bool: ...
    @property
    def fault(self) -> Fault: ...

class StepEvent:
    """A step on one tile, in a call of this number."""

    @property
    def call(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def tile(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The length of its operands in this tile."""

    @property
    def block(self) -> int: ...
    @property
    def step(self) -> int: ...

BARRIER: int = 1

class Recorded:
    """
    What there was room for, the steps by thread, and how many others there were.
    """

    @property
    def calls(self) -> list[CallEvent]: ...
    @property
    def steps(self) -> list[list[StepEvent]]: ...
    @property
    def dropped_calls(self) -> int: ...
    @property
    def dropped_steps(self) -> int: ...

class Recorder:
    """
    What a communicator does. Calls and steps that do not fit are counted as dropped.
    """

    def __init__(self, threads: int, most_calls: int, most_steps: int) -> None:
        """``most_steps``: of each thread."""

    def read(self) -> Recorded: ...

class Plan:
    @property
    def number(self) -> int:
        """No other plan of its communicator has it."""

class Outlook:
    """How a call would run. Sizes in bytes; ``slots`` of a connection."""

    @property
    def tile(self) -> int: ...
    @property
    def tiles(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def one_round(self) -> bool:
        """Whether it is eager, where no rank offers its arrays."""

    @property
    def attached_bytes(self) -> int:
        """
        The fewest of a rank's larger buffer, in a cache and in huge pages, with which others may attach to it.
        """

    @property
    def touched(self) -> int:
        """On all ranks."""

    @property
    def streams(self) -> bool:
        """Whether it stores non-temporally, as no cache holds what it touches."""

    @property
    def threads(self) -> int: ...

class Units:
    def __init__(self, input: Sequence[int], output: Sequence[int], digest: int | None, text: str) -> None:
        """
        Bounds of units in bytes; ``digest``: of all units of all ranks, None where a rank knows only its own.
        """

class Arena:
    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""

    @property
    def descriptor(self) -> int: ...
    def allocate(self, bytes: int) -> Loan: ...
    def forked(self) -> None: ...

class Loan:
    """Memory, given back at its end."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

Result = TypeVar("Result")

class Handle(Generic[Result]):
    """
    A call that goes on in the background. Its arrays are the call's until it is done.
    """

    def done(self) -> bool:
        """
        Whether the call has ended: ``wait`` does not wait any more. Does not raise.
        """

    def wait(self) -> Result:
        """
        Wait for the end of the call. Returns and raises what the call would, as often as it is asked.
        """

    def add_done_callback(self, callback: Callable[[Handle[Result]], object]) -> None:
        """
        Have ``callback`` called with this handle once the call has ended, as ``concurrent.futures`` does.

        At once if it has ended, else on a thread that is there for callbacks, where what it raises is logged. Callbacks
        that have not been called when the process ends are not called.
        """

def ready_callbacks() -> list[Callable[[], object]]:
    """Wait for callbacks of calls that have ended. None: there are no more."""

def let_go() -> None:
    """Forgets the calls in the background that have ended."""

def wait_any(handles: Sequence[Handle[Result]]) -> int: ...

class Member:
    def __init__(
        self,
        rank: int,
        size: int,
        descriptor: int,
        lifelines: Sequence[int],
        arenas: Sequence[int],
        arena: Arena,
        processes: Sequence[int],
        always_attaches: bool,
        crowded: bool,
        spins: int,
        yields: int,
        timeout: float,
        threads: int = 1,
        team_bytes: int = 0,
        cache_bytes: int = 18446744073709551615,
        looks: bool = False,
        recorder: Recorder | None = None,
        tunables: Mapping[str, int] = {},
        nodes: Sequence[int] = [],
        mpi: int = 0,
        latency: float = 0.0,
        bandwidth: float = 0.0,
    ) -> None: ...
    def plan(self, words: bytes, digest: int, name: str) -> Plan: ...
    def outlook(self, plan: Plan, n: int, type: int, tile: int, input: bool, output: bool) -> Outlook:
        """
        How a call of n elements a unit would run, with an array for the input, for the output. Local.
        """

    def barrier(self, timeout: float) -> Outcome | None:
        """``timeout``: 0 for that of the communicator."""

    def exchange(self, word: str, digest: int) -> Outcome | list[str]:
        """What every rank said, in rank order. ``digest``: SPLIT, ADOPT or USE."""

    def refuse(self, why: str, declines: bool = False) -> Outcome: ...
    def start_barrier(self, owner: object, timeout: float) -> Handle[None]: ...
    def start_refusal(self, owner: object, why: str) -> Handle[None]: ...
    @property
    def calls(self) -> int:
        """Made so far, and the same on all ranks."""

    def watch(self, arms: KeyArms) -> None:
        """From now on looks take these into account."""

    def next_merge(self, at: int, between_looks: int) -> None:
        """
        The number of calls at which ranks merge at the latest, and the calls between looks until then.
        """

    @property
    def look_ticks(self) -> int:
        """Of the look that took least: of others some is waiting."""

    @property
    def tick(self) -> float:
        """Seconds of a tick of the clock that calls are timed with."""

    def land(self) -> None:
        """Waits for the calls in the background."""

    @property
    def network_bytes(self) -> int:
        """Of messages that this rank has sent to ranks of other nodes."""

    def traffic(self) -> Traffic:
        """That of the kernels in all calls that have ended."""

    def leave(self) -> None: ...
    def forked(self) -> None: ...
    def ended(self, rank: int) -> Outcome | None:
        """
        Why a rank will make no more calls, and whose fault that is; None if it may. Local: no other takes part.
        """

    def fail(self, culprit: int, why: str) -> None: ...
    def holds(self, address: int) -> bool:
        """
        Whether it lies in memory that the other ranks can access: this rank's arena, or adopted.
        """

    def adopt(self, others: Sequence[Adoption], place: int, address: int, nbytes: int) -> Outcome | None:
        """The last three are of what this rank adopts; no bytes: nothing."""

    def release(self, place: int) -> Outcome | None: ...

class Traffic:
    @property
    def loaded(self) -> int: ...
    @property
    def stored(self) -> int: ...

class SharedPages:
    """Pages of a file, mapped as long as this lives."""

    def __init__(self, descriptor: int, place: int, bytes: int) -> None: ...

class Adoption:
    """What another rank has adopted, or released: then there are no pages."""

    def __init__(self, rank: int, place: int, pages: SharedPages | None = None, skip: int = 0) -> None: ...

class Buffer:
    """
    Memory as an argument of a ``PreparedCall``, whoever allocated it.

    ``address`` is a multiple of 4, or of an element's size. ``dtype``: the name of a type that can be combined;
    "bfloat16" needs no ml_dtypes. The memory must stay until the call has ended. After an error in the middle of a
    call, other than one of arguments, another rank may for a moment still write to memory that was given to it; on
    several nodes, MPI may access it until the process ends.
    """

    def __init__(self, address: int, nbytes: int, dtype: str) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def __repr__(self) -> str: ...

class Source(enum.Enum):
    """
    Which memory is a buffer of a call. SCRATCH: as long as x, of each execution.
    """

    NOTHING = 0

    X = 1

    OUT = 2

    SCRATCH = 3

class Omitted(enum.Enum):
    """
    What out is where the caller gives none. FRESH: an array that each execution allocates.
    """

    REFUSED = 0

    X = 1

    FRESH = 2

class Operand:
    def __init__(
        self, dtype: numpy.dtype[numpy.generic] | None, shape: Sequence[int], nbytes: int, written: bool
    ) -> None: ...

class Operands:
    def __init__(self, x: Operand | None, out: Operand | None, between: int | None, omitted: Omitted) -> None: ...

class Terms:
    def __init__(
        self,
        n: int | None,
        type: int,
        op: int,
        tile: int,
        element: str | None,
        units: Units | None,
        timeout: float,
        factor: float | None,
    ) -> None:
        """
        ``timeout``: 0 for that of the communicator. ``factor``: what makes an average a sum that is multiplied.
        """

class Binding:
    def __init__(
        self, input: Source, output: Source, initial: Source, result: Source, place: int, taken: int | None
    ) -> None:
        """See Bound in hocket/runtime/buffers.py."""

class Alternatives:
    def __init__(
        self, plans: Sequence[Plan | None], input: Source, output: Source, shared: bool, private: bool
    ) -> None:
        """As hocket/runtime/execution.py has them."""

ARMS: int = 16

class Timings:
    """
    Of calls by an arm: how many, the sums of log2 of ticks and of its square.
    """

    @property
    def count(self) -> int: ...
    @property
    def sum(self) -> float: ...
    @property
    def squares(self) -> float: ...

class Noted:
    """Calls of a key; those of each arm that were timed."""

    @property
    def calls(self) -> int: ...
    @property
    def timings(self) -> list[Timings]: ...

class KeyArms:
    """The arms of the calls of one key (native/policy/arms.h)."""

    def __init__(self) -> None: ...
    def set(self, salt: int, shift: int, incumbent: int, until: Sequence[int]) -> None: ...
    def take(self) -> Noted:
        """What was noted since it was asked last."""

    def took(self, arm: int, ticks: int) -> None:
        """Notes what a call took."""

class PreparedCall:
    """
    A call for which everything is decided but where its buffers lie. Subclasses say what is wrong with arguments.
    """

    def __call__(self, x: _Argument = None, out: _Argument = None) -> _Argument: ...
    def __init__(
        self,
        member: Member,
        plan: Plan,
        terms: Terms,
        operands: Operands,
        binding: Binding,
        alternatives: Alternatives | None,
        only_shared: bool,
        counted: Plan | None | None,
    ) -> None: ...
    def start(self, x: _Argument = None, out: _Argument = None, keep: object = None) -> Handle[_Argument]:
        """
        Make the call in the background. Memory that is no array's must stay until it has ended; ``keep`` does.
        """

    def tune(self, arms: KeyArms) -> None:
        """
        From now on each call takes an arm: this, or one that ``_arm(number, background)`` prepares.
        """

    def release(self) -> None:
        """Let go of the communicator, once it has ended."""

    @property
    def variant(self) -> int:
        """
        How the latest execution that has ended went: 0 through slots or eagerly, else 1 + that of VARIANTS.
        """

class CallCache:
    """Calls by name that have been made before."""

    def __init__(
        self,
        member: Member,
        slow_path: Callable[..., object],
        tensors: type | None = None,
        lock: threading.Lock | None = None,
    ) -> None: ...
    @property
    def call(self) -> Callable[..., object]:
        """
        Makes a call that is known; for any other it calls ``slow_path`` with the same arguments.
        """

    def learn(self, arguments: tuple[object, ...], prepared: PreparedCall) -> None: ...
    def forget(self) -> None:
        """Forgets all calls."""

    def clear(self) -> None:
        """Forgets all calls, and the communicator."""

def brief(
    method: Callable[..., object], attribute: str, defaults: tuple[object, ...], doc: str
) -> Callable[..., object]:
    """
    A method, for a class, that does the same as ``method``, and takes a shorter way when called with arrays alone.

    That is: it calls the attribute of its object with ``defaults``, where the second and third are put in. ``doc`` may
    begin with a signature in CPython's form. The result has no annotations, and no qualified name of its class.
    """

class Pattern:
    """
    Objects of a class of pybind11 in whose C++ value bytes, each by where it lies, are these.
    """

    def __init__(self, type: type, bytes: Sequence[tuple[int, int]]) -> None: ...
    @property
    def fits(self) -> Callable[[object], bool]:
        """Whether an object is one."""

_Array = numpy.typing.NDArray[numpy.generic]
_Parts = list[_Array] | list[Buffer] | list[_Array | Buffer] | tuple[_Array | Buffer, ...]
_Argument = _Array | Buffer | _Parts | int | None
