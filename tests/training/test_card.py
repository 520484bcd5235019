"""The model card that a run writes: data, sizes, training, score with its signature, licence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import toys

from transduce import __version__
from transduce.experiment import Config
from transduce.search.settings import Beam, Greedy
from transduce.training.run_folder import Facts, card, with_other_settings, with_other_weights

CORPUS = {
    "splits": {
        "train": {
            "spans": [
                {"name": "news", "start": 0, "stop": 12345, "weight": 1.0, "tag": ""},
                {"name": "web", "start": 12345, "stop": 12445, "weight": 2.5, "tag": ""},
            ]
        },
        "valid": {"spans": [{"name": "dev", "start": 0, "stop": 1000, "weight": 1.0, "tag": ""}]},
    }
}


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "parameters": 1_234_567,
        "step": 5000,
        "epoch": 2,
        "seconds": 125.0,
        "target_tokens": 7_654_321,
        "weights": "best by validation bleu, step 5,000",
        "validation": {"loss": 1.234, "bleu": 39.876},
        "signature": "nrefs:1|tok:13a",
        "corpus": CORPUS,
    }
    return Facts(**{**values, **changes})


def test_a_card() -> None:
    text = card("mine", Config(license="CC-BY-4.0"), facts())
    assert text.startswith(f"# mine\n\nA sequence-to-sequence model trained with transduce {__version__}.\n")
    assert 'translator = transduce.load("mine")' in text
    for line in (
        "- train: news, 12,345 pairs",
        "- train: web, 100 pairs, weight 2.5",
        "- valid: dev, 1,000 pairs",
        "1,234,567 parameters, d_model 512, 6 encoder and",
        "6 decoder layers. Everything is in `config.toml`.",
        "5,000 steps, 3 epochs begun, 7,654,321 target tokens,",
        "| loss | 1.23 |",
        "| bleu | 39.88 |",
        "BLEU signature: `nrefs:1|tok:13a`",
        "CC-BY-4.0",
    ):
        assert f"\n{line}\n" in text
    assert re.search(r"\n2 min 05 s on .+\. Weights: best by validation bleu, step 5,000\.\n", text)


def test_a_card_names_the_search_of_its_scores() -> None:
    """Greedy in validation, the model's own beam in `evaluate`: without a word they would seem to contradict."""
    greedy = "Translated with greedy (`validation.search`)"
    beam = "`transduce translate` and `transduce evaluate` use beam 4 (`search`)"
    assert f"\n\n{greedy}; {beam}.\n" in card("mine", Config(), facts())
    assert f"\n\n{greedy}.\n" in card("mine", Config(search=Greedy()), facts())
    assert "Translated with" not in card("mine", Config(), facts(validation={}, signature=""))
    assert "Translated with" not in with_other_weights(card("mine", Config(), facts()), "others")


def test_a_card_without_validation_or_licence() -> None:
    text = card("mine", Config(), facts(validation={}, signature=""))
    assert "| none | |\n\nNot validated.\n" in text
    assert text.endswith("\n\nNot stated. Set `license` in the config; mind the licences of the data.\n")


def test_other_weights_take_the_score_with_them() -> None:
    text = with_other_weights(card("mine", Config(license="MIT"), facts()), r"average of 3 \1 checkpoints")
    assert "Weights: average of 3 \\1 checkpoints.\n" in text
    assert "best by" not in text
    assert "39.88" not in text
    assert "13a" not in text
    assert (
        "\n## Validation\n\nNot validated since the weights were replaced; `transduce evaluate` measures them.\n\n"
        "## Licence\n\nMIT\n"
    ) in text
    assert with_other_weights(text, "again").count("Not validated") == 1


def test_a_text_of_the_users_own_is_not_damaged() -> None:
    assert with_other_weights("# My own card\n\nWords.\n", "other") == "# My own card\n\nWords.\n"


def test_other_settings_change_what_the_card_says_of_them_and_nothing_else() -> None:
    before = Config(license="MIT")
    after = replace(before, license="CC0-1.0", search=Greedy(), data=replace(before.data, folder="moved"))
    assert with_other_settings(card("mine", before, facts()), before, after) == card("mine", after, facts())
    assert with_other_settings(card("mine", after, facts()), after, before) == card("mine", before, facts())
    assert with_other_settings(card("mine", before, facts()), before, before) == card("mine", before, facts())
    # Scores were measured as the card has it, whatever the config says of the next ones.
    next_ones = replace(after, validation=replace(after.validation, search=Beam(2)))
    assert with_other_settings(card("mine", before, facts()), before, next_ones) == card("mine", after, facts())
    own = "# My own card\n\nMIT\n"
    assert with_other_settings(own, before, after) == own
    mine = "# Mine\n\n## Licence\n\nMIT,\n\nask me.\n\n## More\n\nWords.\n"
    told = "# Mine\n\n## Licence\n\nCC0-1.0\n\n## More\n\nWords.\n"
    assert with_other_settings(mine, before, after) == told


@pytest.mark.parametrize("report_every", [1, 7, 1000])
def test_the_card_of_a_real_run(tmp_path: Path, report_every: int) -> None:
    pairs = toys.copies(50)
    corpus = toys.corpus(tmp_path, pairs[:40], pairs[40:])
    settings = ("license=CC0-1.0", f"training.report_every={report_every}", "validation.every=20")
    outcome = toys.run(corpus, tmp_path / "my-run", *settings)
    text = (tmp_path / "my-run" / "README.md").read_text()
    assert text.startswith("# my-run\n")
    assert "- train: train.source, 40 pairs\n- valid: valid.source, 10 pairs\n" in text
    assert f"| loss | {outcome.validation['loss']:.2f} |\n" in text
    assert f"| chrf | {outcome.validation['chrf']:.2f} |\n" in text
    assert f"version:{sacrebleu.__version__}`\n" in text
    assert text.endswith("\n## Licence\n\nCC0-1.0\n")
    # Five epochs of words with their end symbols, give or take the last one: reported or not, all tokens count.
    trained = re.search(r"20 steps, (\d+) epochs begun, ([\d,]+) target tokens,\n", text)
    assert trained is not None
    tokens = sum(len(word) + 2 for word, _ in pairs[:40])
    begun = int(trained[1])
    assert (begun - 1) * tokens <= int(trained[2].replace(",", "")) <= begun * tokens
