"""The paired bootstrap on systems that differ clearly, hardly and not at all, and what is said about each."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from noisy_text import sentences, with_errors
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result

from transduce.core.errors import ConfigError, DataError
from transduce.evaluation.significance import compare, verdict

REFERENCES = sentences(80, seed=1)
GOOD, BAD = with_errors(REFERENCES, 0.1, seed=2), with_errors(REFERENCES, 0.4, seed=3)


def test_a_clear_difference_is_claimed_by_every_metric() -> None:
    by_bleu, by_chrf, by_ter = compare(BAD, GOOD, REFERENCES, samples=200)
    assert [found.metric for found in (by_bleu, by_chrf, by_ter)] == ["BLEU", "chrF2", "TER"]
    assert by_bleu.second > by_bleu.first
    assert by_ter.second < by_ter.first
    for found in (by_bleu, by_chrf, by_ter):
        assert found.p_value < 0.025
        assert found.text.startswith("B is better than A by ")
        assert found.text.endswith(": unlikely to be chance.")


def test_the_better_system_may_come_first() -> None:
    for found in compare(GOOD, BAD, REFERENCES, names=("new", "old"), samples=100):
        assert found.text.startswith("new is better than old by ")


def test_equal_systems() -> None:
    for found in compare(GOOD, GOOD, REFERENCES, samples=100):
        assert found.p_value == 1.0
        assert found.text.startswith("A and B are equal: both have ")
        assert found.text.endswith("No difference can be claimed.")


def test_equally_good_systems() -> None:
    """Each system is good on one half of a text that says everything twice; one more wrong word makes no difference."""
    first, second = GOOD + BAD, [*BAD, GOOD[0] + " wrong", *GOOD[1:]]
    for found in compare(first, second, REFERENCES + REFERENCES, samples=200):
        assert found.first != found.second
        assert found.p_value > 0.2
        assert found.text.startswith("No difference can be claimed: A is ahead of B by ")


def test_figures_are_sacrebleus_own_and_repeat() -> None:
    found = compare(GOOD, BAD[:40] + GOOD[40:], REFERENCES, samples=100, seed=7)
    assert found == compare(GOOD, BAD[:40] + GOOD[40:], REFERENCES, samples=100, seed=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACREBLEU_SEED", "7")
        systems: list[tuple[str, Sequence[str]]] = [("A", GOOD), ("B", BAD[:40] + GOOD[40:])]
        _, table = PairedTest(systems, {"BLEU": BLEU()}, [REFERENCES], test_type="bs", n_samples=100)()
    first, second = table["BLEU"]
    assert isinstance(first, Result)
    assert isinstance(second, Result)
    assert (found[0].first, found[0].second, found[0].p_value) == (first.score, second.score, second.p_value)


@pytest.mark.parametrize("before", [None, "99"])
def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    else:
        monkeypatch.setenv("SACREBLEU_SEED", before)
    compare(GOOD[:5], BAD[:5], REFERENCES[:5], samples=5)
    assert os.environ.get("SACREBLEU_SEED") == before


def test_wording_of_a_claim() -> None:
    assert verdict("BLEU", ("A", "B"), (20.5, 21.3), 0.008, 1000).text == (
        "B is better than A by 0.8 BLEU (21.3 against 20.5); chance alone gives a difference this large in "
        "0.8 % of 1,000 resamples (p = 0.008): unlikely to be chance."
    )


def test_wording_where_lower_is_better() -> None:
    text = verdict("TER", ("A", "B"), (40.0, 45.5), 0.001, 1000).text
    assert text.startswith("A is better than B by 5.5 TER (40.0 against 45.5); ")


def test_wording_where_nothing_can_be_claimed() -> None:
    assert verdict("BLEU", ("A", "B"), (21.3, 21.0), 0.3, 1000).text == (
        "No difference can be claimed: A is ahead of B by 0.3 BLEU (21.3 against 21.0), but chance alone gives a "
        "difference this large in 30.0 % of 1,000 resamples (p = 0.300); a claim needs p < 0.025."
    )
    tiny = verdict("chrF2", ("A", "B"), (50.004, 50.024), 0.45, 1000).text
    assert "B is ahead of A by less than 0.1 chrF2 (50.02 against 50.00)" in tiny


def test_wording_of_equality() -> None:
    found = verdict("BLEU", ("A", "B"), (20.0, 20.0), 0.001, 1000)
    assert found.text == "A and B are equal: both have 20.0 BLEU. No difference can be claimed."
    assert found.p_value == 1.0


def test_errors() -> None:
    with pytest.raises(DataError) as caught:
        compare(GOOD, BAD[:-1], REFERENCES, names=("new", "old"))
    assert "cannot be compared: new has 80 lines, old has 79. Both must translate the same text." in str(caught.value)
    with pytest.raises(DataError) as caught:
        compare(GOOD, BAD, REFERENCES[:-1])
    assert "There are 80 hypotheses, but the reference has 79 lines." in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        compare(GOOD, BAD, REFERENCES, samples=100, seed=0)
    assert "samples is 100 and seed is 0: both must be at least 1." in str(refused.value)
