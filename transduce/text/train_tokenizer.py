"""The tokenizers of a corpus: trained on its text, or given as files.

The two choices of the setting `tokenizer`. Trained models number their special symbols: padding 0, unknown 1, start 2,
end 3.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import sentencepiece

from transduce.core.errors import ConfigError, DataError
from transduce.core.progress import Progress
from transduce.text.tokenizer import Tokenizer, Tokenizers

Normalization = Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_BYTES = 256
_LONGEST_LINE = 16384  # bytes; sentencepiece leaves longer lines out of training


def _check_symbols(symbols: Sequence[str]) -> None:
    for symbol in symbols:
        if not symbol or any(character.isspace() for character in symbol) or symbol in SPECIALS:
            raise ConfigError(f"symbols: {symbol!r}: expected text without spaces, other than {', '.join(SPECIALS)}")
    if len(set(symbols)) < len(symbols):
        raise ConfigError(f"symbols={list(symbols)}: one of them is given twice")


@dataclass(frozen=True)
class TrainedTokenizers:
    """Trained tokenizers, and one line for each setting that could not be met exactly."""

    tokenizers: Tokenizers
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SentencePiece:
    """Train a sentencepiece model on the training text."""

    model: Literal["unigram", "bpe", "char"] = "unigram"
    vocabulary: int = 8000  # pieces in total: special symbols, bytes and `symbols` included
    shared: bool = True  # one vocabulary for both sides, or one each
    byte_fallback: bool = True  # unseen characters become bytes instead of the unknown token
    symbols: tuple[str, ...] = ()  # never split, such as "<2de>"; the tags of the corpora are added automatically
    character_coverage: float = 0.0  # share of the text covered by characters with a piece; 0: see `_coverage`
    normalization: str = "nmt_nfkc"
    sentences: int = 1_000_000  # at most about this many lines, sampled evenly from all corpora

    def __post_init__(self) -> None:
        if self.normalization not in get_args(Normalization):
            choices = ", ".join(get_args(Normalization))
            raise ConfigError(f"normalization={self.normalization!r}: expected one of {choices}")
        if not 0 <= self.character_coverage <= 1:
            raise ConfigError(f"character_coverage={self.character_coverage}: expected from 0 (automatic) to 1")
        if self.vocabulary < 1 or self.sentences < 1:
            raise ConfigError(f"vocabulary={self.vocabulary}, sentences={self.sentences}: expected at least 1")
        _check_symbols(self.symbols)

    def train(self, source: Iterable[str], target: Iterable[str]) -> TrainedTokenizers:
        """Train tokenizers for the two sides of the text; one for both if `shared`."""
        if self.shared:
            tokenizer, notes = self._train_one("both sides", [*source, *target])
            return TrainedTokenizers(Tokenizers(tokenizer, tokenizer), notes)
        first, first_notes = self._train_one("the source side", list(source))
        second, second_notes = self._train_one("the target side", list(target))
        return TrainedTokenizers(Tokenizers(first, second), first_notes + second_notes)

    def _train_one(self, what: str, lines: list[str]) -> tuple[Tokenizer, tuple[str, ...]]:
        if not any(line.strip() for line in lines):
            raise DataError(f"tokenizer: {what} has no text to train on")
        # Each line once: where long stretches of text repeat (one English side for several languages, say),
        # sentencepiece's search for seed pieces takes quadratic time, and a minute becomes days.
        lines = list(dict.fromkeys(lines))
        with Progress(f"Training the tokenizer of {what}", len(lines), "lines") as progress:
            tokenizer = Tokenizer(self._run_within_limits(what, lines), f"tokenizer of {what}")
            progress.advance(len(lines))
        if tokenizer.size == self.vocabulary:
            return tokenizer, ()
        return tokenizer, (
            f"tokenizer of {what}: the text yields {tokenizer.size:,} pieces, not the {self.vocabulary:,} requested",
        )

    def _run_within_limits(self, what: str, lines: list[str]) -> bytes:
        """Train the model; with as many pieces as the text yields, if fewer than requested."""
        try:
            return self._run(lines, self.vocabulary)
        except RuntimeError as error:
            possible = re.search(r"set it to a value <= (\d+)", str(error))
            if possible is None:
                raise DataError(self._why_not(what, lines, str(error))) from None
            return self._run(lines, int(possible.group(1)))

    def _coverage(self, lines: list[str]) -> float:
        """Return the set coverage; if 0, all characters while they take at most 1/8 of the vocabulary, else 0.9995.

        Latin, Cyrillic or Greek letters then all have pieces; of Chinese characters the rarest are encoded as bytes.
        """
        if self.character_coverage:
            return self.character_coverage
        characters: set[str] = set()
        for line in lines:
            characters.update(line)
        return 1.0 if 8 * len(characters) <= self.vocabulary else 0.9995

    def _run(self, lines: list[str], size: int) -> bytes:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=self.model,
            vocab_size=size,
            byte_fallback=self.byte_fallback,
            user_defined_symbols=list(self.symbols),
            character_coverage=self._coverage(lines),
            normalization_rule_name=self.normalization,
            remove_extra_whitespaces=self.normalization != "identity",  # identity keeps every character
            max_sentence_length=_LONGEST_LINE,
            train_extremely_large_corpus=False,
            num_threads=16,  # fixed, since the result depends on it
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
        )
        return model.getvalue()

    def _why_not(self, what: str, lines: list[str], error: str) -> str:
        """Translate sentencepiece's error into the names of our settings."""
        smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", error)
        if smallest is not None:
            least = int(smallest.group(1))
        elif self.model == "char" and "vocab_size" in error:
            least = Tokenizer(self._run(lines, 1 << 20)).size
        elif "sentences_.empty" in error:
            return f"tokenizer: {what} has no line of at most {_LONGEST_LINE:,} bytes to train on"
        else:
            return f"tokenizer: sentencepiece cannot train on {what}: {error}"
        bytes_too = f", {_BYTES} bytes (byte_fallback)" if self.byte_fallback else ""
        return (
            f"tokenizer.vocabulary={self.vocabulary} is too small for {what}: its characters, {len(SPECIALS)} special "
            f"symbols, {len(self.symbols)} symbols{bytes_too} need at least {least}. "
            "Raise vocabulary, or lower character_coverage"
        )


@dataclass(frozen=True)
class GivenTokenizer:
    """Take existing sentencepiece models: one file `shared` by both sides, or `source` and `target`.

    `folder` instead takes the tokenizer folder of a trained or imported model, vocabulary maps included:
    `runs/demo/tokenizer`. `symbols`, never split, replace as many pieces of a shared model, `instead_of`. All other ids
    keep their meaning, so that training can start from earlier weights.
    """

    shared: str = ""
    source: str = ""
    target: str = ""
    folder: str = ""
    symbols: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ways = (bool(self.shared), bool(self.source or self.target), bool(self.folder))
        if sum(ways) != 1 or bool(self.source) != bool(self.target):
            raise ConfigError(
                f"shared={self.shared!r}, source={self.source!r}, target={self.target!r}, folder={self.folder!r}: "
                "expected the path of one model as shared, or of two as source and target, or a tokenizer folder"
            )
        _check_symbols(self.symbols)
        if len(self.symbols) != len(self.instead_of) or len(set(self.instead_of)) < len(self.instead_of):
            raise ConfigError(
                f"instead_of: expected {len(self.symbols)} different pieces, one for each of symbols, got"
                f" {list(self.instead_of)}"
            )

    def load(self) -> Tokenizers:
        """Read the files, and insert the symbols."""
        tokenizers = self._read()
        if not self.symbols:
            return tokenizers
        if tokenizers.source is not tokenizers.target:
            raise ConfigError("symbols: expected none where each side has a model of its own")
        changed = tokenizers.source.with_symbols(dict(zip(self.symbols, self.instead_of, strict=True)))
        return Tokenizers(changed, changed)

    def _read(self) -> Tokenizers:
        if self.folder:
            return Tokenizers.load(self.folder)
        if self.shared:
            tokenizer = Tokenizer.load(self.shared)
            return Tokenizers(tokenizer, tokenizer)
        return Tokenizers(Tokenizer.load(self.source), Tokenizer.load(self.target))
