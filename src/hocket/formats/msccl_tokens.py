"""How the runtimes split a file into tokens, where that differs from XML.

They do it by hand, both alike: microsoft/msccl in src/graph/xml.cc, ROCm/rccl in src/misc/msccl/msccl_parser.cc. So
good XML may be refused there, or mean something else.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8

from hocket.formats.msccl_targets import ATTRIBUTES

_WORD = rb"[^ \t\n\r=/<>\"']"
_FIRST_WORD = rb"[^ \n\r=/>]{0,250}[ \n\r/>]"
"""Of a comment: it is read as the name of an element, which has no ``=`` and less than 254 characters."""
_PLAIN = re.compile(
    rb"(?>[ \n\r]++"
    rb"|<(?!!)" + _WORD + rb"++(?: " + _WORD + rb'++="(?!-?0[0-9])[^"&]*+")*+ ?/?>'
    rb"|</" + _WORD + rb"++>"
    rb"|<!--(?=" + _FIRST_WORD + rb")(?s:.*?)-->"
    rb")*+"
)
"""Tokens that mean the same to a runtime and to XML; spaces, lines, elements, ends of elements, comments. Python before
3.11.5 may stop at one that does (CPython issue 106052), so whatever it stops at is looked at again."""
_TOKEN = re.compile(rb"<!--.*?-->|<(?!!--)(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.DOTALL)
_ATTRIBUTE = re.compile(rb"(" + _WORD + rb"+)(\s*)=(\s*)([\"'])")
_READ = frozenset(
    b"proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes nthreads id i_chunks o_chunks "
    b"s_chunks send recv chan s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep".split()
)
"""Attributes whose value matters to a runtime."""


class Tokens:
    """Follows a text, which is fed bit by bit, up to the first token that a runtime does not read as XML means it.

    ``misread`` is the token's line and what happens to it.
    """

    def __init__(self) -> None:
        self.misread: tuple[int, str] | None = None
        self._line = 1
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Go on; a token that is not complete yet is kept."""
        if self.misread is not None:
            return
        text = self._rest + piece
        at = 0
        while True:
            plain = _PLAIN.match(text, at)
            assert plain is not None, "it matches nothing, too"
            at = self._pass(text, at, plain.end())
            if at == len(text):
                break
            token = _TOKEN.match(text, at)
            if token is None and text.startswith(b"<", at):
                break
            reason = _odd_text(text[at:]) if token is None else _odd(token[0])
            if reason is not None:
                self.misread, self._rest = (self._line, reason), b""
                return
            assert token is not None
            at = self._pass(text, at, token.end())
        self._rest = text[at:]

    def _pass(self, text: bytes, begin: int, end: int) -> int:
        self._line += text.count(b"\n", begin, end)
        return end


_TABS = "its parser takes no tabs"
_LINES = "its parser wants the attributes of an element on one line"


def _odd_text(text: bytes) -> str:
    if text.startswith(b"\t"):
        return _TABS
    if text.startswith(BOM_UTF8[:1]):
        return "its parser takes no byte order mark"
    return "its parser takes nothing but spaces and lines between elements"


def _odd(token: bytes) -> str | None:
    """Why a token is no plain one; None if that makes no difference."""
    if token.startswith(b"<!--"):
        plain = re.match(_FIRST_WORD, token[4:])
        return None if plain else "its parser takes no = and no long word right behind <!--"
    if token.startswith(b"</"):
        closed = b"</" + token[2:-1].strip() + b">"
        return None if closed == token else f"its parser wants {_shown(closed)} without a space"
    name = re.match(rb"<" + _WORD + rb"*", token)
    assert name is not None
    return _odd_attributes(token, name.end())


def _odd_attributes(token: bytes, at: int) -> str | None:
    """The attributes of an element as a runtime takes them. Each is expected behind one space: another space counts as
    an attribute without a name, of which it keeps as many as of all."""
    count = 0
    while token[at : at + 1] not in b"/>":
        space = token[at : at + 1]
        if space != b" ":
            return _TABS if space == b"\t" else _LINES
        at += 1
        attribute = _ATTRIBUTE.match(token, at)
        if attribute is None:
            count += 1
            continue
        key, before, behind, quote = attribute.groups()
        end = token.index(quote, attribute.end())
        value = token[attribute.end() : end]
        if before or behind:
            return "its parser takes no space beside ="
        if quote == b"'":
            return f"its parser wants {_shown(key)} in double quotes"
        count += 1
        if key in _READ:
            if count > ATTRIBUTES:
                return (
                    f"its parser keeps {ATTRIBUTES} attributes, and every further space is one: {_shown(key)} is lost"
                )
            found = _other_value(value)
            if found is not None:
                return f"its parser reads {_shown(key)}={_shown(token[attribute.end() - 1 : end + 1])} as {found}"
        at = end + 1
    return None


def _other_value(value: bytes) -> str | None:
    """What a runtime takes a value for, if not for what XML does: a number that begins with 0 is octal, and there are
    no character references."""
    if b"&" in value:
        number = re.match(rb"-?[0-9]*", value)
        assert number is not None
        return f"{int(number[0].strip(b'-') or b'0')}, or as these letters"
    octal = re.match(rb"(-?0[0-7]*)[0-9]*\Z", value)
    if octal is None or int(octal[1], 8) == int(value):
        return None
    return str(int(octal[1], 8))


def _shown(word: bytes) -> str:
    return word[:40].decode(errors="replace")
