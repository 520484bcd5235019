"""Validation: the values are those that the public path gives for the same model and text, and nothing is changed."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import torch
import toys
from cli_runner import Run
from snapshots import same_tensors

from transduce import Config, load
from transduce.core.errors import DataError, UserError
from transduce.data.corpus import Corpus, Split
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.metrics.corpus import error_rates
from transduce.text.number_words import chinese, english, german
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.run_folder import open_model
from transduce.training.validate import held_out_loss, spread, validate

CPU = torch.device("cpu")
ALL = "validation.sentences=0"
STEPS = "training.steps=60"
SPOKEN = {"de": german, "zh": chinese}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run that has learned a little."""
    folder = tmp_path_factory.mktemp("toy")
    pairs = toys.copies(240, longest=5)
    toys.run(toys.corpus(folder, pairs[:200], pairs[200:]), folder / "run", STEPS)
    return folder


def settings(place: Path, *overrides: str) -> Config:
    return toys.config(place / "corpus", STEPS, *overrides)


def test_the_loss_is_that_of_scoring_the_pairs(place: Path) -> None:
    model = open_model(place / "run", trust=False)[2]
    corpus = Corpus.open(place / "corpus")
    sources, targets = corpus.split("valid").texts()
    assert len(sources) == 40
    scored = load(place / "run", "cpu").score(sources, targets)
    expected = -sum(one.log_prob for one in scored) / sum(one.tokens for one in scored)
    for tokens in (1, 16, 4096):  # how it is cut into batches does not matter
        found = held_out_loss(model, corpus, settings(place, f"data.tokens={tokens}"), CPU)
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_translations_are_those_of_the_loaded_model(place: Path) -> None:
    model = open_model(place / "run", trust=False)[2]
    corpus = Corpus.open(place / "corpus")
    sources, targets = corpus.split("valid").texts()
    translations = load(place / "run", "cpu")(sources, protect=False)
    measured = validate(model, corpus, settings(place, ALL, "validation.samples=2"), CPU)
    assert set(measured.values) == {"loss", "perplexity", "bleu", "chrf"}
    assert measured.values["bleu"] == pytest.approx(sacrebleu.corpus_bleu(translations, [targets]).score)
    assert measured.values["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, [targets]).score)
    assert measured.values["perplexity"] == pytest.approx(math.exp(measured.values["loss"]))
    assert measured.signature.startswith("nrefs:1|case:mixed|")
    assert measured.signature.endswith(f"version:{sacrebleu.__version__}")
    shown = [(one.source, one.reference, one.translation) for one in measured.samples]
    every = list(zip(sources, targets, translations, strict=True))
    assert shown == [every[0], every[len(every) // 2]]


def test_fewer_sentences_change_the_translations_measured_and_not_the_loss(place: Path) -> None:
    model = open_model(place / "run", trust=False)[2]
    corpus = Corpus.open(place / "corpus")
    sources, targets = corpus.split("valid").texts()
    whole = validate(model, corpus, settings(place, ALL), CPU).values
    few = validate(model, corpus, settings(place, "validation.sentences=7"), CPU).values
    assert few["loss"] == whole["loss"]
    chosen = [number * len(sources) // 7 for number in range(7)]
    translations = load(place / "run", "cpu")([sources[number] for number in chosen], protect=False)
    references = [targets[number] for number in chosen]
    assert few["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, [references]).score)
    assert few["chrf"] != whole["chrf"]


def test_the_search_is_the_one_of_the_settings(place: Path) -> None:
    model = open_model(place / "run", trust=False)[2]
    corpus = Corpus.open(place / "corpus")
    config = settings(place, "validation.search=beam", "validation.search.size=3", ALL, "validation.samples=40")
    sources, _ = corpus.split("valid").texts()
    translations = load(place / "run", "cpu")(sources, search=config.validation.search, protect=False)
    assert [sample.translation for sample in validate(model, corpus, config, CPU).samples] == translations


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(place: Path, training: bool) -> None:
    model = open_model(place / "run", trust=False)[2].train(training)
    before = {name: tensor.clone() for name, tensor in model.weights().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = validate(model, Corpus.open(place / "corpus"), settings(place), CPU)
    assert model.training is training
    assert same_tensors(dict(model.weights()), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert validate(model, Corpus.open(place / "corpus"), settings(place), CPU) == first  # dropout is off


def test_each_pair_is_translated_into_the_language_of_its_tag(tmp_path: Path) -> None:
    """One corpus copies and one reverses: only the tag says which, in validation too."""
    pairs = {"<2copy>": toys.copies(60), "<2back>": toys.reversals(60)}
    train, valid = (
        tuple(replace(toys.text(tmp_path / f"{split}{tag}", part[begin:end]), tag=tag) for tag, part in pairs.items())
        for split, begin, end in (("train", 0, 55), ("valid", 55, 60))
    )
    tokenizer = SentencePiece(model="char", byte_fallback=False, character_coverage=1.0)
    corpus = prepare(Prepare(str(tmp_path / "corpus"), train, valid, tokenizer=tokenizer, workers=1))
    toys.run(tmp_path / "corpus", tmp_path / "run")
    config = toys.config(tmp_path / "corpus", ALL, "validation.samples=10")
    measured = validate(open_model(tmp_path / "run", trust=False)[2], corpus, config, CPU)
    sources = [sample.source for sample in measured.samples]
    tags = ["copy"] * 5 + ["back"] * 5
    assert sources == [source for part in pairs.values() for source, _ in part[55:]]
    assert [sample.translation for sample in measured.samples] == load(tmp_path / "run", "cpu")(
        sources, to=tags, protect=False
    )


def many(folder: Path, languages: tuple[str, ...], tagged: bool) -> Path:
    """A corpus of English numbers in words of these languages, with tags or without."""

    def texts(split: str, numbers: range) -> tuple[ParallelText, ...]:
        pairs = {to: [(english(number), SPOKEN[to](number)) for number in numbers] for to in languages}
        found = [(to, toys.text(folder / f"{split}-{to}", part)) for to, part in pairs.items()]
        return tuple(replace(text, tag=f"<2{to}>" if tagged else "") for to, text in found)

    tokenizer = SentencePiece(model="char", byte_fallback=False, character_coverage=1.0)
    splits = texts("train", range(1000, 1400)), texts("valid", range(1400, 1420))
    prepare(Prepare(str(folder / "corpus"), *splits, tokenizer=tokenizer, workers=1))
    return folder / "corpus"


def test_bleu_is_tokenised_for_the_target_language(tmp_path: Path, run: Run) -> None:
    """As `evaluate --language zh` does it: by sacreBLEU's standard tokenizer every sentence is one word."""
    corpus = many(tmp_path, ("zh",), tagged=False)
    settings = ("training.steps=100", ALL, "data.tokens=1000", "training.learning_rate.rate=1e-2")
    outcome = toys.run(corpus, tmp_path / "run", *settings, "validation.every=50")
    files = (str(tmp_path / "valid-zh.target"), str(tmp_path / "run"), "--source", str(tmp_path / "valid-zh.source"))
    told = json.loads(run("evaluate", *files, "--language", "zh", "--json", "--device", "cpu").out)["qualities"][0]
    assert outcome.validation["bleu"] == pytest.approx(told["value"], abs=1e-9)
    assert outcome.validation["bleu"] > 1
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert f"BLEU signature: `{told['signature']}`" in card


@pytest.mark.parametrize("search", [("kind=greedy",), ("kind=beam", "size=3")])
def test_evaluate_finds_what_validation_found_with_the_same_search(
    tmp_path: Path, run: Run, search: tuple[str, ...]
) -> None:
    """Where the run's own search is that of validation, no option is needed, and no language."""
    corpus = many(tmp_path, ("zh",), tagged=False)
    own = [f"{where}.{word}" for where in ("search", "validation.search") for word in (*search, "limits.longest=20")]
    rate = "training.learning_rate.rate=1e-2"
    outcome = toys.run(corpus, tmp_path / "run", "training.steps=100", ALL, "data.tokens=1000", rate, *own)
    files = (str(tmp_path / "valid-zh.target"), str(tmp_path / "run"), "--source", str(tmp_path / "valid-zh.source"))
    told = json.loads(run("evaluate", *files, "--json", "--device", "cpu").out)
    assert outcome.validation["bleu"] == pytest.approx(told["qualities"][0]["value"], abs=1e-9)
    assert outcome.validation["bleu"] > 1
    assert told["searches"] == {str(tmp_path / "run"): "beam 3" if len(search) == 2 else "greedy"}


def test_of_many_languages_each_has_its_own_tokenizer(tmp_path: Path) -> None:
    corpus = Corpus.open(many(tmp_path, ("de", "zh"), tagged=True))
    config = toys.config(tmp_path / "corpus", ALL, "validation.samples=40")
    torch.manual_seed(1)
    tokenizers = corpus.tokenizers
    model = config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    measured = validate(model, corpus, config, CPU)
    made = [sample.translation for sample in measured.samples]
    wanted = [sample.reference for sample in measured.samples]
    expected = [
        sacrebleu.corpus_bleu(made[:20], [wanted[:20]]).score,
        sacrebleu.corpus_bleu(made[20:], [wanted[20:]], tokenize="zh").score,
    ]
    assert [measured.values["bleu_de"], measured.values["bleu_zh"]] == expected
    assert measured.values["bleu"] == pytest.approx(sum(expected) / 2)


@pytest.mark.parametrize("metric", ["wer", "cer", "accuracy"])
def test_runs_are_judged_by_errors(place: Path, tmp_path: Path, metric: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jiwer")
    settings = (f"validation.metric={metric}", "validation.every=10", ALL, "training.learning_rate.rate=1e-2")
    outcome = toys.run(place / "corpus", tmp_path / "run", "training.steps=40", *settings)
    lines = toys.reports(tmp_path / "run", "valid")
    best = max if metric == "accuracy" else min
    assert outcome.validation[metric] == best(line[metric] for line in lines)
    assert len({line[metric] for line in lines}) > 1
    sources, targets = Corpus.open(place / "corpus").split("valid").texts()
    made = load(tmp_path / "run", "cpu")(sources, protect=False)
    wer, cer, ser = (rate.value for rate in error_rates(made, targets))
    expected = {"wer": wer, "cer": cer, "accuracy": 100 - ser}
    assert {name: outcome.validation[name] for name in expected} == pytest.approx(expected)
    label = {"wer": "WER", "cer": "CER", "accuracy": "accuracy"}[metric]
    assert f"  {label} {lines[-1][metric]:.2f}" in capfd.readouterr().err


def test_an_error_rate_that_cannot_be_measured_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = toys.copies(30)
    corpus = toys.corpus(tmp_path, pairs[:20], pairs[20:])
    words = corpus / "valid.target.txt"
    lines = words.read_text().split("\n")
    monkeypatch.setattr(Split, "texts", lambda self: ([], [*lines[:3], " ", *lines[4:-1]]))
    with pytest.raises(DataError) as caught:
        toys.run(corpus, tmp_path / "run", "validation.metric=wer")
    assert str(caught.value) == (
        "validation.metric: wer counts edits against the words of each reference, and reference 4 of split 'valid' in"
        f" {corpus} is empty; remove the pair, or set validation.metric=chrf"
    )
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UserError, match=r"error rates need the package jiwer: pip install 'transduce\[senses\]'"):
        toys.run(corpus, tmp_path / "run", "validation.metric=cer")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_some_sentences_are_of_every_corpus() -> None:
    assert spread(10, 3) == [0, 3, 6]
    assert spread(3, 10) == spread(3, 0) == [0, 1, 2]
    assert spread(0, 5) == []
    assert len(set(spread(7546, 1000))) == 1000
