"""Raw corpora to clean, divided text: held against what a few lines of Python say of the same files."""

from __future__ import annotations

import gzip
import lzma
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transduce.core import config as configs
from transduce.core.errors import ConfigError, DataError, UserError
from transduce.data.formats import inventory
from transduce.text.number_words import chinese, english, german
from transduce.workflows.gather import clean as script
from transduce.workflows.gather import run as gathering
from transduce.workflows.gather.clean import Cleaner, letters, normalise
from transduce.workflows.gather.run import gather
from transduce.workflows.gather.settings import Gather, Gathered, RawText, weights

WORDS: dict[str, Callable[[int], str]] = {"en": english, "de": german, "zh": chinese}


def write(folder: Path, name: str, numbers: list[int], languages: str = "en de") -> dict[str, Any]:
    """A corpus of number words; gives the settings that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    one, two = languages.split()
    for language in (one, two):
        lines = "".join(f"{WORDS[language](number)}\n" for number in numbers)
        (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    files = {"source": str(folder / f"{name}.{one}"), "target": str(folder / f"{name}.{two}")}
    return {"name": name, "languages": [one, two], **files, "license": "CC0", "origin": "a program"}


def settings(folder: Path, corpora: list[dict[str, Any]], **others: Any) -> Gather:
    plain = {"output": str(folder / "text"), "corpora": corpora, "simplified": [], "workers": 1, **others}
    return configs.parse(Gather, plain)


def lines(path: Path) -> list[str]:
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        return file.read().decode().split("\n")[:-1]


def pairs(gathered: Gathered, split: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for text in gathered.texts:
        if text.split == split:
            one, two = (lines(gathered.folder / name) for name in text.files)
            assert len(one) == len(two) == text.pairs
            found.setdefault("-".join(text.languages), []).extend(zip(one, two, strict=True))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_no_english_sentence_is_on_two_sides_of_the_divide(tmp_path: Path) -> None:
    german_text = write(tmp_path, "german", list(range(400)))
    chinese_text = write(tmp_path, "chinese", list(range(200, 700)), "zh en")
    found = gather(settings(tmp_path, [german_text, chinese_text], valid_share=0.1, test_share=0.1))
    english_of = {
        split: {e for some in pairs(found, split).values() for e, _ in some} for split in ("train", "valid", "test")
    }
    assert all(english_of.values())
    assert not english_of["train"] & (english_of["valid"] | english_of["test"])
    assert not english_of["valid"] & english_of["test"]
    everything = {english(n) for n in range(700)}
    assert set.union(*english_of.values()) == everything
    for split in ("train", "valid", "test"):
        both = pairs(found, split)
        assert {e for e, _ in both["en-de"]} == english_of[split] & {english(n) for n in range(400)}
        assert {e for e, _ in both["en-zh"]} == english_of[split] & {english(n) for n in range(200, 700)}
        assert set(both["en-zh"]) <= {(english(n), chinese(n)) for n in range(700)}
    assert 0.05 < len(english_of["test"]) / 700 < 0.15


def test_what_is_in_a_test_leaves_training_in_every_language_by_either_side(tmp_path: Path) -> None:
    german_text, chinese_text = (
        write(tmp_path, "german", list(range(300))),
        write(tmp_path, "zh", list(range(300)), "en zh"),
    )
    test = {**write(tmp_path, "tested", [7, 250, 1000]), "use": "test"}
    (tmp_path / "tested.en").write_text("Seven!\nquite another English\nTWO HUNDRED AND FIFTY-ONE\n", encoding="utf-8")
    (tmp_path / "tested.de").write_text("Glück\nzweihundertfünfzig!\neinerlei\n", encoding="utf-8")
    found = gather(settings(tmp_path, [german_text, chinese_text, test], valid_share=0.0))
    trained = pairs(found, "train")
    assert trained["en-de"] == [(english(n), german(n)) for n in range(300) if n not in (7, 250, 251)]
    assert trained["en-zh"] == [(english(n), chinese(n)) for n in range(300) if n not in (7, 251)]
    assert len(pairs(found, "test")["en-de"]) == 3
    assert {source.name: source.dropped for source in found.sources} == {
        "german": {"in_test": 3},
        "zh": {"in_test": 2},
        "tested": {},
    }


def test_common_sentences_stay_in_training_and_leave_the_test(tmp_path: Path) -> None:
    text = write(tmp_path, "german", list(range(60)))
    test = {**write(tmp_path, "tested", [7, 57, 200]), "use": "test"}
    found = gather(settings(tmp_path, [text, test], valid_share=0.0, common=8))
    assert (english(7), german(7)) in pairs(found, "train")["en-de"]  # 'seven' has 5 letters
    assert (english(57), german(57)) not in pairs(found, "train")["en-de"]  # 'fiftyseven' has 10
    assert pairs(found, "test")["en-de"] == [(english(57), german(57)), (english(200), german(200))]
    assert found.sources[-1].dropped == {"common": 1}


def test_at_most_so_many_test_pairs_the_same_sentences_in_all_languages(tmp_path: Path) -> None:
    texts = [write(tmp_path, "train", [1])]
    texts += [{**write(tmp_path, "g", list(range(100, 300))), "use": "test"}]
    texts += [{**write(tmp_path, "z", list(range(100, 300)), "en zh"), "use": "test"}]
    tested = pairs(gather(settings(tmp_path, texts, valid_share=0.0, test_most=25)), "test")
    assert len(tested["en-de"]) == 25
    assert [e for e, _ in tested["en-de"]] == [e for e, _ in tested["en-zh"]]


def test_repeats_go_within_and_between_corpora_and_spaces_make_no_other_text(tmp_path: Path) -> None:
    one, two = write(tmp_path, "one", [1, 2, 2, 3]), write(tmp_path, "two", [3, 4])
    (tmp_path / "two.en").write_text(" three\u00a0 \n four\u200b\n", encoding="utf-8")
    found = gather(settings(tmp_path, [one, two], valid_share=0.0))
    assert pairs(found, "train")["en-de"] == [(english(n), german(n)) for n in (1, 2, 3, 4)]
    assert [source.dropped for source in found.sources] == [{"repeated": 1}, {"repeated": 1}]


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((b"A cat.", b"Eine Katze."), ""),
        ((b"A cat.", b"  "), "empty"),
        ((b"...", b"Eine Katze."), "empty"),
        ((b"A cat.", b"\xff"), "invalid_utf8"),
        ((b"print(x)", b"print(x)"), "copied"),
        ((b"A cat.", "猫".encode()), "other_script"),
        ((b"Yes.", b"Ja, das ist wirklich eine ziemlich lange Antwort."), "mismatched"),
        ((b"a" * 500, b"b" * 500), "too_long"),
        ((b"See `here`.", b"Siehe `hier`."), "markup"),
    ],
)
def test_what_is_no_pair_is_left_out(pair: tuple[bytes, bytes], reason: str) -> None:
    raw = RawText("x", ("en", "de"), source="a", target="b", drop="`")
    assert Cleaner(Gather("out", (raw,)), raw).clean(pair, [])[1] == reason


def test_one_spelling_of_each_text() -> None:
    assert normalise("Cafe\u0301\u00a0 \tau\u00adf\u200b\x07\n") == "Café auf"
    assert letters("Don't STOP — Café №5!") == "dontstopcaféno5"


def test_chinese_is_simplified_and_labels_choose_the_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class OpenCC:
        def __init__(self, name: str) -> None:
            assert name == "t2s"

        def convert(self, text: str) -> str:
            asked.append(text)
            return text.replace("貓", "猫")

    monkeypatch.setitem(sys.modules, "opencc", types.SimpleNamespace(OpenCC=OpenCC))
    script.converter.cache_clear()
    corpus = write(tmp_path, "zh", [1, 2, 3, 4], "en zh")
    (tmp_path / "zh.zh").write_text("一只貓\n兩 隻 貓\n三只貓\n四隻貓\n", encoding="utf-8")
    (tmp_path / "labels").write_text("eng\tcmn_Hant\neng\tcmn_Hant\neng\tcmn_Hans\neng\tyue_Hant\n")
    labelled = {**corpus, "labels": str(tmp_path / "labels"), "keep": ["cmn_Hans", "cmn_Hant"]}
    found = gather(settings(tmp_path, [labelled], simplified=["zh"], valid_share=0.0))
    assert [other for _, other in pairs(found, "train")["en-zh"]] == ["一只猫", "兩隻猫", "三只猫"]
    assert asked == ["一只貓", "兩 隻 貓", "三只貓"]
    assert found.sources[0].dropped == {"other_language": 1}
    script.converter.cache_clear()


def test_the_real_package_knows_phrases() -> None:
    pytest.importorskip("opencc", reason="opencc is not installed: pip install 'transduce[chinese]'")
    script.converter.cache_clear()
    assert script.simplify("貓喜歡睡覺，頭髮乾淨") == "猫喜欢睡觉，头发干净"
    assert script.simplify("著名") == "著名"


def test_without_the_package_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    script.converter.cache_clear()
    with pytest.raises(UserError, match=r"needs the package opencc: pip install 'transduce\[chinese\]'"):
        script.simplify("貓")


def test_weights_follow_the_temperature() -> None:
    assert weights({"a": 100, "b": 400}, 1.0) == {"a": pytest.approx(1), "b": pytest.approx(1)}
    halved = weights({"a": 100, "b": 400}, 2.0)  # 10 to 20: a third and two thirds of 500
    assert halved == {"a": pytest.approx(500 / 3 / 100), "b": pytest.approx(1000 / 3 / 400)}


def test_both_directions_are_prepared_with_tags_and_weights(tmp_path: Path) -> None:
    texts = [write(tmp_path, "g", list(range(90))), {**write(tmp_path, "z", list(range(10)), "en zh"), "weight": 2.0}]
    found = gather(settings(tmp_path, texts, valid_share=0.0, temperature=2.0))
    train = found.preparation()["train"]
    assert [(one["name"], one["tag"]) for one in train] == [
        ("en-de g", "<2de>"),
        ("de-en g", "<2en>"),
        ("en-zh z", "<2zh>"),
        ("zh-en z", "<2en>"),
    ]
    assert lines(Path(train[1]["source"])) == [german(n) for n in range(90)]
    expected = weights({"de": 90, "zh": 20}, 2.0)
    assert train[0]["weight"] == pytest.approx(expected["de"], abs=1e-4)
    assert train[2]["weight"] == pytest.approx(2 * expected["zh"], abs=1e-4)


@pytest.mark.parametrize("packed", ["gz", "xz"])
def test_packed_text_is_the_same(packed: str, tmp_path: Path) -> None:
    texts = [write(tmp_path, "g", list(range(300)))]
    plain = gather(settings(tmp_path / "plain", texts, valid_share=0.1))
    small = gather(settings(tmp_path / "small", texts, valid_share=0.1, packed=packed))
    assert [text.files[0] for text in small.texts] == [f"{text.files[0]}.{packed}" for text in plain.texts]
    assert {split: pairs(small, split) for split in ("train", "valid")} == {
        split: pairs(plain, split) for split in ("train", "valid")
    }


def test_killed_anywhere_it_resumes_to_identical_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [write(tmp_path, "g", list(range(300))), write(tmp_path, "z", list(range(300)), "en zh")]
    texts += [{**write(tmp_path, "t", list(range(250, 280))), "use": "test"}]
    gather(settings(tmp_path / "once", texts, valid_share=0.1))
    config = settings(tmp_path / "killed", texts, valid_share=0.1)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("clean_all", "open_cleaned", "divide", "_write", "mark_done", "discard"):
        with monkeypatch.context() as patch:
            patch.setattr(gathering, name, die)
            with pytest.raises(KeyboardInterrupt):
                gather(config)
    gather(config)
    told = capsys.readouterr().err
    assert "resuming: 3 of 3 parts are examined" in told
    assert "nothing to do: it is complete" in told
    assert contents(tmp_path / "killed" / "text") == contents(tmp_path / "once" / "text")
    assert not list((tmp_path / "killed").glob(".*"))


def test_changed_text_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [write(tmp_path, "g", list(range(50)))]
    config = settings(tmp_path, texts, valid_share=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "divide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gather(config)
    write(tmp_path, "g", list(range(100, 140)))
    assert len(pairs(gather(config), "train")["en-de"]) == 40
    assert "was changed: starting over" in capsys.readouterr().err


def test_the_number_of_workers_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "CHUNK_LINES", 20)  # so that there is work for two
    texts = [write(tmp_path, "g", list(range(300)))]
    gather(settings(tmp_path / "one", texts))
    gather(settings(tmp_path / "two", texts, workers=2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"corpora": []}, "corpora: expected at least one [[corpora]], got none"),
        ({"pivot": "fr"}, "corpora: g is in en and de, and every corpus must be in fr and one other language"),
        (
            {"valid_share": 0.5, "test_share": 0.5},
            "expected shares of at least 0 that are below 1 together, and so leave something",
        ),
        ({"temperature": 0.5}, "temperature=0.5, longest=400, largest_ratio=3.0: expected at least 1 of each"),
        ({"common": -1}, "common=-1, test_most=0, workers=1: expected 0 or more"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, **{"corpora": [write(tmp_path, "g", [1])], **change})
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "a b"}, "name: expected letters, digits and + - _, for it names files, got 'a b'"),
        ({"languages": ["en", "en"]}, "languages: expected two codes such as ['en', 'de'], got ['en', 'en']"),
        ({"keep": ["cmn"]}, "keep: ['cmn'] are codes of the file 'labels', and none is given"),
        ({"drop": "("}, "drop: '(' is no regular expression: "),
        ({"target": ""}, "expected either both source and target"),
    ],
)
def test_corpora_that_cannot_be(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, [{**write(tmp_path, "g", [1]), **change}])
    assert text in str(refused.value)
    assert "corpora[0]." in str(refused.value)


def test_two_corpora_need_two_names_and_one_must_be_for_training(tmp_path: Path) -> None:
    text = write(tmp_path, "g", [1])
    with pytest.raises(ConfigError, match="corpora: two are called 'g'; give each a name of its own"):
        settings(tmp_path, [text, text])
    with pytest.raises(ConfigError, match="all are for testing; expected at least one with use = 'train'"):
        settings(tmp_path, [{**text, "use": "test"}])


def test_labels_need_a_line_a_pair(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("eng\tdeu\n")
    text = {**write(tmp_path, "g", [1, 2]), "labels": str(tmp_path / "labels")}
    with pytest.raises(DataError, match="has 1 lines, and g has 2 pairs in 1 file"):
        gather(settings(tmp_path, [text]))


def test_nothing_left_is_reported(tmp_path: Path) -> None:
    text = {**write(tmp_path, "g", [1, 2]), "drop": "."}
    with pytest.raises(DataError, match=r"no training pair is left of those read; dropped of g: \{'markup': 2\}"):
        gather(settings(tmp_path, [text]))


def test_another_folder_is_no_gathered_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no gathered\.json in it; expected a folder that a gather stage has written"):
        Gathered.open(tmp_path)
