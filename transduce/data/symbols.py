"""The tokens that mean something to the program itself rather than to a reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbols:
    """Numbers of the special tokens on one side.

    `pad` only fills places that a mask hides. `never` lists what a search must not write: padding, the start
    symbol, the unknown token.
    """

    pad: int
    bos: int
    eos: int
    unk: int
    never: tuple[int, ...] = ()
