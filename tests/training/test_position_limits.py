"""Learned positions that end before the corpus does are refused before training begins, not at the first long batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys

from transduce.core.errors import ConfigError
from transduce.data.batching import Batches, widest
from transduce.data.corpus import Corpus
from transduce.experiment import check_positions

LONG, LONGER = "abcdefgh" * 2, "abcdefgh" * 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of at most 17 tokens, end and mark of the word included, and targets of 9; in valid 26 of both."""
    pairs = [*toys.copies(20, longest=7), (LONG[:15], "abcdefg")]
    return toys.corpus(tmp_path_factory.mktemp("long"), pairs, [("abc", "abc"), (LONGER, LONGER)])


def learned(encoder: int, decoder: int) -> list[str]:
    return [
        f"model.{part}.positions={{kind='learned',longest={longest}}}"
        for part, longest in (("encoder", encoder), ("decoder", decoder))
    ]


def refusal(made: Path, *settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_positions(toys.config(made, *settings), Corpus.open(made))
    return str(caught.value)


@pytest.mark.parametrize("shapes", [0, 3])
def test_the_widest_batches_are_as_wide_as_is_said(made: Path, shapes: int) -> None:
    corpus = Corpus.open(made)
    split = corpus.split("train")
    plan = Batches(split, corpus.tokenizers, 60, 4, 1, shapes=shapes).plan(0)
    assert widest(split, 4, shapes) == tuple(plan.shapes.max(0))
    assert split.longest == (17, 9)


def test_before_the_first_step_and_before_there_is_a_run_folder(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        toys.run(made, tmp_path / "run", *learned(19, 512))
    assert str(caught.value) == (
        f"model.encoder.positions.longest: there are 19 learned positions, and the longest batch of {made}"
        " (data.train) has 20, with end symbol and padding; set it to at least 20, or model.encoder.positions.kind to"
        " one without an end such as sinusoidal, or prepare the text without sentences so long"
    )
    assert not list((tmp_path / "run").glob("*.toml"))


def test_both_sides_and_both_splits(made: Path) -> None:
    assert refusal(made, *learned(26, 11)).startswith("model.decoder.positions.longest: there are 11 learned")
    assert "(data.valid) has 26," in refusal(made, *learned(25, 26))
    assert refusal(made, *learned(26, 25)).startswith("model.decoder.positions.longest")
    check_positions(toys.config(made, *learned(26, 26)), Corpus.open(made))
    check_positions(toys.config(made), Corpus.open(made))


def test_a_canvas_is_as_long_as_its_length_says(made: Path) -> None:
    for length, search, places in (
        ("{kind='length_classifier'}", "mask_predict", 12),
        ("{kind='cut_at_end',ratio=1.5,extra=8}", "mask_predict", 39),
        ("{kind='upsampled',factor=3}", "ctc", 60),
    ):
        objective = {"ctc": "parallel_ctc", "mask_predict": "masked_prediction"}[search]
        parallel = f"model.decoder={{kind='parallel',length={length}}}"
        searches = (f"objective={objective}", f"search={search}", f"validation.search={search}")
        assert f"(data.train) has {places}," in refusal(made, parallel, *searches, *learned(512, places - 1))


def test_a_run_with_just_enough_reads_all_of_it(made: Path, tmp_path: Path) -> None:
    short = ("search.limits.longest=20", "validation.search.limits.longest=20")
    assert (
        toys.run(made, tmp_path / "run", *learned(26, 26), *short, "training.steps=4", "validation.every=4").step == 4
    )
