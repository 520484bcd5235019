"""Files beside Marian's weights: the decoder's default settings, and the vocabularies.

    model.npz.decoder.yml (or decoder.yml)  vocab.spm (or a .yml vocabulary, with source.spm and target.spm)

Marian writes down paths as they were when it ran. Here only their last parts count: the files are looked for beside the
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import sentencepiece

from transduce.core.errors import RunError
from transduce.core.untrusted import read_small
from transduce.exchange.foreign import read_settings, read_text, shown
from transduce.text.tokenizer import LARGEST_MODEL_BYTES

DECODER = "decoder.yml"
SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
_YAML = (".yml", ".yaml", ".json")  # Marian reads JSON vocabularies as YAML, of which they are a part


@dataclass(frozen=True)
class Vocabulary:
    """One side's vocabulary: the file that numbers pieces, the numbers, and the SentencePiece model that cuts text."""

    path: Path
    numbers: dict[str, Any]
    pieces: Path


def decoder_settings(weights: Path) -> tuple[Path, dict[str, Any]]:
    """The settings that Marian wrote for decoding with these weights, and their file; {} if there are none."""
    folder = weights.parent
    known = [folder / f"{weights.name}.{DECODER}", folder / DECODER]
    others = sorted(folder.glob(f"*.{DECODER}"))
    found = [path for path in known if path.is_file()] or (others if len(others) == 1 else [])
    return (found[0], read_settings(read_text(found[0]), found[0])) if found else (known[0], {})


def vocabularies(weights: Path, decoder: Path, listed: Any, shared: bool) -> tuple[Vocabulary, ...]:
    """One vocabulary for both sides, or one a side; `listed` is `vocabs` in the decoder's settings."""
    named = listed if isinstance(listed, list) and listed else []
    paths = [weights.parent / PurePosixPath(name.replace("\\", "/")).name for name in named]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise RunError(
            f"{decoder}: names the vocabulary {shown(str(missing[0].name))}, and it is not beside {weights.name}; copy"
            " the model again, whole"
        )
    paths = paths or _beside(weights, shared)
    sides = paths[:1] if shared else [paths[0], paths[-1]]
    if shared and len(set(paths)) > 1:
        raise RunError(f"{decoder}: names {len(set(paths))} vocabularies, and the embeddings of both sides are one")
    return tuple(_read(path, weights, side) for path, side in zip(sides, (SOURCE_PIECES, TARGET_PIECES), strict=False))


def _beside(weights: Path, shared: bool) -> list[Path]:
    """Find vocabularies by their names, for folders without settings of a decoder."""
    found = []
    for patterns in (("*vocab*.spm", "*vocab.yml"),) if shared else (("*src*vocab.yml",), ("*trg*vocab.yml",)):
        files = sorted(path for pattern in patterns for path in weights.parent.glob(pattern))
        if len(files) != 1:
            raise RunError(
                f"{weights.parent}: has {len(files)} files {' or '.join(patterns)} beside {weights.name}; expected one,"
                f" with the number of each piece, or {weights.name}.{DECODER}, which names it. Copy the model again"
            )
        found += files
    return found


def _read(path: Path, weights: Path, side: str) -> Vocabulary:
    if path.suffix == ".spm":
        return Vocabulary(path, _piece_numbers(path), path)
    if path.suffix not in _YAML:
        raise RunError(f"{path}: expected a vocabulary of SentencePiece (.spm) or in YAML; others cannot be imported")
    pieces = path.with_name(side)
    if not pieces.is_file():
        raise RunError(
            f"{pieces}: No such file. {path.name} numbers pieces, and the SentencePiece model that cuts text into them"
            f" was expected beside {weights.name}; models of BPE codes or words cannot be imported"
        )
    numbers = read_settings(read_text(path), path)
    return Vocabulary(path, {piece: integer(path, numbers, piece) for piece in numbers}, pieces)


def _piece_numbers(path: Path) -> dict[str, Any]:
    """The number of each piece of a SentencePiece model."""
    try:
        model = read_small(path, LARGEST_MODEL_BYTES)
    except ValueError as error:
        raise RunError(f"{path}: {error}; expected a SentencePiece model") from None
    except OSError as error:
        raise RunError(f"{path}: not a SentencePiece model ({error}); copy the model again") from None
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise RunError(f"{path}: not a SentencePiece model ({error}); copy the model again") from None
    return {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}


def integer(where: Path, facts: dict[str, Any], name: str, default: int | None = None) -> int:
    """An integer setting."""
    return int(real(where, facts, name, default))


def real(where: Path, facts: dict[str, Any], name: str, default: float | None = None) -> float:
    """A setting that is a finite number."""
    value = facts.get(name, default)
    try:
        found = float(str(value))
        int(found)  # refuses what is not finite
        return found
    except (ValueError, OverflowError):
        raise RunError(f"{where}: {name[:60]}: expected a number, got {shown(value)}; copy the model again") from None
