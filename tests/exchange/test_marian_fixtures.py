"""Models that Marian itself wrote, with the translations that Marian itself found (shared/reference/marian).

They lie beside the checkout and are no part of it: where they are not, these tests are skipped.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import Run, refused

import transduce
from transduce.engines.native.library import built

_PLACES = [parent / "shared" / "reference" / "marian" for parent in Path(__file__).resolve().parents[2:]]
FIXTURES = next((place for place in _PLACES if place.is_dir()), None)
pytestmark = pytest.mark.skipif(FIXTURES is None, reason="shared/reference/marian is not beside the checkout")
pytest.importorskip("yaml", reason="reads Marian's files: pip install transduce[marian]")
# Marian's limit is three times the longest source of a batch, not of the sentence: one line of `post` never ends, and
# stood in a batch with a source of 23 tokens.
LIMIT = 69
LINES = 200

Found = tuple[str, float, float]  # text, log-probability, score


@cache
def expected(name: str) -> list[list[Found]]:
    """What Marian found for each line, best first."""
    assert FIXTURES is not None
    found: list[list[Found]] = [[] for _ in range(LINES)]
    for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
        number, text, feature, score = line.split(" ||| ")
        found[int(number)].append((text, float(feature.removeprefix("F0= ")), float(score)))
    return found


def translated(run: Path, size: int, **options: Any) -> list[list[Found]]:
    assert FIXTURES is not None
    translator = transduce.load(run, "cpu", **options)
    limits = replace(translator.search.limits, longest_ratio=0.0, longest_extra=LIMIT)
    search = replace(translator.search, size=size, length_penalty=0.6, n_best=size, limits=limits)
    lines = (FIXTURES / "test.en").read_text(encoding="utf-8").splitlines()
    assert len(lines) == LINES
    found = translator.translate(lines, search=search, protect=False)  # as Marian does
    return [[(one.text, one.log_prob, one.score) for one in (best, *best.alternatives)] for best in found]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All of them imported as they are."""
    assert FIXTURES is not None
    folder = tmp_path_factory.mktemp("marian")
    sources = {"post": FIXTURES / "post", "pre": FIXTURES / "pre", "int8": FIXTURES / "post" / "model.intgemm8.bin"}
    return {name: transduce.import_model(source, folder / name) for name, source in sources.items()}


@pytest.mark.parametrize("engine", ["torch", "native"])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", ["post", "pre"])
def test_200_of_200_lines_are_those_of_marian(
    name: str, size: int, engine: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = runs[name]
    if engine == "native":
        if built() is None:
            pytest.skip("the native core is not built")
        run = transduce.convert(run, tmp_path / "native", quantize="none")
    theirs = expected(f"{name}/expected.beam{size}.txt")
    for ours, wanted in zip(translated(run, size, engine=engine), theirs, strict=True):
        assert [text for text, *_ in ours] == [text for text, *_ in wanted]
        for (_, log_prob, score), (_, their_log_prob, their_score) in zip(ours, wanted, strict=True):
            assert log_prob == pytest.approx(their_log_prob, abs=1e-3)
            assert score == pytest.approx(their_score, abs=1e-3)


@pytest.mark.parametrize("engine", ["torch", "native"])
def test_95_percent_of_the_int8_files_lines(engine: str, runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["int8"]
    if engine == "native":
        if built() is None:
            pytest.skip("the native core is not built")
        run = transduce.convert(run, tmp_path / "native")
    theirs = expected("post/expected.intgemm8.beam1.txt")
    pairs = zip(translated(run, 1, engine=engine), theirs, strict=True)
    assert sum(ours[0][0] == wanted[0][0] for ours, wanted in pairs) >= 0.95 * LINES


def test_int8_weights_are_within_half_a_step_of_the_floats() -> None:
    from transduce.exchange.marian_npz import read_binary

    assert FIXTURES is not None
    packed = read_binary(FIXTURES / "post" / "model.intgemm8.bin")
    with np.load(FIXTURES / "post" / "model.npz") as floats:
        assert packed.keys() == set(floats.files)
        packed.pop("special:model.yml")
        rounded = [name for name in packed if not np.array_equal(packed[name], floats[name])]
        assert len(rounded) == 32
        for name in rounded:
            assert np.abs(packed[name] - floats[name]).max() <= 0.501 * np.abs(floats[name]).max() / 127


def test_ssru_is_refused_by_its_name(tmp_path: Path, run: Run) -> None:
    assert FIXTURES is not None
    for name in ("model.npz", "model.intgemm8.bin"):
        said = refused(run("import", FIXTURES / "ssru" / name, tmp_path / "run"))
        assert "its decoder has recurrent cells, 'ssru', in place of self-attention" in said
        assert "SSRU decoders, as Marian's fast students have them, cannot be imported yet" in said


def test_the_folders_defaults(runs: dict[str, Path], tmp_path: Path) -> None:
    """Beam 12 and no normalization: what its decoder.yml says; without that file Marian's own defaults."""
    assert FIXTURES is not None
    shutil.copytree(FIXTURES / "pre", tmp_path / "pre")
    (tmp_path / "pre").chmod(0o755)
    (tmp_path / "pre" / "model.npz.decoder.yml").unlink()
    bare = transduce.import_model(tmp_path / "pre", tmp_path / "bare")
    for folder in (runs["pre"], bare):
        search = transduce.load(folder, "cpu").search
        assert (search.size, search.length_penalty, search.length_normalization) == (12, 0.0, "power")
        assert search.shrinking
