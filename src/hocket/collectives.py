"""What a collective promises: buffers, precondition and postcondition (paper section 3.2).

A collective is a plain value. It says how many chunks each buffer of each rank has, which of them hold data at the
start, what each chunk of the output must hold at the end, and whether input and output are one memory.
"""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, SupportsIndex, get_args

from hocket.errors import InvalidArgument, caller

BufferName = Literal["in", "out", "sc"]
BUFFERS: tuple[BufferName, ...] = get_args(BufferName)

Contribution = tuple[int, int]
"""An input chunk: (rank, index)."""

Sum = tuple[tuple[int, int], ...]
"""A set of input chunks to be added: for each chunk index, ascending, the set of ranks as a bit mask. Bit masks keep a
sum over a thousand ranks in a few words, for what is promised and for what the proof finds alike."""


def as_sum(chunks: Iterable[Contribution]) -> Sum:
    """The set of the given input chunks."""
    masks: dict[int, int] = {}
    for rank, index in chunks:
        masks[index] = masks.get(index, 0) | 1 << rank
    return tuple(sorted(masks.items()))


def members(total: Sum) -> list[Contribution]:
    """The input chunks in a set, by index, then rank."""
    return [(rank, index) for index, mask in total for rank in range(mask.bit_length()) if mask >> rank & 1]


@dataclass(frozen=True, slots=True)
class Alias:
    """On one rank, ``buffer[i]`` is another name of ``target[offset + i]``."""

    buffer: BufferName
    target: BufferName
    offset: int


MOST_CHUNKS = 1 << 26
"""Of all ranks: more are refused before memory is taken for them."""


@dataclass(frozen=True)
class Collective(ABC):
    """Base of all collectives.

    ``ranks`` is a number, or a shape such as ``(nodes, gpus)``; then ranks and indices may be tuples, flattened
    row-major. ``chunks`` is the number of chunks of one *unit*: of the whole buffer, or of one rank's block.
    """

    name: ClassVar[str]

    ranks: int | tuple[int, ...]
    chunks: int = 1
    inplace: bool = False

    def __post_init__(self) -> None:
        shape = [whole(n) for n in (self.ranks if isinstance(self.ranks, tuple) else (self.ranks,))]
        if not shape or any(n is None or n < 1 for n in shape):
            raise InvalidArgument(f"ranks must be a positive number or a tuple of them, not {self.ranks!r}", caller())
        self._normalize("ranks", tuple(shape) if len(shape) > 1 else shape[0])
        chunks = whole(self.chunks)
        if chunks is None or chunks < 1:
            raise InvalidArgument(f"chunks must be a positive number, not {self.chunks!r}", caller())
        self._normalize("chunks", chunks)
        if self.size * chunks > MOST_CHUNKS:
            raise InvalidArgument(f"ranks times chunks must be no more than {MOST_CHUNKS}", caller())
        if not isinstance(self.inplace, bool):
            raise InvalidArgument(f"inplace must be True or False, not {self.inplace!r}", caller())

    def _normalize(self, name: str, value: object) -> None:
        """Keep one form of a field, so that equal collectives compare and print alike."""
        object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.ranks if isinstance(self.ranks, int) else math.prod(self.ranks)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.ranks,) if isinstance(self.ranks, int) else self.ranks

    @abstractmethod
    def input_blocks(self, rank: int) -> int:
        """Units in the input buffer of ``rank``, each of ``chunks`` chunks."""

    @abstractmethod
    def output_blocks(self, rank: int) -> int:
        """Units in the output buffer of ``rank``, each of ``chunks`` chunks."""

    def most_blocks(self) -> int:
        """Units in the larger buffer of a rank with most: sizes of calls are in bytes of that buffer."""
        return max(max(self.input_blocks(rank), self.output_blocks(rank)) for rank in range(self.size))

    def inputs(self, rank: int) -> int:
        """Chunks of ``in`` on ``rank``."""
        return self.input_blocks(rank) * self.chunks

    def outputs(self, rank: int) -> int:
        """Chunks of ``out`` on ``rank``."""
        return self.output_blocks(rank) * self.chunks

    def alias(self, rank: int) -> Alias | None:
        """How NCCL defines in-place for this collective; None when the buffers are apart."""
        if not self.inplace or not self.inputs(rank) or not self.outputs(rank):
            return None
        return Alias("out", "in", 0)

    def place(self, rank: int, buffer: BufferName) -> tuple[BufferName, int]:
        """The physical buffer that ``buffer`` of ``rank`` lies in, and from which chunk on: in place, two are one."""
        alias = self.alias(rank)
        return (alias.target, alias.offset) if alias is not None and alias.buffer == buffer else (buffer, 0)

    @abstractmethod
    def required(self, rank: int, index: int) -> Sum | None:
        """The input chunks whose sum ``out[index]`` of ``rank`` must hold; None for "anything"."""

    def position(self, index: int) -> int:
        """Place of a chunk inside its unit: what decides its length when a buffer does not divide evenly."""
        return index % self.chunks

    def refined(self, factor: int) -> Collective:
        """The same collective with every chunk cut into ``factor`` chunks."""
        return self if factor == 1 else replace(self, chunks=self.chunks * factor)

    def placed(self, inplace: bool) -> Collective:
        """The same collective with input and output in one memory, or apart."""
        return replace(self, inplace=inplace)

    def reduces(self) -> bool:
        """Whether some output is a sum of several inputs."""
        return False

    def averages(self) -> bool:
        """Whether every output is a sum of one input chunk of each rank: divided by their number, an average."""

        def is_of_everyone(total: Sum | None) -> bool:
            masks = [mask for _, mask in total or ()]
            everyone = (1 << self.size) - 1
            return functools.reduce(operator.or_, masks, 0) == everyone and sum(map(int.bit_count, masks)) == self.size

        return self.reduces() and all(
            is_of_everyone(self.required(r, i)) for r in range(self.size) for i in range(self.outputs(r))
        )

    def __str__(self) -> str:
        words = [f"ranks={'x'.join(map(str, self.shape))}", f"chunks={self.chunks}", *self._words()]
        return f"{self.name}({', '.join(words + ['inplace'] * self.inplace)})"

    def _words(self) -> Sequence[str]:
        return ()


def whole(n: object) -> int | None:
    """A number of Python or NumPy as an int; None for what is no whole number."""
    if type(n) is int:  # at once: the test below takes some microseconds
        return n
    if isinstance(n, bool) or not isinstance(n, SupportsIndex):
        return None
    try:
        return operator.index(n)
    except TypeError:
        return None


@dataclass(frozen=True)
class _Rooted(Collective):
    root: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        root = whole(self.root)
        if root is None or not 0 <= root < self.size:
            raise InvalidArgument(f"root must be in [0, {self.size}), not {self.root!r}", caller())
        self._normalize("root", root)

    def _words(self) -> Sequence[str]:
        return (f"root={self.root}",)


@dataclass(frozen=True)
class AllReduce(Collective):
    """Every rank ends with the sum over ranks. ``chunks`` counts the chunks of the whole buffer."""

    name = "allreduce"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return 1

    def required(self, rank: int, index: int) -> Sum:
        return ((index, (1 << self.size) - 1),)

    def reduces(self) -> bool:
        return True


@dataclass(frozen=True)
class AllGather(Collective):
    """Every rank ends with all inputs, in rank order. ``chunks`` counts the chunks of a rank's input."""

    name = "allgather"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return self.size

    def alias(self, rank: int) -> Alias | None:
        return Alias("in", "out", rank * self.chunks) if self.inplace else None

    def required(self, rank: int, index: int) -> Sum:
        source, position = divmod(index, self.chunks)
        return ((position, 1 << source),)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Rank r ends with block r of the sum. ``chunks`` counts the chunks of a rank's output."""

    name = "reducescatter"

    def input_blocks(self, rank: int) -> int:
        return self.size

    def output_blocks(self, rank: int) -> int:
        return 1

    def alias(self, rank: int) -> Alias | None:
        return Alias("out", "in", rank * self.chunks) if self.inplace else None

    def required(self, rank: int, index: int) -> Sum:
        return ((rank * self.chunks + index, (1 << self.size) - 1),)

    def reduces(self) -> bool:
        return True


@dataclass(frozen=True)
class Broadcast(_Rooted):
    """Every rank ends with the root's input. ``chunks`` counts the chunks of the whole buffer."""

    name = "broadcast"

    def input_blocks(self, rank: int) -> int:
        return 1 if rank == self.root else 0

    def output_blocks(self, rank: int) -> int:
        return 1

    def required(self, rank: int, index: int) -> Sum:
        return ((index, 1 << self.root),)


@dataclass(frozen=True)
class Reduce(_Rooted):
    """The root ends with the sum over ranks. ``chunks`` counts the chunks of the whole buffer."""

    name = "reduce"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return 1 if rank == self.root else 0

    def required(self, rank: int, index: int) -> Sum:
        return ((index, (1 << self.size) - 1),)

    def reduces(self) -> bool:
        return True


@dataclass(frozen=True)
class AllToAll(Collective):
    """Block i of rank j ends as block j of rank i. ``chunks`` counts the chunks for one destination."""

    name = "alltoall"

    def input_blocks(self, rank: int) -> int:
        return self.size

    def output_blocks(self, rank: int) -> int:
        return self.size

    def required(self, rank: int, index: int) -> Sum:
        source, position = divmod(index, self.chunks)
        return ((rank * self.chunks + position, 1 << source),)


@dataclass(frozen=True)
class Gather(_Rooted):
    """The root ends with all inputs, in rank order. ``chunks`` counts the chunks of a rank's input."""

    name = "gather"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return self.size if rank == self.root else 0

    def alias(self, rank: int) -> Alias | None:
        return Alias("in", "out", rank * self.chunks) if self.inplace and rank == self.root else None

    def required(self, rank: int, index: int) -> Sum:
        source, position = divmod(index, self.chunks)
        return ((position, 1 << source),)


@dataclass(frozen=True)
class Scatter(_Rooted):
    """Rank r ends with block r of the root's input. ``chunks`` counts the chunks of a rank's output."""

    name = "scatter"

    def input_blocks(self, rank: int) -> int:
        return self.size if rank == self.root else 0

    def output_blocks(self, rank: int) -> int:
        return 1

    def alias(self, rank: int) -> Alias | None:
        return Alias("out", "in", rank * self.chunks) if self.inplace and rank == self.root else None

    def required(self, rank: int, index: int) -> Sum:
        return ((rank * self.chunks + index, 1 << self.root),)


@dataclass(frozen=True)
class AllToNext(Collective):
    """Rank r ends with the input of rank r - 1; rank 0's output is free (paper section 7.4)."""

    name = "alltonext"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return 1

    def required(self, rank: int, index: int) -> Sum | None:
        return ((index, 1 << (rank - 1)),) if rank else None


@dataclass(frozen=True)
class Scan(Collective):
    """Rank r ends with the sum over ranks 0 to r. ``chunks`` counts the chunks of the whole buffer."""

    name = "scan"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return 1

    def required(self, rank: int, index: int) -> Sum:
        return ((index, (1 << (rank + 1)) - 1),)

    def reduces(self) -> bool:
        return True


@dataclass(frozen=True)
class Exscan(Collective):
    """Rank r ends with the sum over ranks 0 to r - 1; rank 0 has no output. ``chunks`` is that of ``Scan``."""

    name = "exscan"

    def input_blocks(self, rank: int) -> int:
        return 1

    def output_blocks(self, rank: int) -> int:
        return 1 if rank else 0

    def required(self, rank: int, index: int) -> Sum:
        return ((index, (1 << rank) - 1),)

    def reduces(self) -> bool:
        return True


Post = Callable[[int, int], Iterable[Contribution] | None]
Table = tuple[tuple[tuple[Contribution, ...] | None, ...], ...]


@dataclass(frozen=True, init=False)
class Custom(Collective):
    """A collective of your own.

    ``inputs`` and ``outputs`` are numbers of chunks, for all ranks or one a rank. ``post(rank, index)`` gives the set
    of input chunks ``(rank, index)`` that must be summed in ``out[index]`` of ``rank``, or None for "don't care". All
    chunks have one size: a unit is one chunk.
    """

    name = "custom"

    input_chunks: tuple[int, ...] = ()
    output_chunks: tuple[int, ...] = ()
    table: Table = field(default=(), repr=False)

    def __init__(
        self,
        ranks: int | tuple[int, ...],
        *,
        inputs: int | Sequence[int],
        outputs: int | Sequence[int],
        post: Post,
        inplace: bool = False,
    ) -> None:
        self._normalize("ranks", ranks)
        self._normalize("chunks", 1)
        self._normalize("inplace", inplace)
        super().__post_init__()
        self._normalize("input_chunks", self._per_rank("inputs", inputs))
        self._normalize("output_chunks", self._per_rank("outputs", outputs))
        self._normalize("table", tuple(self._tabulate(post)))

    def _per_rank(self, what: str, counts: int | Sequence[int]) -> tuple[int, ...]:
        given = (counts,) if not isinstance(counts, Iterable) else tuple(counts)
        each = [n for n in map(whole, given) if n is not None and n >= 0]
        if len(each) == len(given) == 1 and not isinstance(counts, Iterable):
            each *= self.size
        if len(each) != self.size or len(each) < len(given):
            raise InvalidArgument(
                f"{what} must be a number of chunks, or {self.size} of them, not {counts!r}", caller()
            )
        return tuple(each)

    def _tabulate(self, post: Post) -> Iterator[tuple[tuple[Contribution, ...] | None, ...]]:
        if not callable(post):
            raise InvalidArgument(f"post must be a function of rank and index, not {post!r}", caller())
        for rank in range(self.size):
            row: list[tuple[Contribution, ...] | None] = []
            for index in range(self.output_chunks[rank]):
                wanted = post(rank, index)
                try:
                    terms = (
                        None
                        if wanted is None
                        else tuple(sorted({(operator.index(r), operator.index(i)) for r, i in wanted}))
                    )
                except (TypeError, ValueError):
                    raise InvalidArgument(
                        f"post({rank}, {index}) must be a set of input chunks (rank, index), or None, not {wanted!r}",
                        caller(),
                    ) from None
                for r, i in terms or ():
                    if not (0 <= r < self.size and 0 <= i < self.input_chunks[r]):
                        raise InvalidArgument(
                            f"post({rank}, {index}) asks for input chunk ({r}, {i}), which does not exist", caller()
                        )
                if terms == ():
                    raise InvalidArgument(
                        f"post({rank}, {index}) is an empty set; None says that any content will do", caller()
                    )
                row.append(terms)
            yield tuple(row)

    def input_blocks(self, rank: int) -> int:
        return self.input_chunks[rank]

    def output_blocks(self, rank: int) -> int:
        return self.output_chunks[rank]

    def required(self, rank: int, index: int) -> Sum | None:
        block, position = divmod(index, self.chunks)
        terms = self.table[rank][block]
        return None if terms is None else as_sum((r, i * self.chunks + position) for r, i in terms)

    def alias(self, rank: int) -> Alias | None:
        """In place, the shorter buffer is the beginning of the longer one."""
        inputs, outputs = self.inputs(rank), self.outputs(rank)
        if not self.inplace or not inputs or not outputs:
            return None
        return Alias("out", "in", 0) if outputs <= inputs else Alias("in", "out", 0)

    def refined(self, factor: int) -> Collective:
        if factor < 1:
            raise InvalidArgument(f"chunks must be a positive number, not {factor}", caller())
        finer = copy(self)
        finer._normalize("chunks", self.chunks * factor)
        return finer

    def placed(self, inplace: bool) -> Collective:
        found = copy(self)
        found._normalize("inplace", inplace)
        return found

    def reduces(self) -> bool:
        return any(terms is not None and len(terms) > 1 for row in self.table for terms in row)

    def _words(self) -> Sequence[str]:
        post = ";".join(",".join(_show_terms(terms) for terms in row) for row in self.table)
        counts = [":".join(map(str, counts)) for counts in (self.input_chunks, self.output_chunks)]
        return (f"inputs={counts[0]}", f"outputs={counts[1]}", f"post={post}")


def _show_terms(terms: tuple[Contribution, ...] | None) -> str:
    return "-" if terms is None else "+".join(f"{r}.{i}" for r, i in terms)


def _read_custom(ranks: int | tuple[int, ...], words: dict[str, str], inplace: bool) -> Custom:
    table = [[_read_terms(terms) for terms in row.split(",") if terms] for row in words["post"].split(";")]
    counts = [[int(n) for n in words[key].split(":")] for key in ("inputs", "outputs")]
    return Custom(
        ranks, inputs=counts[0], outputs=counts[1], post=lambda rank, index: table[rank][index], inplace=inplace
    )


def _read_terms(text: str) -> list[Contribution] | None:
    if text == "-":
        return None
    pairs = (term.split(".") for term in text.split("+"))
    return [(int(r), int(i)) for r, i in pairs]


_NAMED: tuple[type[Collective], ...] = (
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    AllToNext,
    Scan,
    Exscan,
)


def parse(text: str) -> Collective:
    """The inverse of ``str(collective)``. Raises ValueError for anything else."""
    name, _, rest = text.partition("(")
    words: dict[str, str] = {}
    for word in rest.removesuffix(")").split(", "):
        key, _, value = word.partition("=")
        words[key] = value
    if name not in (Custom.name, *(cls.name for cls in _NAMED)):
        raise ValueError(f"there is no collective named {name!r}")
    try:
        found = _read(name, words)
    except InvalidArgument:
        raise
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{text!r} is no collective") from error
    if str(found) != text:
        raise ValueError(f"{text!r} is no collective; it reads like {found}")
    return found


def _read(name: str, words: dict[str, str]) -> Collective:
    dims = tuple(int(n) for n in words["ranks"].split("x"))
    ranks = dims if len(dims) > 1 else dims[0]
    inplace = "inplace" in words
    if name == Custom.name:
        return _read_custom(ranks, words, inplace).refined(int(words["chunks"]))
    cls = next(cls for cls in _NAMED if cls.name == name)
    if issubclass(cls, _Rooted):
        return cls(ranks, int(words["chunks"]), inplace, int(words["root"]))
    return cls(ranks, int(words["chunks"]), inplace)


def bus_factor(collective: Collective) -> float | None:
    """busbw / algbw as nccl-tests defines it (its PERFORMANCE.md), a prefix sum as a Reduce; None for Custom."""
    p = collective.size
    match collective:
        case AllReduce():
            return 2 * (p - 1) / p
        case AllGather() | ReduceScatter() | AllToAll():
            return (p - 1) / p
        case Gather() | Scatter():
            return (p - 1) / p
        case Broadcast() | Reduce() | AllToNext():
            return 1.0
        case Scan() | Exscan():
            return 1.0
    return None
