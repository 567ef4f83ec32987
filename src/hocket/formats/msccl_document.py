"""The text of MSCCL's XML: parsed with a bound on everything, and printed as the runtimes' own parsers want it.

What a file means is for ``msccl_xml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from hocket.errors import ParseError, TextSite, Where
from hocket.formats.msccl_targets import (
    ATTRIBUTES,
    CHANNELS,
    CHILDREN,
    COUNT,
    DEFAULT_BYTES,
    NODES,
    OFFSET,
    OPCODES,
    SLOTS,
    TARGETS,
)
from hocket.formats.msccl_targets import BYTES as MOST_BYTES
from hocket.formats.msccl_targets import TEXT as MOST_TEXT
from hocket.formats.msccl_tokens import Tokens

Place = tuple[str, int]
"""A buffer, ``i``, ``o`` or ``s``, and an offset in chunks."""

NOWHERE: tuple[Place, Place] = (("i", -1), ("o", -1))
"""Source and destination of what has none; the attributes have to be there."""


@dataclass(frozen=True, slots=True)
class XmlStep:
    """``depends`` is (thread block, step); ``signals`` says that a step may depend on this one (``hasdep``)."""

    type: str
    src: Place
    dst: Place
    count: int
    depends: tuple[int, int] | None
    signals: bool
    where: tuple[Where, ...] = field(default=(), compare=False)


def joins(before: XmlStep, step: XmlStep) -> bool:
    """Whether a runtime joins a reduction to the one before it."""
    return (
        before.type == step.type == "re"
        and not before.signals
        and step.depends is None
        and (before.dst, before.src[0]) == (step.dst, step.src[0])
    )


@dataclass(frozen=True, slots=True)
class XmlBlock:
    """A thread block. ``send`` and ``recv`` are the ranks at the other ends."""

    send: int | None
    recv: int | None
    channel: int
    steps: tuple[XmlStep, ...]
    where: Where | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class XmlGpu:
    """``chunks`` are those of its three buffers."""

    chunks: Mapping[str, int]
    blocks: tuple[XmlBlock, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A file. What it may leave out is None; ``promise`` is the collective as hocket says it, in a comment.

    ``misread``: the first token that runtimes do not read as XML means it, and what happens to it.
    """

    name: str
    proto: str
    channels: int
    loop_chunks: int
    coll: str
    inplace: bool
    outofplace: bool | None
    min_bytes: int | None
    max_bytes: int | None
    gpus: tuple[XmlGpu, ...]
    threads: int | None = None
    promise: str | None = None
    misread: tuple[Where, str] | None = field(default=None, compare=False)
    where: Where | None = field(default=None, compare=False)


def sizes(document: Document) -> tuple[int, int | None]:
    """The smallest and the largest call, in bytes, that a file serves; None is no limit."""
    low = document.min_bytes or 0
    if document.outofplace is None:
        high = DEFAULT_BYTES if document.max_bytes is None else document.max_bytes
        return low, None if high == MOST_BYTES else max(low, high - 1)
    return low, document.max_bytes or None


PROMISE = "hocket: "
TOKEN = 1 << 18
"""Bytes that a token of the text, an element or a comment, may have; expat keeps one in memory."""


def print_document(document: Document) -> str:
    """The text: one element a line, attributes in double quotes and one space apart, as the runtimes demand."""
    d = document
    out = [f"<!-- {PROMISE}{d.promise} -->"] if d.promise is not None else []
    words: dict[str, object] = {
        "name": d.name,
        "proto": d.proto,
        "nchannels": d.channels,
        "nchunksperloop": d.loop_chunks,
        "ngpus": len(d.gpus),
        "coll": d.coll,
        "inplace": int(d.inplace),
    }
    optional = {
        "outofplace": None if d.outofplace is None else int(d.outofplace),
        "minBytes": d.min_bytes,
        "maxBytes": d.max_bytes,
        "nthreads": d.threads,
    }
    words |= {key: value for key, value in optional.items() if value is not None}
    out.append(f"<algo{_attributes(words)}>")
    for id_, gpu in enumerate(d.gpus):
        out.append(f"  <gpu{_attributes({'id': id_, **{f'{key}_chunks': n for key, n in gpu.chunks.items()}})}>")
        for number, block in enumerate(gpu.blocks):
            peers = {"send": _or_minus(block.send), "recv": _or_minus(block.recv)}
            out.append(f"    <tb{_attributes({'id': number, **peers, 'chan': block.channel})}>")
            out.extend(f"      {_show_step(s, step)}" for s, step in enumerate(block.steps))
            out.append("    </tb>")
        out.append("  </gpu>")
    out.append("</algo>")
    return "\n".join(out) + "\n"


def _show_step(s: int, step: XmlStep) -> str:
    depid, deps = step.depends or (-1, -1)
    return (
        f'<step s="{s}" type="{step.type}" srcbuf="{step.src[0]}" srcoff="{step.src[1]}" dstbuf="{step.dst[0]}" '
        f'dstoff="{step.dst[1]}" cnt="{step.count}" depid="{depid}" deps="{deps}" hasdep="{int(step.signals)}"/>'
    )


def _attributes(words: Mapping[str, object]) -> str:
    return "".join(f' {key}="{value}"' for key, value in words.items())


def _or_minus(rank: int | None) -> int:
    return -1 if rank is None else rank


# ---------------------------------------------------------------------------------------------------------------

_PIECE = 1 << 16
_STEPS = 1 << 19
"""Steps of a file."""
_NUMBER = re.compile(r"-?[0-9]{1,19}\Z")
_INSIDE = {None: "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}
_THREAD_BLOCKS = max(target.thread_blocks for target in TARGETS.values())
_STEPS_OF_BLOCK = max(target.steps for target in TARGETS.values())


def parse_document(source: str | Path, name: str | None = None) -> Document:
    """Parse a text, or a file, which is read bit by bit. Raises ParseError with the line.

    ``name`` is what errors call it. Memory is bounded by what the runtimes take, whatever the text claims.
    """
    return _Parser(source, name or (str(source) if isinstance(source, Path) else "text")).run()


def _pieces(source: str | Path) -> Iterator[bytes]:
    if isinstance(source, str):
        for begin in range(0, len(source), _PIECE):
            yield source[begin : begin + _PIECE].encode(errors="replace")
        return
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


class _Lines:
    """Gives the beginnings of lines. What can be read only once, such as a pipe, has none.

    Most are asked for in their order: it goes on from where the line given last begins, and keeps no text.
    """

    def __init__(self, source: str | Path) -> None:
        self._source = source
        self._last = 1, 0

    def __call__(self, number: int) -> str:
        found, start = self._last if self._last[0] <= number else (1, 0)
        source = self._source
        if isinstance(source, str):
            for _ in range(found, number):
                start = source.find("\n", start) + 1 or len(source)
            self._last = number, start
            return source[start : start + _PIECE].partition("\n")[0]
        if not source.is_file():
            return ""
        with source.open(errors="replace") as file:
            file.seek(start)
            while found < number and (part := file.readline(_PIECE)):
                found += part.endswith("\n")
            self._last = (number, file.tell()) if found == number else (1, 0)
            return file.readline(_PIECE).rstrip("\n")


@dataclass(slots=True)
class _Open:
    """An element that has begun: its attributes, where it begins, and its children, by their numbers."""

    attributes: dict[str, str]
    where: TextSite
    children: dict[int, object] = field(default_factory=dict)


class _Parser:
    def __init__(self, source: str | Path, name: str) -> None:
        self._source = source
        self._read = _Lines(source)
        self._name = name
        self._open: list[tuple[str, _Open]] = []
        self._promise: str | None = None
        self._document: Document | None = None
        self._nodes = 0
        self._steps = 0
        self._tokens = Tokens()
        self._expat = expat.ParserCreate("utf-8")
        self._expat.buffer_text = False
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._text
        self._expat.CommentHandler = self._comment
        self._expat.XmlDeclHandler = lambda *_: self._fail("the runtimes read no <?xml ...?> line")
        self._expat.StartDoctypeDeclHandler = lambda *_: self._fail("a document type, and so entities, are not read")
        self._expat.ProcessingInstructionHandler = lambda *_: self._fail("the runtimes read no <?...?>")
        self._expat.StartCdataSectionHandler = lambda: self._fail("the runtimes read no CDATA")

    def run(self) -> Document:
        fed = 0
        try:
            for piece in _pieces(self._source):
                fed += len(piece)
                self._tokens.feed(piece)
                self._expat.Parse(piece, False)
                if fed - max(0, self._expat.CurrentByteIndex) > TOKEN + 2 * _PIECE:
                    self._fail(f"an element or a comment of more than {TOKEN} bytes")
            self._expat.Parse(b"", True)
        except expat.ExpatError as error:
            self._fail(expat.ErrorString(error.code), error.lineno)
        assert self._document is not None, "expat demands a root, and only <algo> is one"
        if self._tokens.misread is None:
            return self._document
        line, reason = self._tokens.misread
        at = TextSite(self._name, line, 0, len(self._read(line).encode()), self._read)
        return replace(self._document, misread=(at, reason))

    def _fail(self, reason: str, line: int | None = None) -> NoReturn:
        at = self._expat.CurrentLineNumber if line is None else line
        raise ParseError(self._name, at, self._read(at), reason)

    # Elements ---------------------------------------------------------------------------------------------------

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        inside = self._open[-1][0] if self._open else None
        wanted = _INSIDE.get(inside)
        if name != wanted:
            place = "at the top" if inside is None else f"in <{inside}>"
            self._fail(f"<{name[:40]}> {place}, where {f'<{wanted}>' if wanted else 'nothing'} belongs")
        if len(attributes) > ATTRIBUTES:
            self._fail(f"more than {ATTRIBUTES} attributes")
        for key, value in attributes.items():
            if len(key.encode()) > MOST_TEXT or len(value.encode()) > MOST_TEXT:
                self._fail(f"{key[:40]} has more than {MOST_TEXT} bytes")
        if name == "gpu":
            self._nodes = 0
        self._nodes += 1
        if self._nodes > NODES:
            self._fail(f"more than {NODES} elements of one gpu")
        column = self._expat.CurrentColumnNumber
        end = column + len(f"<{name}")
        at = TextSite(self._name, self._expat.CurrentLineNumber, column, end, self._read)
        self._open.append((name, _Open(attributes, at)))

    def _end(self, name: str) -> None:
        _, element = self._open.pop()
        if name == "step":
            self._step(element)
        elif name == "tb":
            self._add(element, "tb", self._number(element, "id", 0, _THREAD_BLOCKS - 1), self._block(element))
        elif name == "gpu":
            self._add(element, "gpu", self._number(element, "id", 0, CHILDREN - 1), self._gpu(element))
        else:
            self._document = self._algo(element)

    def _text(self, data: str) -> None:
        if data.strip():
            self._fail(f"text between elements: {data.strip()[:40]!r}")

    def _comment(self, data: str) -> None:
        if not self._open and data.strip().startswith(PROMISE):
            self._promise = data.strip().removeprefix(PROMISE)

    def _add(self, element: _Open, name: str, number: int, made: object) -> None:
        children = self._open[-1][1].children
        if number in children:
            self._fail(f"a second <{name}> with the id {number}", element.where.line)
        children[number] = made

    def _word(self, element: _Open, key: str) -> str:
        found = element.attributes.get(key)
        if found is None:
            self._fail(f"{key} is missing", element.where.line)
        return found

    def _number(self, element: _Open, key: str, low: int, high: int) -> int:
        word = self._word(element, key)
        if not _NUMBER.match(word):
            self._fail(f'{key}="{word[:40]}" is no whole number', element.where.line)
        number = int(word)
        if not low <= number <= high:
            self._fail(f"{key}={number} is not between {low} and {high}", element.where.line)
        return number

    def _one_of(self, element: _Open, key: str, known: Iterable[str]) -> str:
        word = self._word(element, key)
        if word not in known:
            self._fail(f'{key}="{word[:40]}" is none of {", ".join(known)}', element.where.line)
        return word

    def _peer(self, element: _Open, key: str) -> int | None:
        rank = self._number(element, key, -1, CHILDREN - 1)
        return None if rank == -1 else rank

    def _step(self, element: _Open) -> None:
        siblings = self._open[-1][1].children
        number = self._number(element, "s", 0, 2**31 - 1)
        if number != len(siblings):
            self._fail(f"s={number} where step {len(siblings)} belongs: a runtime counts without gaps")
        self._steps += 1
        if len(siblings) == _STEPS_OF_BLOCK or self._steps > _STEPS:
            what = "in a thread block" if len(siblings) == _STEPS_OF_BLOCK else "in a file"
            self._fail(f"more than {_STEPS_OF_BLOCK if len(siblings) == _STEPS_OF_BLOCK else _STEPS} steps {what}")
        src, dst = (
            (self._one_of(element, f"{end}buf", ("i", "o", "s")), self._number(element, f"{end}off", -1, OFFSET))
            for end in ("src", "dst")
        )
        depid = self._number(element, "depid", -1, _THREAD_BLOCKS - 1)
        deps = self._number(element, "deps", -1, _STEPS_OF_BLOCK - 1)
        siblings[number] = XmlStep(
            self._one_of(element, "type", (*OPCODES, "nop")),
            src,
            dst,
            self._number(element, "cnt", 0, COUNT),
            None if depid == -1 else (depid, deps),
            self._number(element, "hasdep", 0, 1) == 1,
            (element.where,),
        )

    def _block(self, element: _Open) -> XmlBlock:
        return XmlBlock(
            self._peer(element, "send"),
            self._peer(element, "recv"),
            self._number(element, "chan", -1, CHANNELS - 1),
            tuple(element.children.values()),  # type: ignore[arg-type]
            element.where,
        )

    def _gpu(self, element: _Open) -> XmlGpu:
        chunks = {key: self._number(element, f"{key}_chunks", 0, OFFSET + 1) for key in "ios"}
        return XmlGpu(chunks, tuple(self._in_order(element, "tb")))  # type: ignore[arg-type]

    def _in_order(self, element: _Open, name: str) -> Iterator[object]:
        for number in range(len(element.children)):
            if number not in element.children:
                self._fail(f"there is no <{name}> with the id {number}: ids go from 0 without gaps", element.where.line)
            yield element.children[number]

    def _algo(self, element: _Open) -> Document:
        given = element.attributes.keys()
        gpus = self._number(element, "ngpus", 1, CHILDREN)
        if gpus != len(element.children):
            self._fail(f"ngpus={gpus}, and there are {len(element.children)}", element.where.line)
        return Document(
            name=self._word(element, "name"),
            proto=self._one_of(element, "proto", SLOTS),
            channels=self._number(element, "nchannels", 0, CHANNELS),
            loop_chunks=self._number(element, "nchunksperloop", 1, OFFSET + 1),
            coll=self._word(element, "coll"),
            inplace=self._number(element, "inplace", 0, 1) == 1,
            outofplace=self._number(element, "outofplace", 0, 1) == 1 if "outofplace" in given else None,
            min_bytes=self._number(element, "minBytes", 0, MOST_BYTES) if "minBytes" in given else None,
            max_bytes=self._number(element, "maxBytes", 0, MOST_BYTES) if "maxBytes" in given else None,
            threads=self._number(element, "nthreads", 0, 2**31 - 1) if "nthreads" in given else None,
            gpus=tuple(self._in_order(element, "gpu")),  # type: ignore[arg-type]
            promise=self._promise,
            where=element.where,
        )
