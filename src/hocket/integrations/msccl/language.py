"""The language of msccl-tools: chunk, copy, reduce, XML, Check. References are checked where they are used."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Never

from hocket.errors import (
    CountMismatch,
    InvalidArgument,
    OutOfRange,
    OutsideProgram,
    Site,
    StaleChunk,
    UninitializedChunk,
    Unsupported,
    caller,
    show_span,
)
from hocket.integrations.msccl.chunks import Buffer, Chunk, ReduceChunk, Value, buffer_name
from hocket.integrations.msccl.program import MSCCLProgram, Place, current, number
from hocket.ir.chunk_dag import Kind

_ELSEWHERE: dict[str, str | None] = {
    **dict.fromkeys(("exchange", "rexchange", "send"), "programs for older msccl-tools have it; write copy and reduce"),
    **dict.fromkeys(("get", "put", "signal", "wait"), "it is of MSCCL++"),
}
"""What references have in other versions, and a way out."""


class Ref:
    """A reference to the chunks that a place holds now; stale when another operation has written there since."""

    __slots__ = ("born", "buffer", "index", "prog", "rank", "size", "taken")

    def __init__(self, prog: MSCCLProgram, place: Place, size: int, born: int, taken: Site) -> None:
        self.prog = prog
        self.rank, self.buffer, self.index = place
        self.size = size
        self.born = born
        self.taken = taken

    def __repr__(self) -> str:
        return f"Ref(Buffer:{self.buffer}, Index:{self.index}, Size:{self.size}, Rank:{self.rank})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and (self.prog, *self.places()) == (other.prog, *other.places())

    def __hash__(self) -> int:
        return hash((self.rank, self.buffer, self.index, self.size))

    def __getattr__(self, name: str) -> Never:
        if name in _ELSEWHERE:
            raise Unsupported(f"{name}() of a reference", caller(), _ELSEWHERE[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def place(self) -> Place:
        """The place of the first chunk."""
        return Place(self.rank, self.buffer, self.index)

    def places(self) -> Iterator[Place]:
        """The places of its chunks."""
        return (Place(self.rank, self.buffer, index) for index in range(self.index, self.index + self.size))

    def copy(
        self,
        dst: int,
        buffer: Hashable = None,
        index: int = -1,
        sendtb: int = -1,
        recvtb: int = -1,
        ch: int = -1,
    ) -> Ref:
        """Copy these chunks to rank ``dst`` and return a reference to the copy.

        Without a buffer to the same place there; to scratch without an index behind what was written there. Where the
        input lies in the output, the input is that of the rank that sends: its place in the output of ``dst``. To copy
        chunks to where they are does nothing.
        """
        site = caller()
        prog = self.prog
        _check_usable(self, prog, site)
        if buffer is None:
            if index != -1:
                raise InvalidArgument("an index without a buffer", site, "name both, or neither for the same place")
            place = prog.place(dst, self.buffer, self.index, self.size, site)
        else:
            if index == -1:
                if buffer is Buffer.input or buffer is Buffer.output:
                    raise InvalidArgument(
                        f"a copy to {buffer_name(buffer)!r} needs an index", site, "only scratch buffers append"
                    )
                index = prog.scratch_size(number("rank", dst, site), buffer)
            place = prog.place(dst, buffer, index, self.size, site)
            if buffer is Buffer.input and place.buffer is Buffer.output:
                place = place._replace(at=prog.place(self.rank, buffer, index, self.size, site).at)
        if place == self.place:
            return self
        prog.add(Kind.COPY, self.place, place, self.size, (sendtb, recvtb), ch, self.taken, site)
        return _reference(prog, place, self.size, site)

    def reduce(self, other_chunkref: Ref, sendtb: int = -1, recvtb: int = -1, ch: int = -1) -> Ref:
        """Add other chunks to these, in place. This reference is then one to the sum, and is returned."""
        site = caller()
        prog = self.prog
        _check_usable(self, prog, site)
        _check_usable(other_chunkref, prog, site)
        if other_chunkref.size != self.size:
            raise CountMismatch(self.size, other_chunkref.size, site, self.taken, other_chunkref.taken)
        other = other_chunkref
        prog.add(Kind.REDUCE, other.place, self.place, self.size, (sendtb, recvtb), ch, other.taken, site)
        self.born, self.taken = len(prog.operations), site
        return self

    def split(self, num: int) -> list[Ref]:
        """As ``num`` references, each to as many chunks."""
        site = caller()
        parts = number("number of parts", num, site)
        if parts < 1 or self.size % parts:
            raise InvalidArgument(f"{self.size} chunks cannot be split into {num} equal parts", site)
        size = self.size // parts
        starts = range(self.index, self.index + self.size, size)
        return [Ref(self.prog, Place(self.rank, self.buffer, at), size, self.born, self.taken) for at in starts]

    def group(self, other: Ref) -> Ref:
        """One reference from the first chunk of either to the last, to all that is there."""
        site = caller()
        prog = self.prog
        _check_usable(self, prog, site)
        _check_usable(other, prog, site)
        if (self.rank, self.buffer) != (other.rank, other.buffer):
            first, second = (show_span(c.rank, buffer_name(c.buffer), c.index, c.size) for c in (self, other))
            raise InvalidArgument(f"{first} and {second} are not in one buffer", site)
        start = min(self.index, other.index)
        end = max(self.index + self.size, other.index + other.size)
        return _reference(prog, Place(self.rank, self.buffer, start), end - start, site)

    def get_origin_index(self, index: int = 0) -> int:
        """Where in the input a chunk was at the start."""
        return self._chunk(index).origin_index

    def get_origin_rank(self, index: int = 0) -> int:
        return self._chunk(index).origin_rank

    def get_dst_index(self, index: int = 0) -> int:
        """Where in the output a chunk shall end."""
        return self._chunk(index).dst_index

    def get_dst_rank(self, index: int = 0) -> int:
        return self._chunk(index).dst_rank

    def print_chunk_info(self, index: int = 0) -> None:
        print(self._value(index, caller()))

    def _value(self, index: int, site: Site) -> Value:
        if not 0 <= index < self.size:
            raise OutOfRange("index", index, 0, self.size, site, "of this reference")
        value = self.prog.buffers[self.rank][self.buffer][self.index + index]
        assert value is not None
        return value

    def _chunk(self, index: int) -> Chunk:
        site = caller()
        value = self._value(index, site)
        if isinstance(value, ReduceChunk):
            raise InvalidArgument("a sum of chunks comes from no one place, and goes to none", site)
        return value


# ---------------------------------------------------------------------------------------------------------------
# What a program calls without naming itself


def chunk(rank: int, buffer: Hashable, index: int, size: int = 1) -> Ref:
    """A reference to ``size`` chunks from ``buffer[index]`` of ``rank`` on, as the program has left them so far."""
    site = caller()
    prog = _of_this_block("chunk()", site)
    return _reference(prog, prog.place(rank, buffer, index, size, site), size, site)


def create_scratch(rank: int, name: Hashable) -> None:
    """Name a scratch buffer; to copy to one does so too."""
    site = caller()
    prog = _of_this_block("create_scratch()", site)
    prog.buffers[prog.place(rank, name, 0, 1, site).rank].setdefault(name, [])


def XML() -> None:  # noqa: N802 (the name that programs use)
    """Print the XML of the program, as far as it has come. Raises what ``MSCCLProgram.schedule`` raises."""
    print(_of_this_block("XML()", caller()).generate_xml(), end="")


def Check() -> bool | None:  # noqa: N802
    """Whether the program, as far as it has come, does what its collective promises. If not, stderr says why."""
    prog = _of_this_block("Check()", caller())
    found = prog.check()
    prog.refused = found is not None and not found
    return found


def _reference(prog: MSCCLProgram, place: Place, size: int, site: Site) -> Ref:
    """A reference to what is there now. Raises UninitializedChunk if that is nothing."""
    held = prog.buffers[place.rank].get(place.buffer, [])
    for index in range(place.at, place.at + size):
        if index >= len(held) or held[index] is None:
            raise UninitializedChunk(place.rank, buffer_name(place.buffer), index, site)
    return Ref(prog, place, size, len(prog.operations), site)


def _check_usable(ref: Ref, prog: MSCCLProgram, site: Site) -> None:
    """Raises OutsideProgram or StaleChunk."""
    if not isinstance(ref, Ref):
        raise InvalidArgument(
            f"a reference to chunks is needed here, not {ref!r}", site, "write chunk(rank, buffer, index).reduce(c)"
        )
    if current() is None:
        help_ = "use it inside of the `with` block that it was taken in"
        raise OutsideProgram("this reference", "is used outside of its program", site, help_, ref.taken)
    if current() is not prog or ref.prog is not prog:
        help_ = "take a reference in this program, with chunk(...)"
        raise OutsideProgram("this reference", "belongs to another program", site, help_, ref.taken)
    for place in ref.places():
        written = prog.written(place)
        if written is not None and written[0] >= ref.born:
            raise StaleChunk(place.rank, buffer_name(place.buffer), place.at, ref.taken, written[1], site)


def _of_this_block(what: str, site: Site) -> MSCCLProgram:
    prog = current()
    if prog is None:
        help_ = "write it inside `with MSCCLProgram(...):`"
        raise OutsideProgram(what, "was called while no program is being traced", site, help_)
    return prog
