"""Vocabulary maps: sentencepiece models with the token ids of a table, such as Marian's vocab.json.

Marian segments text with one model per side and numbers the pieces of both in one table, or in one per side. A piece
missing from the table is unknown. Tags such as `>>fra<<`, at the start of a text, are in the table only.

`Symbols` are the special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from transduce.core.errors import DataError
from transduce.core.untrusted import read_json


@dataclass(frozen=True)
class Symbols:
    """Token ids of the special symbols on one side.

    `pad` only fills masked positions. `never` lists what decoding must not write: padding, the start symbol, the
    unknown token.
    """

    pad: int
    bos: int
    eos: int
    unk: int
    never: tuple[int, ...] = ()


LARGEST_TABLE_BYTES = 64 << 20
_TAG = re.compile(r">>[^<>\s]+<<")


@dataclass(frozen=True)
class VocabularyMap:
    """The piece of each token id, and the special symbols."""

    pieces: tuple[str, ...]
    symbols: Symbols

    def __post_init__(self) -> None:
        special = (self.symbols.pad, self.symbols.bos, self.symbols.eos, self.symbols.unk, *self.symbols.never)
        if not all(0 <= number < len(self.pieces) for number in special):
            raise DataError(f"special symbols {special}: expected numbers below that of the pieces, {len(self.pieces)}")
        if len(self.numbers) < len(self.pieces):
            raise DataError(f"{len(self.pieces) - len(self.numbers)} pieces are there twice; expected each once")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The token id of each piece."""
        return {piece: number for number, piece in enumerate(self.pieces)}

    def tag_of(self, text: str) -> str:
        """Return the tag that a text begins with, if the map has it."""
        match = _TAG.match(text)
        return match[0] if match and match[0] in self.numbers else ""

    def as_bytes(self) -> bytes:
        """Serialize to the JSON that `load` reads."""
        facts = {"symbols": asdict(self.symbols), "pieces": self.pieces}
        return json.dumps(facts, ensure_ascii=False, indent=0).encode()

    @classmethod
    def load(cls, path: Path) -> VocabularyMap:
        """Load the map in a file."""
        try:
            if path.stat().st_size > LARGEST_TABLE_BYTES:
                raise DataError(f"{path}: too large; a table of pieces has at most {LARGEST_TABLE_BYTES:,} bytes")
            facts = read_json(path, LARGEST_TABLE_BYTES)
            numbers, pieces = facts["symbols"], facts["pieces"]
            plain = [numbers[name] for name in ("pad", "bos", "eos", "unk")]
            if not all(type(n) is int for n in (*plain, *numbers["never"])) or not all(type(p) is str for p in pieces):
                raise ValueError("numbers and strings were expected")
            "".join(pieces).encode()  # raises for escaped lone surrogates
            pad, bos, eos, unk = plain
            return cls(tuple(pieces), Symbols(pad, bos, eos, unk, tuple(numbers["never"])))
        except OSError as error:
            raise DataError(f"{path}: the table of pieces cannot be read: {error.strerror}") from None
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: not a table of pieces ({error!r}); copy the tokenizer folder again") from None


class Renumbered:
    """A sentencepiece processor with the token ids of a map in place of its own; has the methods that we use."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, table: VocabularyMap) -> None:
        self._processor, self._table = processor, table
        self._own = [-1] * len(table.pieces)  # the model's own id of each piece, -1 where the model lacks it
        for model_id in range(processor.get_piece_size()):
            number = table.numbers.get(processor.id_to_piece(model_id))
            if number is not None:
                self._own[number] = model_id

    def encode(self, text: str) -> list[int]:
        """Encode a text to tokens. A leading tag that the map has is one token."""
        tag = self._table.tag_of(text)
        # As strings: characters unknown to this model may still be in the map, from the other side.
        pieces = self._processor.encode(text[len(tag) :], out_type=str)
        return [
            self._table.numbers.get(piece, self._table.symbols.unk) for piece in ([tag, *pieces] if tag else pieces)
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens; markers in pieces of the other side, which this model does not know, become spaces too."""
        text: str = self._processor.decode([self._table.pieces[token] for token in tokens])
        return text.replace("▁", " ").strip()

    def id_to_piece(self, token: int) -> str:
        return self._table.pieces[token]

    def piece_to_id(self, piece: str) -> int:
        return self._table.numbers.get(piece, self._table.symbols.unk)

    def get_piece_size(self) -> int:
        return len(self._table.pieces)

    def get_score(self, token: int) -> float:
        return float(self._processor.get_score(self._own[token])) if self._own[token] >= 0 else 0.0

    def is_control(self, token: int) -> bool:
        special = token in (self._table.symbols.pad, self._table.symbols.bos, self._table.symbols.eos)
        return special or (self._own[token] >= 0 and self._processor.is_control(self._own[token]))

    def is_unknown(self, token: int) -> bool:
        return token == self._table.symbols.unk

    def is_byte(self, token: int) -> bool:
        return self._own[token] >= 0 and bool(self._processor.is_byte(self._own[token]))

    def is_unused(self, token: int) -> bool:
        """Whether text is never segmented into this piece: it belongs to the other side, or is a tag."""
        return self._own[token] < 0 or bool(self._processor.is_unused(self._own[token]))

    def pad_id(self) -> int:
        return self._table.symbols.pad

    def bos_id(self) -> int:
        return self._table.symbols.bos

    def eos_id(self) -> int:
        return self._table.symbols.eos

    def unk_id(self) -> int:
        return self._table.symbols.unk

    def normalize(self, text: str) -> str:
        return str(self._processor.normalize(text))

    def nbest_encode(self, text: str, nbest_size: int) -> Any:
        return self._processor.nbest_encode(text, nbest_size=nbest_size)


Processor = sentencepiece.SentencePieceProcessor | Renumbered
