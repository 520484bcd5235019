"""What the words of a command mean where a model need not be named: its folder, the texts, the language of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.errors import UserError
from transduce.model_folder import shipped

if TYPE_CHECKING:
    from transduce.translator import Translator


@dataclass(frozen=True)
class ParsedArgs:
    """A model's folder, whether it is the one that comes with the package, and texts."""

    folder: Path
    ours: bool
    texts: list[str]

    @property
    def name(self) -> str:
        """What to call the model."""
        return self.folder.name if self.ours else str(self.folder)


def split_model(words: Sequence[str], files: Sequence[Path] = ()) -> ParsedArgs:
    """A model and texts: the first word names the model if it can; else all are texts, for the model that we ship."""
    named = bool(words) and _is_folder(words[0])
    texts = list(words[1:] if named else words)
    folder = Path(words[0]) if named else shipped(words[0] if words else "")
    if texts and files:
        raise UserError(f"texts and --input {files[0]} were given; give one of them")
    return ParsedArgs(folder, not named, texts)


def _is_folder(word: str) -> bool:
    """Whether a folder is meant: it is there, or looks like a path, mistyped it may be, and not like a sentence."""
    if os.path.exists(word):  # which, unlike Path's, takes a text of any length
        return True
    if os.sep not in word or "://" in word:
        return False
    return not any(map(str.isspace, word)) or os.path.exists(os.path.dirname(word))


def check_target(translator: Translator, folder: Path, target: str) -> None:
    """Refuse --to where the model has no tag for that language, or none at all."""
    if not target or translator.reading is not None:
        return
    from transduce.directions import has_tag
    from transduce.languages import language_of_tag

    tokenizer = translator.tokenizers.source
    if not has_tag(tokenizer, target):
        known = [code for code in map(language_of_tag, tokenizer.pieces(range(tokenizer.size))) if code]
        if known:
            raise UserError(f"--to {target}: {folder} has no tag of this language; it translates to {', '.join(known)}")
        raise UserError(
            f"--to {target}: {folder} was trained without tags of target languages, such as <2{target}>, and has one"
            " direction; leave --to out"
        )


def pick_targets(translator: Translator, meant: ParsedArgs, source: str, target: str) -> list[str]:
    """The tag of each text, or the only one of a stream; a model that was named is asked only where `source` is given.

    What is recognised where no target was asked for goes to standard error: somebody may have meant another.
    """
    if not meant.ours and not source:
        check_target(translator, meant.folder, target)
        return [target] * max(1, len(meant.texts))
    from transduce.directions import DirectionQuery, directions_of, has_tag
    from transduce.languages import name_of

    tokenizer = translator.tokenizers.source
    pairs = directions_of(meant.folder, tokenizer)
    if not pairs:
        raise UserError(f"--from {source}: {meant.folder} does not tell which languages it translates; leave it out")
    asked = DirectionQuery(pairs, source, target)
    ways = [asked.way(text) for text in meant.texts] or [asked.way()]
    for way in ways:
        if way.recognised and not target:
            names = [f"{name_of(code)} ({code})" for code in (way.source, way.target)]
            print(f"recognised as {names[0]}: to {names[1]}", file=sys.stderr)
    return [way.target if has_tag(tokenizer, way.target) else "" for way in ways]
