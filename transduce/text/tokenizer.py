"""Text to tokens and back, by sentencepiece; one tokenizer for both sides or one for each.

*Text* is a str, *pieces* are subword strings, *tokens* are their integer ids: sentencepiece's own, or those of a
`VocabularyMap`, which two models may share. Start and end symbols are added by the batching code, not here.

`spellings` lists the ways in which pieces can write a text, fewest pieces first.

`widened` restores full-width punctuation of Chinese and Japanese that normalization made narrow: NFKC, the default of
sentencepiece, writes `你好，世界？` as `你好,世界?`, right for a vocabulary, wrong on a page. Only what precedes a mark
decides, never what follows, so that streamed text never changes what was already shown.
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

if TYPE_CHECKING:  # numpy is slow to import, and translating does not need it
    import numpy as np
    import numpy.typing as npt

Spelling = tuple[int, ...]


def spellings(text: str, pieces: Mapping[str, Spelling], most: int) -> list[Spelling]:
    """List at most `most` ways to write `text` in whole pieces; none where a character belongs to no piece.

    `pieces` maps a piece's text to its token, or a character without a piece to the tokens of its bytes.
    """
    longest = max(map(len, pieces), default=0)
    ways: list[list[Spelling]] = [[()]]  # of each beginning of the text
    for end in range(1, len(text) + 1):
        ways_to_end = {
            (*before, *pieces[text[start:end]])
            for start in range(max(0, end - longest), end)
            if text[start:end] in pieces
            for before in ways[start]
        }
        ways.append(sorted(ways_to_end, key=lambda way: (len(way), way))[:most])
    return ways[-1]


NARROW, WIDE = ",?!:;", "，？！：；"
_WIDENED = str.maketrans(NARROW, WIDE)
_LETTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Han characters; Korean uses narrow marks
_BEFORE = (
    rf"(?<=[{_LETTERS}」』》】])",
    rf"(?<=[{_LETTERS}。][”’\")])",  # after the end of a quotation or bracket in such text
    rf"(?<=[{_LETTERS}。][{NARROW}][”’\")])",
)
_MARKS = re.compile(rf"(?:{'|'.join(_BEFORE)})[{NARROW}]+")


def widened(text: str) -> str:
    """Widen punctuation after Chinese and Japanese; other marks stay, such as the colon of `他7:30来,好吗?`."""
    return _MARKS.sub(lambda match: match[0].translate(_WIDENED), text)


LARGEST_MODEL_BYTES = 64 << 20
MOST_SPELLINGS = 64  # per word; spellings of more pieces are increasingly unlikely
SHARED, SOURCE, TARGET = "shared.model", "source.model", "target.model"
TABLE = ".json"  # suffix of the vocabulary map beside a model; shared.json is that of both sides


class Tokenizer:
    """One sentencepiece model, with its own ids or those of a map. Safe to use from several threads."""

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
        """Load the tokenizer of a .model file."""
        try:
            model = read_small(Path(path), LARGEST_MODEL_BYTES)
        except OSError as error:
            raise DataError(f"{path}: the tokenizer cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise DataError(f"{path}: {error}, which no sentencepiece model is; copy the tokenizer again") from None
        return cls(model, str(path), table)

    @cached_property
    def symbols(self) -> Symbols:
        """Special tokens; the end symbol stands in for a missing padding or start symbol."""
        if self.table is not None:
            return self.table.symbols
        processor = self._processor
        eos, unk = processor.eos_id(), processor.unk_id()
        pad = processor.pad_id() if processor.pad_id() >= 0 else eos
        bos = processor.bos_id() if processor.bos_id() >= 0 else eos
        return Symbols(pad, bos, eos, unk, never=tuple(sorted({pad, bos, unk} - {eos})))

    @cached_property
    def starts_word(self) -> npt.NDArray[np.bool_]:
        """For each token whether its piece begins a word, that is with the marker "▁": (V,)."""
        import numpy as np

        return np.array([piece.startswith("▁") for piece in self.pieces(range(self.size))])

    @cached_property
    def byte_fallback(self) -> bool:
        """Whether a character without a piece is encoded as its bytes rather than as the unknown token."""
        return len(self.spelling_tokens) > 1

    @cached_property
    def spelling_tokens(self) -> frozenset[int]:
        """Tokens of characters without a piece: their bytes, and the unknown token."""
        spelt = {token for token in range(self.size) if self._processor.is_byte(token)}
        return frozenset(spelt | {self._processor.unk_id()})

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text to tokens, without start and end."""
        # One by one: for a list sentencepiece starts a thread, even for a single text, and waits for it.
        return [self._processor.encode(_printable(text)) for text in texts]

    def sample(self, sentences: Sequence[Tokens], alpha: float, seed: int) -> list[list[int]]:
        """Sample new segmentations of sentences; reproducible for a seed in any process.

        Unigram models draw from all segmentations, sharper with larger `alpha`; BPE models drop each merge with
        probability `alpha`. Tags and other symbols, bytes and unknown tokens stay as they are.
        """
        sampler = self._samplers.setdefault(alpha, Sampler.of(self._processor, alpha))
        generator = random.Random(seed)
        return [sampler.sample(tokens, generator) for tokens in sentences]

    def spelling(self, text: str, inside: bool = False) -> tuple[int, ...]:
        """Encode one text; with `inside` as it is written right after other text, without a space before it."""
        return tuple((self._inside if inside else self._processor).encode(_printable(text.strip())))

    def spellings(self, text: str) -> list[tuple[int, ...]]:
        """List ways to write a text in whole pieces, with and without a space before it, up to MOST_SPELLINGS each."""
        alone = self._processor.normalize(_printable(text.strip()))
        inside = alone.removeprefix("▁")
        # A character without a piece is encoded as its bytes, if the model has them.
        spelt = {c: self.spelling(c, inside=True) for c in {*alone} - self._plain.keys()}
        known = {c: tokens for c, tokens in spelt.items() if self._processor.unk_id() not in tokens}
        ways = [spellings(form, {**self._plain, **known}, MOST_SPELLINGS) for form in dict.fromkeys((alone, inside))]
        return [way for ways_of_form in ways for way in ways_of_form]

    def holding(self, text: str) -> list[tuple[int, ...]]:
        """List the pieces that contain all of a text and more, each as a phrase of one token."""
        inside = self._processor.normalize(_printable(text.strip())).removeprefix("▁")
        return [token for piece, token in self._plain.items() if inside in piece and inside != piece]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to text; special symbols are skipped, and Chinese punctuation is widened again."""
        plain = [token for token in map(int, tokens) if token not in self._specials]
        try:
            text: str = self._processor.decode(plain)
            return widened(text) if self._narrows else text
        except UnicodeDecodeError as error:
            raise self._no_text(error) from None

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the subword string of each token."""
        try:
            return [self._processor.id_to_piece(int(token)) for token in tokens]
        except UnicodeDecodeError as error:
            raise self._no_text(error) from None

    def _no_text(self, error: UnicodeDecodeError) -> DataError:
        """Error for pieces that are not UTF-8: sentencepiece stores bytes, which are decoded only when requested."""
        return DataError(f"{self.origin}: has pieces that are no text ({error.reason}); copy the tokenizer again")

    def token(self, piece: str) -> int:
        """Return the token of a piece, which must exist."""
        token: int = self._processor.piece_to_id(piece)
        if token == self._processor.unk_id() and [piece] != self.pieces([token]):
            raise DataError(f"{self.origin}: no piece {piece!r}; was the tokenizer trained with symbols=[{piece!r}]?")
        return token

    def has_piece(self, piece: str) -> bool:
        """Whether a string is a piece of its own."""
        return bool(self._processor.piece_to_id(piece) != self._processor.unk_id())

    def tag(self, language: str) -> int:
        """Return the token that names a target language: `<2de>` for "de", or Marian's `>>de<<`; or a full tag."""
        names = [language] if language.startswith(("<", ">")) else [f"<2{language}>", f">>{language}<<"]
        known = [name for name in names if self._processor.piece_to_id(name) != self._processor.unk_id()]
        return self.token((known or names)[0])

    def has_tag(self, language: str) -> bool:
        """Whether there is a tag for this target language."""
        try:
            self.tag(language)
        except DataError:
            return False
        return True

    def cut_tag(self, text: str) -> tuple[tuple[int, ...], str]:
        """Split off the leading tag of a text if the vocabulary map has it; returns its tokens and the rest."""
        tag = self.table.tag_of(text) if self.table is not None else ""
        return ((self.token(tag),) if tag else (), text[len(tag) :])

    def with_symbols(self, replaced: Mapping[str, str]) -> Tokenizer:
        """Copy this tokenizer with symbols that are never split, each replacing a piece: {symbol: piece}."""
        if self.table is not None:
            raise DataError(f"{self.origin}: its pieces are numbered by a table, which cannot take symbols")
        proto = self._proto()
        numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
        for symbol, piece in replaced.items():
            number = numbers.get(piece, -1)
            normal = number >= 0 and piece != "▁" and proto.pieces[number].type == proto.SentencePiece.NORMAL
            if not normal:
                raise DataError(f"{self.origin}: {piece!r} is not a piece that {symbol!r} could replace; name another")
            if symbol in numbers:
                raise DataError(f"{self.origin}: {symbol!r} is already a piece; leave it out")
            proto.pieces[number].piece = symbol
            proto.pieces[number].type = proto.SentencePiece.USER_DEFINED
            proto.pieces[number].score = 0.0  # like symbols defined at training
        return Tokenizer(proto.SerializeToString(), self.origin)

    def continues(self, other: Tokenizer) -> bool:
        """Whether every token id means the same as in `other`, except symbols that replaced pieces."""
        if self.size != other.size or self.table is not None or other.table is not None:
            return False
        proto, before = self._proto(), other._proto()
        symbol, piece = proto.SentencePiece.USER_DEFINED, proto.SentencePiece.NORMAL
        return all(
            new.piece == old.piece or (new.type == symbol and old.type == piece)
            for new, old in zip(proto.pieces, before.pieces, strict=True)
        )

    def _proto(self) -> Any:
        """Parse the model file as a protobuf message."""
        with needed_by("parsing a tokenizer's model file"):
            from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        proto.ParseFromString(self.model)
        return proto

    def unknown(self, text: str) -> list[str]:
        """List the characters of the text, in order, that no piece covers (they become bytes, or the unknown token)."""
        return [character for character in text if self._is_unknown(character)]

    def unknown_of(self, characters: set[str]) -> set[str]:
        """Return those of the characters that no piece covers."""
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
        """Whether normalization narrows full-width marks; imported models, which have maps, are left as they are."""
        return self.table is None and self._processor.normalize(WIDE).removeprefix("▁") == NARROW

    @cached_property
    def _inside(self) -> Processor:
        """A processor of this model that puts no space before a text."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return self._numbered(processor)

    def _numbered(self, processor: sentencepiece.SentencePieceProcessor) -> Processor:
        return processor if self.table is None else Renumbered(processor, self.table)

    @cached_property
    def _plain(self) -> dict[str, tuple[int, ...]]:
        """The text of each normal piece and its token, as a phrase of one token."""
        processor = self._processor
        special = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
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
    """Replace lone surrogates, which sentencepiece refuses, by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; the same object twice, or two with one map, if the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @property
    def shared(self) -> bool:
        """Whether a token id means the same on both sides."""
        one_table = self.source.table is not None and self.source.table is self.target.table
        return self.source is self.target or one_table

    def save(self, folder: str | Path) -> None:
        """Write shared.model, or source.model and target.model, and their tables."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        same = self.source is self.target
        models = {SHARED: self.source} if same else {SOURCE: self.source, TARGET: self.target}
        for name, tokenizer in models.items():
            (Path(folder) / name).write_bytes(tokenizer.model)
            if tokenizer.table is not None:
                path = Path(folder) / (SHARED if self.shared else name)
                path.with_suffix(TABLE).write_bytes(tokenizer.table.as_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizers:
        """Load the tokenizers that `save` wrote."""
        shared, source, target = (Path(folder) / name for name in (SHARED, SOURCE, TARGET))
        table = _table_of(shared)
        if shared.is_file():
            tokenizer = Tokenizer.load(shared, table)
            return cls(tokenizer, tokenizer)
        if source.is_file() and target.is_file():
            return cls(*(Tokenizer.load(path, table or _table_of(path)) for path in (source, target)))
        raise DataError(f"{folder}: no tokenizer here; expected {SHARED}, or {SOURCE} and {TARGET}")

    def continues(self, other: Tokenizers) -> bool:
        """Whether every token id means the same here as in `other`, except symbols that replaced pieces."""
        if self.digest() == other.digest():
            return True
        pairs = (self.source, other.source), (self.target, other.target)
        return self.shared == other.shared and all(new.continues(old) for new, old in pairs)

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
    """Load the vocabulary map beside a model, if there is one."""
    path = model.with_suffix(TABLE)
    return VocabularyMap.load(path) if path.is_file() else None
