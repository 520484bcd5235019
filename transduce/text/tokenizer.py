"""Text to tokens and back, by sentencepiece; one tokenizer for both sides or one for each.

Tokens are sentencepiece's own numbers, or those of a table (vocabulary.py), which two models may share.
*Text* is a str, *pieces* are subword strings, *tokens* are their numbers. Start and end symbols are not put in here:
whoever makes batches does that.

Every way in which a tokenizer's pieces can write a text, fewest pieces first.

Full-width punctuation of Chinese and Japanese, put back where a tokenizer's normalization made it narrow.

NFKC, which sentencepiece applies unless told otherwise, writes `你好，世界？` as `你好,世界?`: right for a vocabulary,
wrong on a page. What stands before a mark decides, never what follows, so that text that grows by words only grows.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentencepiece

from transduce.core.errors import DataError, needed_by
from transduce.core.untrusted import read_small
from transduce.text.subword_sampling import Sampler, Tokens
from transduce.text.vocabulary import Processor, Renumbered, Symbols, VocabularyMap

Spelling = tuple[int, ...]


def spellings(text: str, pieces: Mapping[str, Spelling], most: int) -> list[Spelling]:
    """At most `most` ways to write `text` in whole pieces; none where a character belongs to no piece.

    `pieces` maps what a piece writes to its token, or a character that has none to the tokens of its bytes.
    """
    longest = max(map(len, pieces), default=0)
    ways: list[list[Spelling]] = [[()]]  # of each beginning of the text
    for end in range(1, len(text) + 1):
        found = {
            (*before, *pieces[text[start:end]])
            for start in range(max(0, end - longest), end)
            if text[start:end] in pieces
            for before in ways[start]
        }
        ways.append(sorted(found, key=lambda way: (len(way), way))[:most])
    return ways[-1]


NARROW, WIDE = ",?!:;", "，？！：；"
_WIDENED = str.maketrans(NARROW, WIDE)
_LETTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Han characters; Korean has narrow marks
_BEFORE = (
    rf"(?<=[{_LETTERS}」』》】])",
    rf"(?<=[{_LETTERS}。][”’\")])",  # a quotation or a bracket in such text has ended
    rf"(?<=[{_LETTERS}。][{NARROW}][”’\")])",
)
_MARKS = re.compile(rf"(?:{'|'.join(_BEFORE)})[{NARROW}]+")


def widened(text: str) -> str:
    """The text with full-width marks after Chinese and Japanese; others stay: of `他7:30来,好吗?` the colon."""
    return _MARKS.sub(lambda found: found[0].translate(_WIDENED), text)


if TYPE_CHECKING:  # numpy is slow to import, and translating can do without
    import numpy as np
    import numpy.typing as npt

LARGEST_MODEL_BYTES = 64 << 20
MOST_SPELLINGS = 64  # of a word; those of more pieces are ever less likely to be written
SHARED, SOURCE, TARGET = "shared.model", "source.model", "target.model"
TABLE = ".json"  # in place of `.model`: the numbers of a model's pieces; shared.json is that of both sides


class Tokenizer:
    """One sentencepiece model, with its own numbers or those of a table. Safe to use from several threads."""

    def __init__(self, model: bytes, origin: str = "tokenizer", table: VocabularyMap | None = None) -> None:
        self.model, self.origin, self.table = model, origin, table
        self._samplers: dict[float, Sampler] = {}
        try:
            if not model:
                raise RuntimeError("it is empty")
            self._processor = self._numbered(sentencepiece.SentencePieceProcessor(model_proto=model))
        except RuntimeError as error:
            raise DataError(f"{origin}: not a sentencepiece model ({error}); expected a file trained by spm") from None
        except UnicodeDecodeError as error:
            raise self._no_text(error) from None
        self.size: int = self._processor.get_piece_size()
        if self._processor.eos_id() < 0:
            raise DataError(
                f"{origin}: this model has no end symbol </s>; train it with --eos_id, or without --eos_id=-1"
            )
        special = [
            self._processor.pad_id(),
            self._processor.bos_id(),
            self._processor.eos_id(),
            self._processor.unk_id(),
        ]
        if max(special) >= self.size or self._processor.unk_id() < 0:
            raise DataError(
                f"{origin}: the unknown token or another special symbol lies outside the {self.size} pieces; the file"
                " is damaged"
            )

    @classmethod
    def load(cls, path: str | Path, table: VocabularyMap | None = None) -> Tokenizer:
        """The tokenizer in a .model file."""
        try:
            model = read_small(Path(path), LARGEST_MODEL_BYTES)
        except OSError as error:
            raise DataError(f"{path}: the tokenizer cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{path}: {error}, which no sentencepiece model is; copy the tokenizer again") from None
        return cls(model, str(path), table)

    @cached_property
    def symbols(self) -> Symbols:
        """A model without padding fills with the end symbol; one without a start symbol starts with the end symbol."""
        if self.table is not None:
            return self.table.symbols
        processor = self._processor
        eos, unk = processor.eos_id(), processor.unk_id()
        pad = processor.pad_id() if processor.pad_id() >= 0 else eos
        bos = processor.bos_id() if processor.bos_id() >= 0 else eos
        return Symbols(pad, bos, eos, unk, never=tuple(sorted({pad, bos, unk} - {eos})))

    @cached_property
    def starts_word(self) -> npt.NDArray[np.bool_]:
        """For each token whether its piece begins a word, that is with the marker "▁"."""
        import numpy as np

        return np.array([piece.startswith("▁") for piece in self.pieces(range(self.size))])

    @cached_property
    def byte_fallback(self) -> bool:
        """Whether a character without a piece is written as its bytes rather than as the unknown token."""
        return any(self._processor.is_byte(token) for token in range(self.size))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, without start and end."""
        # One by one: for a list sentencepiece starts a thread, even for one text, and waits until it had its turn.
        return [self._processor.encode(_printable(text)) for text in texts]

    def sample(self, sentences: Sequence[Tokens], alpha: float, seed: int) -> list[list[int]]:
        """The same sentences in other pieces, drawn anew for each: the same ones for the same seed, in any process.

        Unigram models draw from all segmentations, sharper with larger `alpha`; BPE models leave out each merge with
        probability `alpha`. Tags and other symbols, bytes and unknown tokens stay as they are.
        """
        sampler = self._samplers.setdefault(alpha, Sampler.of(self._processor, alpha))
        generator = random.Random(seed)
        return [sampler.sample(tokens, generator) for tokens in sentences]

    def spelling(self, text: str, inside: bool = False) -> tuple[int, ...]:
        """The tokens of a text; with `inside` as it is written right after other text, without a space before it."""
        return tuple((self._inside if inside else self._processor).encode(_printable(text.strip())))

    def spellings(self, text: str) -> list[tuple[int, ...]]:
        """Ways to write a text in whole pieces, after a space and without one, at most MOST_SPELLINGS of each."""
        alone = self._processor.normalize(_printable(text.strip()))
        inside = alone.removeprefix("▁")
        # A character without a piece is written as its bytes, where the model has them.
        spelt = {c: self.spelling(c, inside=True) for c in {*alone} - self._plain.keys()}
        known = {c: tokens for c, tokens in spelt.items() if self._processor.unk_id() not in tokens}
        found = [spellings(form, {**self._plain, **known}, MOST_SPELLINGS) for form in dict.fromkeys((alone, inside))]
        return [way for ways in found for way in ways]

    def holding(self, text: str) -> list[tuple[int, ...]]:
        """The pieces that hold all of a text and more, each as a phrase of one token."""
        inside = self._processor.normalize(_printable(text.strip())).removeprefix("▁")
        return [token for piece, token in self._plain.items() if inside in piece and inside != piece]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens; special symbols are skipped, Chinese marks as wide as they were before normalization."""
        plain = [token for token in map(int, tokens) if token not in self._specials]
        try:
            text: str = self._processor.decode(plain)
            return widened(text) if self._narrows else text
        except UnicodeDecodeError as error:
            raise self._no_text(error) from None

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The subword string of each token."""
        try:
            return [self._processor.id_to_piece(int(token)) for token in tokens]
        except UnicodeDecodeError as error:
            raise self._no_text(error) from None

    def _no_text(self, error: UnicodeDecodeError) -> DataError:
        """Pieces are bytes to sentencepiece, which are turned into text when they are asked for."""
        return DataError(f"{self.origin}: has pieces that are no text ({error.reason}); copy the tokenizer again")

    def token(self, piece: str) -> int:
        """The number of a piece that must be there."""
        token: int = self._processor.piece_to_id(piece)
        if token == self._processor.unk_id() and [piece] != self.pieces([token]):
            raise DataError(f"{self.origin}: no piece {piece!r}; was the tokenizer trained with symbols=[{piece!r}]?")
        return token

    def tag(self, language: str) -> int:
        """The token that names a target language: `<2de>` for "de", or Marian's `>>de<<`; whole tags may be given."""
        names = [language] if language.startswith(("<", ">")) else [f"<2{language}>", f">>{language}<<"]
        known = [name for name in names if self._processor.piece_to_id(name) != self._processor.unk_id()]
        return self.token((known or names)[0])

    def has_tag(self, language: str) -> bool:
        """Whether `tag` finds one."""
        try:
            self.tag(language)
        except DataError:
            return False
        return True

    def cut_tag(self, text: str) -> tuple[tuple[int, ...], str]:
        """The token of the tag that a text begins with, if the numbers are a table's and it is there, and the rest."""
        tag = self.table.tag_of(text) if self.table is not None else ""
        return ((self.token(tag),) if tag else (), text[len(tag) :])

    def with_symbols(self, places: Mapping[str, str]) -> Tokenizer:
        """This tokenizer with symbols that are never split, each in the place of a piece: {symbol: piece}."""
        if self.table is not None:
            raise DataError(f"{self.origin}: its pieces are numbered by a table, which has no place for symbols")
        proto = self._proto()
        numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
        for symbol, piece in places.items():
            number = numbers.get(piece, -1)
            normal = number >= 0 and piece != "▁" and proto.pieces[number].type == proto.SentencePiece.NORMAL
            if not normal:
                raise DataError(f"{self.origin}: {piece!r} is no piece whose place {symbol!r} could take; name another")
            if symbol in numbers:
                raise DataError(f"{self.origin}: {symbol!r} is a piece already; leave it out")
            proto.pieces[number].piece = symbol
            proto.pieces[number].type = proto.SentencePiece.USER_DEFINED
            proto.pieces[number].score = 0.0  # as those have that are there from the start
        return Tokenizer(proto.SerializeToString(), self.origin)

    def continues(self, other: Tokenizer) -> bool:
        """Whether every number means the same as in another, but for symbols in the place of its pieces."""
        if self.size != other.size or self.table is not None or other.table is not None:
            return False
        proto, before = self._proto(), other._proto()
        symbol, piece = proto.SentencePiece.USER_DEFINED, proto.SentencePiece.NORMAL
        return all(
            own.piece == its.piece or (own.type == symbol and its.type == piece)
            for own, its in zip(proto.pieces, before.pieces, strict=True)
        )

    def _proto(self) -> Any:
        """The model file as the message that it is."""
        with needed_by("looking into a tokenizer's file"):
            from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        proto.ParseFromString(self.model)
        return proto

    def unknown(self, text: str) -> list[str]:
        """The characters of the text, in order, that no piece spells (they become bytes, or the unknown token)."""
        return [character for character in text if self._is_unknown(character)]

    def unknown_of(self, characters: set[str]) -> set[str]:
        """Those of the characters that no piece spells."""
        return {character for character in characters if self._is_unknown(character)}

    def _is_unknown(self, character: str) -> bool:
        known = self._known.get(character)
        if known is None:
            tokens = self.encode([character])[0]
            unknown = self._processor.unk_id()
            known = self._known[character] = not any(self._processor.is_byte(t) or t == unknown for t in tokens)
        return not known

    @cached_property
    def _narrows(self) -> bool:
        """Whether full-width marks become narrow; models of others, which have tables, write as their makers do."""
        return self.table is None and self._processor.normalize(WIDE).removeprefix("▁") == NARROW

    @cached_property
    def _inside(self) -> Processor:
        """The same model, but putting no space before a text."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return self._numbered(processor)

    def _numbered(self, processor: sentencepiece.SentencePieceProcessor) -> Processor:
        return processor if self.table is None else Renumbered(processor, self.table)

    @cached_property
    def _plain(self) -> dict[str, tuple[int, ...]]:
        """What each piece that writes text writes."""
        own = self._processor
        special = (own.is_control, own.is_unknown, own.is_byte, own.is_unused)
        tokens = [token for token in range(self.size) if not any(is_special(token) for is_special in special)]
        return {piece: (token,) for piece, token in zip(self.pieces(tokens), tokens, strict=True)}

    @cached_property
    def _known(self) -> dict[str, bool]:
        return {}

    @cached_property
    def _specials(self) -> set[int]:
        symbols = self.symbols
        controls = {token for token in range(self.size) if self._processor.is_control(token)}
        return controls | {symbols.pad, symbols.bos, symbols.eos, symbols.unk}


def _printable(text: str) -> str:
    """Sentencepiece refuses lone surrogates, which are no text; they become U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; the same object twice, or two with one table, if the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether a number means the same on both sides."""
        one_table = self.source.table is not None and self.source.table is self.target.table
        return self.source is self.target or one_table

    def save(self, folder: str | Path) -> None:
        """Write shared.model, or source.model and target.model, and their tables."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        one = self.source is self.target
        models = {SHARED: self.source} if one else {SOURCE: self.source, TARGET: self.target}
        for name, tokenizer in models.items():
            (Path(folder) / name).write_bytes(tokenizer.model)
            if tokenizer.table is not None:
                path = Path(folder) / (SHARED if self.shared else name)
                path.with_suffix(TABLE).write_bytes(tokenizer.table.as_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizers:
        """What `save` wrote."""
        shared, source, target = (Path(folder) / name for name in (SHARED, SOURCE, TARGET))
        table = _table_of(shared)
        if shared.is_file():
            tokenizer = Tokenizer.load(shared, table)
            return cls(tokenizer, tokenizer)
        if source.is_file() and target.is_file():
            return cls(*(Tokenizer.load(path, table or _table_of(path)) for path in (source, target)))
        raise DataError(f"{folder}: no tokenizer here; expected {SHARED}, or {SOURCE} and {TARGET}")

    def continues(self, other: Tokenizers) -> bool:
        """Whether every number means the same here as there, but for symbols that took the place of pieces."""
        if self.digest() == other.digest():
            return True
        pairs = (self.source, other.source), (self.target, other.target)
        return self.shared == other.shared and all(own.continues(its) for own, its in pairs)

    def digest(self) -> str:
        """SHA-256 over the bytes of models and tables, in hexadecimal."""
        digest = hashlib.sha256(self.source.model)
        if self.source is not self.target:
            digest.update(self.target.model)
        for tokenizer in (self.source, self.target):
            if tokenizer.table is not None:
                digest.update(tokenizer.table.as_bytes())
        return digest.hexdigest()


def _table_of(model: Path) -> VocabularyMap | None:
    """The table beside a model, where there is one."""
    path = model.with_suffix(TABLE)
    return VocabularyMap.load(path) if path.is_file() else None
