"""Faults of translations: each caught where it is one, and nowhere else."""

from __future__ import annotations

import pytest

from transduce.evaluation.report import KINDS, STAY, Health, examine, repeats


@pytest.mark.parametrize(
    "text",
    [
        "no no no no",
        "I said that I said that I said that I said that",
        "我我我我我我我我我我",
        "猫喜欢猫喜欢猫喜欢猫喜欢",
        "hunderthunderthunderthundert",
        "and the cat, and the cat, and the cat, and the cat,",
    ],
)
def test_the_same_again_and_again(text: str) -> None:
    assert repeats(text)
    assert examine(["Something else."], [text], [True]).repeated == 1
    assert examine([text], ["Something else."], [True]).repeated == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No, no, no!",
        "He had had that that day.",
        "哈哈哈哈",
        "Tom and Mary and Bob and Ann",
        "10000000 people",
        "谢谢谢谢你",
    ],
)
def test_what_people_write_too(text: str) -> None:
    assert not repeats(text)


def test_every_fault_is_counted_once() -> None:
    sources = ["A cat.", "A dog sleeps.", "Berlin", "Yes.", "No."]
    made = ["", "A DOG SLEEPS", "Berlin.", "Ja " + "und so weiter und noch vieles mehr, " * 3, "Nein."]
    references = ["Eine Katze.", "Ein Hund schläft.", "Berlin", "Ja.", "Nein."]
    found = examine(sources, made, [True, True, True, True, False], references)
    assert found == Health(lines=5, empty=1, copied=1, repeated=0, long=1, cut=1)
    assert found + found == Health(10, 2, 2, 0, 2, 2)


def test_nothing_from_nothing_is_no_fault() -> None:
    assert examine([" "], [""], [True]) == Health(lines=1)


def test_odd_inputs_are_two_hundred_of_all_kinds() -> None:
    texts = [text for some in KINDS.values() for text in some]
    assert len(texts) == len(set(texts)) == 200
    assert all(text.strip() == text and "\n" not in text for text in texts)
    assert set(STAY) < set(KINDS)
    assert sum("://" in text or "@" in text for text in KINDS["address"]) >= 5
    assert not any(text.isascii() for text in KINDS["other language"][:8])
