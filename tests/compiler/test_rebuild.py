"""Fused instructions that are cut again keep every order of the program."""

from __future__ import annotations

from hocket import Custom, Program, chunk, prove


def test_what_overwrites_after_an_rrs_comes_after_who_read_before_it() -> None:
    """Found by exporting random programs: rank 2 sends in[1] to rank 0, adds to it in an rrs, and overwrites it. The
    send is fused with what came before and cut again; the rrs, which stores nothing, has to keep the two apart."""
    with Program(Custom(3, inputs=7, outputs=7, post=lambda r, i: None, inplace=True)) as p:
        for i in range(3):
            chunk(2, "in", i).reduce(chunk(0, "in", i), ch=0)
        chunk(2, "in", 3).copy(1, "sc", 0, ch=12)
        chunk(2, "in", 1).copy(0, "in", 0)
        chunk(2, "in", 1).reduce(chunk(1, "sc", 0))
        chunk(2, "in", 1).copy(1, "in", 4, ch=12)
        chunk(1, "in", 5).copy(2, "in", 1)
        chunk(1, "in", 6).copy(2, "in", 2)
    prove(p.compile())
