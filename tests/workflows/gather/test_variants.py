"""Variants of training pairs: both sides alike, in the requested shares, deterministic."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_gather import pairs, settings, write

from transduce.core.errors import ConfigError
from transduce.text.number_words import english, german
from transduce.workflows.gather.clean import vary
from transduce.workflows.gather.run import gather
from transduce.workflows.gather.settings import Variants

TEXT = [(f"This is number {english(n)}.", f"Das ist Nummer {german(n)}.") for n in range(4000)]


def varied(variants: Variants, joined: float = 0.0, text: list[tuple[str, str]] = TEXT) -> list[tuple[str, str]]:
    return list(vary(iter(text), variants, joined, 480))


def test_without_shares_nothing_changes() -> None:
    assert varied(Variants()) == TEXT


def test_each_variant_changes_both_sides_in_its_share_of_pairs() -> None:
    made = varied(Variants(upper=0.1, title=0.2, bare=0.3))
    upper = [(one, two) for one, two in made if one.isupper() and two.isupper()]
    title = [(one, two) for one, two in made if one.startswith("This Is Number") and two.startswith("Das Ist Nummer")]
    bare = [(one, two) for one, two in made if one.startswith("This is") and one[-1] != "." and two[-1] != "."]
    assert [round(len(some) / len(TEXT), 1) for some in (upper, title, bare)] == [0.1, 0.2, 0.3]
    assert len(set(made) & set(TEXT)) + len(upper) + len(title) + len(bare) == len(TEXT)
    assert made == varied(Variants(upper=0.1, title=0.2, bare=0.3))


def test_chinese_has_no_capitals_and_keeps_both_sides_as_they_are() -> None:
    text = [("This is a cat.", "这是一只猫。")]
    assert varied(Variants(upper=1.0), text=text) == varied(Variants(title=1.0), text=text) == text
    assert varied(Variants(bare=1.0), text=text) == [("This is a cat", "这是一只猫")]


def test_a_question_without_its_mark_loses_the_opening_one_too() -> None:
    assert varied(Variants(bare=1.0), text=[("Who is it?", "¿Quién es?")]) == [("Who is it", "Quién es")]
    assert varied(Variants(bare=1.0), text=[("Who is it?", "Quién es")]) == [("Who is it?", "Quién es")]


def test_neighbours_are_joined_in_order_and_none_is_lost() -> None:
    made = varied(Variants(), joined=0.1)
    assert len(made) < 0.9 * len(TEXT)
    assert " ".join(one for one, _ in made) == " ".join(one for one, _ in TEXT)
    assert " ".join(two for _, two in made) == " ".join(two for _, two in TEXT)
    assert {one.count("This") for one, _ in made} == {1, 2, 3, 4} == {two.count("Das") for _, two in made}


def test_headings_and_long_texts_are_not_joined_and_chinese_has_no_space_between() -> None:
    text = [
        ("A cat.", "一只猫。"),
        ("A dog.", "一只狗。"),
        ("Heading", "标题"),
        ("A cow.", "一头牛。"),
        ("It is.", "是。"),
    ]
    assert ("A cat. A dog.", "一只猫。一只狗。") in varied(Variants(), joined=1.0, text=text)
    assert ("Heading", "标题") in varied(Variants(), joined=1.0, text=text)
    long = [("a" * 250 + ".", "b" * 250 + ".")] * 4
    assert varied(Variants(), joined=1.0, text=long) == long


def test_gathering_varies_training_text_alone(tmp_path: Path) -> None:
    text = write(tmp_path, "german", list(range(100, 400)))
    plain = gather(settings(tmp_path / "plain", [text], valid_share=0.1, test_share=0.1))
    loud = gather(settings(tmp_path / "loud", [text], valid_share=0.1, test_share=0.1, variants={"upper": 1.0}))
    assert pairs(loud, "train")["en-de"] == [(a.upper(), b.upper()) for a, b in pairs(plain, "train")["en-de"]]
    assert pairs(loud, "valid") == pairs(plain, "valid")
    assert pairs(loud, "test") == pairs(plain, "test")


def test_one_entry_stands_for_a_corpus_of_each_language(tmp_path: Path) -> None:
    for languages in ("en de", "en zh"):
        write(tmp_path, f"set.{languages.split()[1]}", list(range(20)), languages)
    files = {"source": f"{tmp_path}/set.XX.en", "target": f"{tmp_path}/set.XX.XX"}
    found = gather(
        settings(tmp_path, [{"name": "set", "languages": ["en", "XX"], "of": ["de", "zh"], **files}], valid_share=0)
    )
    assert [source.name for source in found.sources] == ["set-de", "set-zh"]
    assert pairs(found, "train")["en-de"] == [(english(n), german(n)) for n in range(20)]
    assert set(pairs(found, "train")) == {"en-de", "en-zh"}


def test_a_sample_is_made_of_blocks_of_neighbours(tmp_path: Path) -> None:
    text = write(tmp_path, "german", list(range(6400)))
    found = gather(settings(tmp_path, [{**text, "sample": 0.3}], valid_share=0))
    kept = {one for one, _ in pairs(found, "train")["en-de"]}
    blocks = [sum(english(n) in kept for n in range(start, start + 64)) for start in range(-1, 6335, 64)]
    assert all(count in (0, 63, 64) for count in blocks)  # the first line has number 1
    assert 0.15 < len(kept) / 6400 < 0.45
    assert found.sources[0].dropped == {"not_sampled": 6400 - len(kept)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"of": ["de"]}, "of: \\['de'\\] with languages=\\['en', 'de'\\]: expected codes"),
        ({"languages": ["en", "XX"]}, "or neither"),
        ({"joined": 1.5}, "joined=1.5: expected a share of the pairs, from 0 to 1"),
        ({"sample": -1}, "sample=-1.0: expected a share"),
    ],
)
def test_settings_of_a_corpus_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings(tmp_path, [{**write(tmp_path, "german", [1]), **change}])


def test_shares_that_are_none_are_refused(tmp_path: Path) -> None:
    text = write(tmp_path, "german", [1])
    with pytest.raises(ConfigError, match=r"upper=-0\.1: expected a number from 0 to 1"):
        settings(tmp_path, [text], variants={"upper": -0.1})
    with pytest.raises(ConfigError, match=r"marked=3\.0: expected a number from 0 to 2"):
        settings(tmp_path, [text], variants={"marked": 3})
    with pytest.raises(ConfigError, match="expected at most 1 together"):
        settings(tmp_path, [text], variants={"upper": 0.6, "bare": 0.6})
