"""Each bad file in ``errors/`` is refused with its golden message; text of any other kind with some message."""

from __future__ import annotations

import itertools
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import Custom
from hocket.errors import HocketError, ParseError
from hocket.formats import msccl_document
from hocket.formats.msccl_document import parse_document
from hocket.formats.msccl_xml import read
from tests.reference import check

HERE = Path(__file__).parent
BAD = sorted((HERE / "errors").glob("*.xml"))
GOOD = sorted((HERE / "golden").glob("*.xml"))


def refuse(path: Path, monkeypatch: pytest.MonkeyPatch) -> HocketError:
    monkeypatch.chdir(path.parent)
    with pytest.raises(HocketError) as caught:
        read(Path(path.name))
    return caught.value


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_golden_message(path: Path, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    error = refuse(path, monkeypatch)
    assert path.stem.startswith(error.code.replace("-", "_"))
    golden(path.with_suffix(".err"), str(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_text_is_refused_as_its_file_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HocketError) as caught:
        read(path.read_text(), "a text")
    assert caught.value.code == refuse(path, monkeypatch).code
    if isinstance(caught.value, ParseError):
        assert caught.value.line == refuse(path, monkeypatch).line  # type: ignore[attr-defined]


def test_every_message_has_a_file() -> None:
    assert {path.stem for path in (HERE / "errors").glob("*.err")} == {path.stem for path in BAD}


# Texts without end ----------------------------------------------------------------------------------------------

HEAD = '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="1" coll="allreduce" inplace="1">'
GPU = '<gpu id="{}" i_chunks="1" o_chunks="1" s_chunks="0">'
TB = '<tb id="{}" send="-1" recv="-1" chan="0">'
STEP = '<step s="{}" type="cpy" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>\n'
ENDLESS: dict[str, Callable[[], Iterator[str]]] = {
    "steps": lambda: itertools.chain([HEAD, GPU.format(0), TB.format(0)], map(STEP.format, itertools.count())),
    "thread blocks": lambda: itertools.chain(
        [HEAD, GPU.format(0)], (TB.format(i % 200) + "</tb>\n" for i in itertools.count())
    ),
    "gpus": lambda: itertools.chain([HEAD], (GPU.format(i) + "</gpu>\n" for i in itertools.count())),
    "one attribute": lambda: itertools.chain(['<algo name="'], itertools.repeat("a" * 4096)),
    "attributes": lambda: itertools.chain(["<algo"], (f' a{i}="{i}"' for i in itertools.count())),
    "one comment": lambda: itertools.chain(["<!--"], itertools.repeat("a" * 4096)),
    "one name": lambda: itertools.chain(["<"], itertools.repeat("a" * 4096)),
    "elements in elements": lambda: itertools.repeat(HEAD),
    "text": lambda: itertools.chain([HEAD], itertools.repeat("a" * 4096)),
    "zeros": lambda: itertools.repeat("\0" * 4096),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_text_without_end_is_refused_in_bounded_memory(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(source: str | Path) -> Iterator[bytes]:
        parts = ENDLESS[what]()
        while True:
            piece = ""
            while len(piece) < 1 << 16:
                piece += next(parts)
            yield piece.encode()

    monkeypatch.setattr(msccl_document, "_pieces", pieces)
    tracemalloc.start()
    try:
        with pytest.raises(ParseError) as caught:
            parse_document("")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.line >= 1
    assert peak < 64 << 20


def test_many_gpus_with_many_steps_are_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as each gpu may have; the file as a whole may not."""
    monkeypatch.setattr(msccl_document, "_STEPS", 2000)
    blocks = (
        GPU.format(gpu) + TB.format(0) + "".join(map(STEP.format, range(200))) + "</tb></gpu>" for gpu in range(100)
    )
    with pytest.raises(ParseError, match="more than 2000 steps in a file"):
        parse_document(HEAD + "".join(blocks) + "</algo>")


# Fuzzing --------------------------------------------------------------------------------------------------------


def survive(text: str) -> None:
    """Either it is refused with one of our errors, which can be shown, or it was proven and so it is right."""
    try:
        schedule = read(text)
    except HocketError as error:
        shown = str(error)
    else:
        shown = ""
        if not isinstance(schedule.collective, Custom):
            check(schedule, schedule.collective.chunks * 8, seeds=(0,))
    assert len(shown) < 100_000


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 2**32))
def test_damaged_files_are_read_or_refused(file: int, seed: int) -> None:
    rng = random.Random(seed)
    text = GOOD[file].read_text()
    for _ in range(rng.randint(1, 4)):
        begin = rng.randrange(len(text))
        end = min(len(text), begin + rng.choice((0, 1, 1, 5, 60)))
        word = rng.choice(("", "-", "9", "9" * 20, '"', "<", "/>", "&", "\0", "é", "</tb>", ' cnt="0"', " "))
        text = text[:begin] + word + text[end:]
    survive(text)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 2**32))
def test_files_with_other_values_are_read_or_refused(file: int, seed: int) -> None:
    """Still well formed: the meaning is fuzzed, not the text."""
    rng = random.Random(seed)
    words = GOOD[file].read_text().split('"')
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(1, len(words), 2)
        words[at] = rng.choice((*map(str, range(-1, 4)), "71", "nop", "s", "r", "re", "rrc", "cpy", "i", "o", "x"))
    survive('"'.join(words))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        read(text)
