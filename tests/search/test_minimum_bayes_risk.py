"""Minimum Bayes risk: the choice against sacreBLEU pair by pair, and through the translator on texts."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import sacrebleu

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.experiment import Config
from transduce.metrics.sentence import SentenceMetric
from transduce.search import Hypothesis
from transduce.search.settings import Beam, Greedy, MinimumBayesRisk, Samples
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.translator import Translation, Translator

if TYPE_CHECKING:
    from toy_model import Toy

ORACLES: dict[str, Any] = {"chrf": sacrebleu.sentence_chrf, "bleu": sacrebleu.sentence_bleu}


def expected_utilities(texts: Sequence[str], metric: str) -> list[float]:
    """Of each text, against all others one by one."""
    return [
        sum(ORACLES[metric](one, [other]).score for j, other in enumerate(texts) if j != i) / (len(texts) - 1)
        for i, one in enumerate(texts)
    ]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_choice_is_the_one_of_greatest_expected_utility(metric: SentenceMetric) -> None:
    chooser = random.Random(3)
    words = "a dog runs in the park today with two men".split()
    search = MinimumBayesRisk(Samples(samples=12), metric, n_best=3)
    for _ in range(10):
        texts = [" ".join(chooser.choices(words, k=chooser.randint(1, 6))) for _ in range(9)] + ["a dog runs"] * 3
        utilities = expected_utilities(texts, metric)
        chosen = search.choose(texts)
        distinct = dict(zip(texts, utilities, strict=True))
        assert [utility for _, utility in chosen] == pytest.approx(sorted(distinct.values(), reverse=True)[:3])
        assert all(utilities[place] == pytest.approx(utility) for place, utility in chosen)
        assert len({texts[place] for place, _ in chosen}) == 3


def test_a_text_drawn_twice_weighs_twice() -> None:
    search = MinimumBayesRisk(n_best=2)
    assert search.choose(["a", "b", "b", "c"]) == [(1, pytest.approx(100 / 3)), (0, pytest.approx(0))]
    assert search.choose(["a"]) == [(0, 0.0)]  # a search may find fewer than it was asked for
    assert search.choose(["", ""]) == [(0, 0.0)]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "search={kind='mbr',candidates={kind='beam'}}",
            "search.candidates: expected a search with several hypotheses, such as {kind='sample',samples=32} or"
            " {kind='beam',size=8,n_best=8}, got 'beam', which gives 1",
        ),
        ("search={kind='mbr',candidates={samples=1}}", "got 'sample', which gives 1"),
        ("search={kind='mbr',n_best=33}", "search.n_best: expected an integer from 1 to the 32 candidates, got 33"),
        ("search={kind='mbr',utility='ter'}", "search.utility: 'ter' is not one of chrf, bleu"),
        (
            "search={kind='mbr',candidates='greedy'}",
            "search.candidates.kind: 'greedy' is not one of sample, beam, mask_predict, ctc, joint",
        ),
    ],
)
def test_what_is_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, [override])
    assert expected in str(caught.value)


def test_a_run_may_choose_it_and_its_config_is_read_back() -> None:
    config = configs.load(Config, None, ["search=mbr", "search.candidates.temperature=0.8", "search.utility=bleu"])
    assert config.search == MinimumBayesRisk(Samples(temperature=0.8, samples=32), "bleu")
    again = configs.parse(Config, tomllib.loads(configs.dump(config)))
    assert again == config


# -- through the translator ------------------------------------------------------------------------------------------


class Candidates:
    """An engine that finds the same texts for every source."""

    def __init__(self, tokenizers: Tokenizers, texts: Sequence[str]) -> None:
        self.tokens = tokenizers.target.encode(texts)
        self.sizes: list[int] = []

    def search(self, sources: Sequence[Any], search: Any, prefixes: Any, keys: Any) -> list[list[Hypothesis]]:
        self.sizes.append(len(sources))
        found = [Hypothesis(tuple(tokens), -float(i), -2.0 * i, True, ()) for i, tokens in enumerate(self.tokens)]
        return [list(found) for _ in sources]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    lines = ["one two three. four five, six", "eins zwei drei vier fünf"]
    return SentencePiece(vocabulary=300).train(lines, lines).tokenizers


def test_the_translator_chooses_among_texts(tokenizers: Tokenizers) -> None:
    texts = ["six", "eins zwei drei", "eins zwei vier", "eins zwei drei", "fünf"]
    engine: Any = Candidates(tokenizers, texts)
    translator = Translator(engine, tokenizers, MinimumBayesRisk(Samples(samples=5)))
    (one,) = translator.translate(["one two"])
    utilities = expected_utilities(texts, "chrf")
    assert one.text == "eins zwei drei"
    assert one.score == pytest.approx(utilities[1])
    assert one.log_prob == -2.0  # the model's own
    assert one.alternatives == ()
    (one,) = translator.translate(["one two"], n_best=2)
    assert [other.text for other in (one, *one.alternatives)] == ["eins zwei drei", "eins zwei vier"]
    assert one.alternatives[0].score == pytest.approx(utilities[2])
    greedy = Translator(engine, tokenizers, Greedy())
    assert greedy("one") == "six"
    assert greedy("one", search=MinimumBayesRisk(Samples(samples=5))) == "eins zwei drei"
    assert translator.translate([" "]) == [Translation("")]


def test_batches_shrink_as_candidates_grow(tokenizers: Tokenizers) -> None:
    engine: Any = Candidates(tokenizers, ["six", "five"])
    translator = Translator(engine, tokenizers, MinimumBayesRisk(Samples(samples=32)), batch_tokens=64)
    translator(["one"] * 20)
    wide = max(engine.sizes)
    engine.sizes.clear()
    translator(["one"] * 20, search=MinimumBayesRisk(Beam(size=4, n_best=4)))
    assert max(engine.sizes) >= 8 * wide


@pytest.mark.parametrize("candidates", [Samples(samples=16, temperature=0.7), Beam(size=6, n_best=6)])
def test_with_a_real_model(toy: Toy, candidates: Any) -> None:
    texts = ["five", "ninety-two, three", "sixty-one"]
    search = MinimumBayesRisk(candidates)
    every = [[one, *one.alternatives] for one in toy.translator.translate(texts, search=candidates, to="de")]
    for one, others in zip(toy.translator.translate(texts, search=search, to="de"), every, strict=True):
        utilities = expected_utilities([other.text for other in others], "chrf")
        assert one.score == pytest.approx(max(utilities), abs=1e-6)
        best = others[utilities.index(max(utilities))]
        assert (one.text, one.log_prob) == (best.text, pytest.approx(best.log_prob, abs=1e-5))
