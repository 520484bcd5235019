"""Text to text: nothing lost, order kept, the same whatever the batch, and scores that are the model's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import transduce
from transduce.core.errors import ConfigError, DataError, UserError
from transduce.engines.torch.engine import TorchEngine
from transduce.search import Hypothesis
from transduce.search.constraints import DecodingConstraints
from transduce.search.settings import Beam, CTCCollapse, Greedy, Joint, Limits, MaskPredict, Sample
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.translate.translator import Translation, Translator

if TYPE_CHECKING:
    from toy_model import Toy


SENTENCES = ["five", "", "ninety-two, three", "  ", "twelve", "sixty-one, seventy", "nought 😀", "zero", "five"]


class Echo:
    """An engine that says the source again; `prefixes` come before it. It remembers the batches it was given."""

    def __init__(self, finished: bool = True) -> None:
        self.finished = finished
        self.batches: list[list[tuple[int, ...]]] = []
        self.searches: list[Any] = []

    def search(
        self,
        sources: Sequence[Sequence[int]],
        search: Any,
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> list[list[Hypothesis]]:
        self.batches.append([tuple(source) for source in sources])
        self.searches.append(search)
        self.constraints = list(constraints)
        return [
            [Hypothesis((*constraint.prefix, *source), -1.0, -2.0, self.finished, ())]
            for source, constraint in zip(sources, constraints, strict=True)
        ]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        self.batches.append([tuple(source) for source in sources])
        return [[-1.0] * (len(target) + 1) for target in targets]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    lines = ["one two three. four five, six", "eins zwei drei vier fünf", "一二三。四五，六"]
    return (
        SentencePiece(vocabulary=310, symbols=("<2de>", "<2fr>"), normalization="identity")
        .train(lines, lines)
        .tokenizers
    )


@pytest.fixture
def echo(tokenizers: Tokenizers) -> Translator:
    return Translator(Echo(), tokenizers, Greedy(), longest=20)


# -- one text, one translation ---------------------------------------------------------------------------------------


def test_a_text_gives_a_text_and_several_give_several(echo: Translator) -> None:
    assert echo("one two") == "one two"
    assert echo(["one", "two"]) == ["one", "two"]
    assert echo([]) == []
    assert echo.translate([]) == []


def test_blank_texts_give_empty_ones_and_never_reach_the_engine(echo: Translator) -> None:
    blank = ["", " ", "\t", "\u2028", "\u3000 \u0085", "\r"]
    assert echo.translate(blank) == [Translation("")] * len(blank)
    assert echo.engine.batches == []  # type: ignore[attr-defined]


# Text in capitals is read in small letters, see test_capitals.py; every other string that Python can hold is meant.
ANY_TEXT = st.text(st.characters(), max_size=40).filter(lambda text: not text.isupper())


@given(texts=st.lists(st.text("one tw.,。\u2028\u0085😀äß", max_size=80) | ANY_TEXT, max_size=8))
@example(texts=["one\udce9 \ud83d.\x00two\x1b", "\ufeffone\u200b\u202e", "o" * 3000])
def test_nothing_is_lost_whatever_the_length(tokenizers: Tokenizers, texts: list[str]) -> None:
    """The echo of a text is the text: cut, tokenized, batched and joined again (white space at the ends aside).

    A lone surrogate comes back as U+FFFD, sentencepiece's mark of a space as a space.
    """
    translator = Translator(Echo(), tokenizers, Greedy(), longest=12, batch_tokens=40)
    found = translator.translate(texts)
    sound = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("▁", " ") for text in texts]
    assert ["".join(one.text.split()) for one in found] == ["".join(text.split()) for text in sound]
    assert not any("\n" in one.text for one in found)
    assert all(one.parts == 1 for one, text in zip(found, sound, strict=True) if len(text.encode()) < 10)


def test_a_long_text_is_translated_in_parts(echo: Translator) -> None:
    sentences = ["one two three.", "four, five six.", "two two two two."] * 40
    (translation,) = echo.translate([" ".join(sentences)])
    assert translation.text == " ".join(sentences)
    assert translation.parts > 10
    assert translation.score == -1.0 * translation.parts
    assert translation.log_prob == -2.0 * translation.parts
    assert all(len(tokens) < echo.longest for batch in echo.engine.batches for tokens in batch)  # type: ignore[attr-defined]
    assert translation.tokens == tuple(
        echo.tokenizers.target.pieces([token for part in _in_order(translation, echo) for token in part])
    )


def _in_order(translation: Translation, echo: Translator) -> list[list[int]]:
    """The tokens of each part, encoded anew from the parts that the segmenter gives."""
    from transduce.text.segment import split_long

    encode = echo.tokenizers.source.encode
    parts = split_long(translation.text, lambda part: len(encode([part])[0]) < echo.longest)
    return [encode([part.text])[0] for part in parts]


def test_parts_of_nothing_but_space_are_not_translated(tokenizers: Tokenizers) -> None:
    translator = Translator(Echo(), tokenizers, Greedy(), longest=3)
    (translation,) = translator.translate([" " * 30 + "one"])
    assert translation.text.strip() == "one"
    for batch in translator.engine.batches:  # type: ignore[attr-defined]
        assert all(tokenizers.source.decode(tokens).strip() for tokens in batch)


def test_one_line_in_is_one_line_out(echo: Translator) -> None:
    """A newline can come from byte pieces of the model, or from a text given in Python."""
    newline = echo.tokenizers.target.token("<0x0A>")

    class Breaks(Echo):
        def search(self, sources: Any, search: Any, constraints: Any, keys: Any) -> list[list[Hypothesis]]:
            return [[Hypothesis((*source, newline, *source), 0.0, 0.0, True, ())] for source in sources]

    broken = Translator(Breaks(), echo.tokenizers, Greedy())
    assert broken("one").replace("  ", " ") == "one one"
    long = echo("one two three. four five six.\n" * 5)
    assert "\n" not in long
    assert long.split() == ("one two three. four five six. " * 5).split()


def test_whether_the_end_was_reached_is_reported(tokenizers: Tokenizers) -> None:
    cut = Translator(Echo(finished=False), tokenizers, Greedy(), longest=20)
    assert [one.finished for one in cut.translate(["one", "one two three. " * 9, ""])] == [False, False, True]
    assert Translator(Echo(), tokenizers, Greedy()).translate(["one"])[0].finished


def test_the_length_limit_of_a_search_ends_a_translation(toy: Toy) -> None:
    short = Greedy(Limits(longest=1, longest_extra=0))
    one = toy.translator.translate(["ninety-two"], to="de", search=short)[0]
    assert len(one.tokens) <= 1
    assert not one.finished


# -- prefixes, tags, searches ----------------------------------------------------------------------------------------


def test_prefixes_may_differ_in_length_and_hold_for_the_first_part_only(toy: Toy) -> None:
    texts = ["five", "six", "seven", ""]
    prefixes = ["drei", "", "vierundzwanzig, ein", "null"]
    found = toy.translator(texts, to="de", prefixes=prefixes)
    for text, prefix in zip(found[:3], prefixes, strict=False):
        assert text.startswith(prefix)
    assert found[3] == ""
    assert found[1] == toy.translator("six", to="de")
    alone = [toy.translator(text, to="de", prefixes=[prefix]) for text, prefix in zip(texts, prefixes, strict=True)]
    assert alone == found
    assert toy.translator(texts[:2], to="de", prefixes="drei")[1].startswith("drei")


def test_a_prefix_longer_than_any_translation_is_refused_before_work(echo: Translator) -> None:
    tokens = len(echo.tokenizers.target.encode(["zwei " * 20_000])[0])
    with pytest.raises(DataError, match=f"^prefixes: expected at most 512 tokens, got {tokens:,}; give how"):
        echo("one", prefixes="zwei " * 20_000)


def test_a_prefix_of_a_long_text_is_written_once(echo: Translator) -> None:
    text = "one two three. four five six. " * 5
    assert echo(text, prefixes="zwei ").split() == ["zwei", *text.split()]


def test_tags_go_before_every_part_and_are_one_for_all_or_one_each(echo: Translator) -> None:
    german, french = (echo.tokenizers.source.token(tag) for tag in ("<2de>", "<2fr>"))
    echo(["one", "two"], to="de")
    echo(["one", "two", "one"], to=["fr", "", "<2de>"])
    echo("one two three. " * 9, to="fr")
    first, second, third = echo.engine.batches  # type: ignore[attr-defined]
    assert [tokens[0] for tokens in first] == [german, german]
    assert sorted(tokens[0] in (german, french) for tokens in second) == [False, True, True]
    assert {tokens[0] for tokens in third} == {french}
    assert all(len(tokens) < echo.longest for tokens in third)


def test_languages_make_a_difference(toy: Toy) -> None:
    german, chinese = toy.translator(["twelve", "twelve"], to=["de", "zh"])
    assert german == toy.translator("twelve", to="de")
    assert chinese == toy.translator("twelve", to="zh")
    assert german != chinese


def test_a_beam_and_several_best(toy: Toy) -> None:
    texts = ["five", "", "ninety-two"]
    found = toy.translator.translate(texts, to="de", beam=4, n_best=3)
    for one in (found[0], found[2]):
        every = [one, *one.alternatives]
        assert len(every) == 3
        assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
        assert len({each.tokens for each in every}) == 3
        assert all(each.alternatives == () for each in one.alternatives)
    assert found[1].alternatives == ()
    assert [one.text for one in toy.translator.translate(texts, to="de", n_best=5)][1] == ""


def test_which_search_is_used(echo: Translator) -> None:
    def used(**options: Any) -> Any:
        echo.translate(["one"], **options)
        return echo.engine.searches[-1]  # type: ignore[attr-defined]

    assert used() == Greedy()
    assert used(beam=3) == Beam(size=3)
    assert used(n_best=6) == Beam(size=6, n_best=6)
    assert used(search=Sample(seed=4)) == Sample(seed=4)
    echo.search = Beam(size=5, length_penalty=0.1, limits=Limits(longest=7))
    assert used(beam=2) == Beam(size=2, length_penalty=0.1, limits=Limits(longest=7))
    echo.search = Sample(limits=Limits(longest=7))
    assert used(beam=2) == Beam(size=2, limits=Limits(longest=7))
    echo.search = object()  # a search of the user's own, without limits
    assert used(beam=2) == Beam(size=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"to": ["de"]}, "to: 1 were given for at least 2 texts; give one a text"),
        ({"to": ["de"] * 3}, "to: 3 were given for only 2 texts; give one a text"),
        ({"prefixes": []}, "prefixes: 0 were given for at least 2 texts"),
        ({"prefixes": ["a"] * 5}, "prefixes: 5 were given for only 2 texts"),
        ({"to": "xx"}, "no piece '<2xx>'; was the tokenizer trained with symbols=['<2xx>']?"),
        ({"search": Greedy(), "beam": 4}, "search: give a search, or beam and n_best, not both"),
        ({"search": Greedy(), "n_best": 2}, "search: give a search, or beam and n_best, not both"),
        ({"beam": -1}, "beam: expected a size of at least 1, or 0 for the model's own search, got -1"),
        ({"n_best": 0}, "n_best: expected an integer from 1"),
        ({"n_best": 3, "beam": 2}, "n_best: expected at most the beam's size (2), for no others are searched"),
        ({"n_best": 3, "beam": 2}, "(a larger beam, or none, finds more), got 3"),
        ({"align": "foo"}, "align: expected words, pieces or None, got 'foo'"),
        ({"align": ""}, "align: expected words, pieces or None, got ''"),
        ({"include": "one"}, "include: one word was given where a list is expected; use ['one']"),
        ({"exclude": "one"}, "exclude: one word was given where a list is expected; use ['one']"),
        ({"include": ["one", ["two"]]}, "include: words and lists of words are mixed; give one list of words, or"),
        ({"include": [["one"]]}, "include: 1 were given for at least 2 texts; give one a text"),
        ({"exclude": [["one"]] * 3}, "exclude: 3 were given for only 2 texts; give one a text"),
        ({"include": ["one", " "]}, "include: a blank word was given; give words that can be seen, or none"),
        (
            {"include": ["six"], "exclude": ["six"]},
            "include: 'six' cannot be written without 'six', which exclude forbids",
        ),
    ],
)
def test_what_is_refused(echo: Translator, options: dict[str, Any], expected: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        echo.translate(["one", "two"], **options)
    assert expected in str(caught.value)


def test_a_unit_that_is_none_is_refused(echo: Translator) -> None:
    wrong: Any = "letters"
    with pytest.raises(ConfigError, match="unit: expected words or pieces, got 'letters'"):
        echo.align(["one"], ["eins"], unit=wrong)


def test_one_text_in_place_of_a_list_is_not_taken_for_its_letters(echo: Translator) -> None:
    with pytest.raises(DataError, match=r"texts: one text was given where a list is expected; use translator\(text\)"):
        echo.translate("one two")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([3], "texts[0]: expected a text (str), got 3 (int)"),
        (["one", None], "texts[1]: expected a text (str), got None (NoneType)"),
        (["one", ["two"]], "texts[1]: expected a text (str), got ['two'] (list)"),
        (None, "texts: expected a list of texts, got None (NoneType); use translator(text), or [text]"),
        (3, "texts: expected a list of texts, got 3 (int); use translator(text), or [text]"),
        (b"one", "texts: expected a list of texts, got b'one' (bytes); use translator(text), or [text]"),
    ],
)
def test_what_is_no_text_is_reported_with_its_place(echo: Translator, texts: Any, expected: str) -> None:
    for call in (echo.translate, echo):
        with pytest.raises(UserError) as caught:
            call(texts)
        assert str(caught.value) == expected


def test_nor_may_pairs_hold_such(echo: Translator) -> None:
    wrong: Any = [None]
    for call, name in ((echo.score, "score"), (echo.align, "align")):
        with pytest.raises(UserError, match=rf"^{name}: sources\[0\]: expected a text \(str\), got None \(NoneType\)$"):
            call(wrong, ["one"])
        with pytest.raises(UserError, match=rf"^{name}: targets\[0\]: expected a text \(str\), got None"):
            call(["one"], wrong)
        with pytest.raises(
            UserError, match=rf"^{name}: targets: expected a list of texts, got None \(NoneType\); give"
        ):
            call(["one"], wrong[0])


# -- words that must appear or must not -------------------------------------------------------------------------------


def test_words_reach_the_engine_as_tokens(echo: Translator, tokenizers: Tokenizers) -> None:
    target = tokenizers.target
    echo.translate(["one", "two"], include=["zwei", "drei vier"], exclude=["five"], prefixes=["", "eins"])
    both = echo.engine.constraints  # type: ignore[attr-defined]
    assert [constraint.prefix for constraint in both] == [(), tuple(target.encode(["eins"])[0])]
    for constraint in both:
        assert [[target.decode(way) for way in ways] for ways in constraint.include] == [["zwei"], ["drei vier"]]
        assert all(target.decode(phrase).strip() == "five" for phrase in constraint.exclude)
    echo.translate(["one", "two"], include=[["zwei"], []], exclude=[[], ["zwei"]])
    first, second = echo.engine.constraints  # type: ignore[attr-defined]
    assert (len(first.include), first.exclude, second.include) == (1, (), ())
    assert second.exclude


def test_words_hold_for_streams_in_any_window(echo: Translator) -> None:
    texts, words = ["one", "two", "", "four", "five"], [["zwei"], [], ["drei"], ["vier"], []]
    for window in (1, 2, 9):
        list(echo.stream(iter(texts), include=words, exclude=["six"], window=window))
    with pytest.raises(DataError, match="include: 4 were given for at least 5 texts"):
        list(echo.stream(iter(texts), include=words[:4], window=5))


def test_excluded_words_hold_for_every_part_and_included_ones_for_no_part(tokenizers: Tokenizers) -> None:
    translator = Translator(Echo(), tokenizers, Greedy(), longest=20)
    text = "one two three. four five, six. " * 4
    translator.translate([text], exclude=["drei"])
    assert len(translator.engine.batches[-1]) > 1 or len(translator.engine.batches) > 1  # type: ignore[attr-defined]
    assert all(constraint.exclude for constraint in translator.engine.constraints)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"it is unknown which of its \d+ parts the words belong to; give the parts as"):
        translator.translate([text], include=["drei"])


def test_a_model_writes_what_it_must_and_nothing_it_must_not(toy: Toy) -> None:
    texts = ["five", "ninety-two, three", "twelve", "sixty-one"]
    free = toy.translator.translate(texts, to="de", beam=4)
    unwanted = [free[0].text, free[1].text[:6].strip()]  # whatever the model likes to write
    found = toy.translator.translate(texts, to="de", beam=4, include=["hundert", "drei"], exclude=unwanted)
    for one in found:
        assert one.finished
        assert "hundert" in one.text
        assert "drei" in one.text
        assert not any(word in one.text for word in unwanted)
    assert [one.text for one in free] != [one.text for one in found]
    each = [["drei"], [], ["sieben"], []]
    found = toy.translator.translate(texts, to="de", beam=4, include=each)
    assert ["drei" in found[0].text, "sieben" in found[2].text] == [True, True]
    assert [found[1].text, found[3].text] == [free[1].text, free[3].text]
    alone = [toy.translator(text, to="de", beam=4, include=own) for text, own in zip(texts, each, strict=True)]
    assert alone == [one.text for one in found]
    assert "六" in toy.translator("five", to="zh", beam=4, include=["六"])
    assert "五" not in toy.translator("five", to="zh", exclude=["五"])
    with pytest.raises(ConfigError, match="include: words that must appear need a beam search"):
        toy.translator.translate(texts, to="de", include=["drei"])


# -- the same whatever the batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [Greedy(), Beam(size=3, n_best=2), Sample(samples=2, temperature=1.5, seed=7)])
def test_neighbours_change_nothing(toy: Toy, search: Any) -> None:
    together = toy.translator.translate(SENTENCES, search=search, to="de")
    backwards = toy.translator.translate(SENTENCES[::-1], search=search, to="de")[::-1]
    alone = [toy.translator.translate([text], search=search, to="de")[0] for text in SENTENCES]
    for other in (backwards, alone):
        for one, two in zip(together, other, strict=True):
            assert (one.text, one.tokens, one.finished) == (two.text, two.tokens, two.finished)
            assert [a.tokens for a in one.alternatives] == [a.tokens for a in two.alternatives]
            assert one.log_prob == pytest.approx(two.log_prob, abs=1e-4)


def test_another_seed_draws_another_sample(toy: Toy) -> None:
    found = {toy.translator("ninety-two, three", to="de", search=Sample(temperature=2.0, seed=s)) for s in range(6)}
    assert len(found) > 1


@pytest.mark.parametrize("window", [1, 2, 4, 1000])
def test_a_stream_is_the_same_for_any_window(toy: Toy, window: int) -> None:
    tags = ["de", "zh", "de", "de", "zh", "de", "de", "zh", "de"]
    whole = toy.translator.translate(SENTENCES, to=tags)
    streamed = list(toy.translator.stream(iter(SENTENCES), to=tags, window=window))
    assert [one.text for one in streamed] == [one.text for one in whole]


def test_a_stream_reads_no_further_than_its_window(echo: Translator) -> None:
    read = []

    def texts() -> Any:
        for number in range(100):
            read.append(number)
            yield "one"

    next(echo.stream(texts(), window=4))
    assert len(read) == 4


def test_a_small_budget_of_tokens_makes_many_batches(tokenizers: Tokenizers) -> None:
    translator = Translator(Echo(), tokenizers, Greedy(), batch_tokens=10)
    texts = ["one two", "three", "four five, six", "one"] * 5
    assert translator(texts) == texts
    for batch in translator.engine.batches:  # type: ignore[attr-defined]
        assert len(batch) == 1 or len(batch) * (max(map(len, batch)) + 1) <= 10


def test_an_engine_that_makes_its_own_batches_is_given_more(tokenizers: Tokenizers) -> None:
    translator = Translator(Echo(), tokenizers, Greedy(), batch_tokens=10, search_tokens=10_000)
    texts = ["one two", "three", "four five, six", "one"] * 5
    assert translator(texts) == texts
    assert len(translator.engine.batches) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{}, {"beam": 3, "n_best": 3}, {"beam": 2, "exclude": ["und"]}, {"prefixes": "ein"}]
)
def test_static_caches_translate_as_eager_search_does(toy: Toy, options: dict[str, Any]) -> None:
    engine = TorchEngine(toy.engine.model, toy.engine.source, toy.engine.target, toy.engine.device, "on")
    translator = Translator(
        engine, toy.translator.tokenizers, toy.translator.search, search_tokens=engine.search_tokens
    )
    found = translator.translate(SENTENCES, to="de", **options)
    expected = toy.translator.translate(SENTENCES, to="de", protect=False, **options)
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert [[other.text for other in one.alternatives] for one in found] == [
        [other.text for other in one.alternatives] for one in expected
    ]
    assert engine.cache_pool
    assert engine.cache_pool.batchers


# -- scores ----------------------------------------------------------------------------------------------------------


def test_the_score_of_a_translation_is_its_log_probability(toy: Toy) -> None:
    texts = [text for text in SENTENCES if text.strip()]
    found = toy.translator.translate(texts, to="de", protect=False)
    engine, tokenizers = toy.translator.engine, toy.translator.tokenizers
    tag = tokenizers.source.token("<2de>")
    sources = [[tag, *tokens] for tokens in tokenizers.source.encode(texts)]
    for source, one in zip(sources, found, strict=True):
        target = [tokenizers.target.token(piece) for piece in one.tokens]
        (log_probs,) = engine.score([source], [target])
        assert one.log_prob == pytest.approx(math.fsum(log_probs[: len(target) + one.finished]), abs=1e-4)


def test_scores_are_the_sum_of_teacher_forced_log_probabilities(toy: Toy) -> None:
    texts = ["five", "ninety-two, three", "", "sixty"]
    targets = ["fünf", "etwas ganz anderes 😀", "null", ""]
    scored = toy.translator.score(texts, targets, to="de")
    model, tokenizers = toy.engine.model.eval(), toy.translator.tokenizers
    eos, bos = tokenizers.target.symbols.eos, tokenizers.target.symbols.bos
    for text, target, one in zip(texts, targets, scored, strict=True):
        source = torch.tensor([[tokenizers.source.token("<2de>"), *tokenizers.source.encode([text])[0], eos]])
        gold = [*tokenizers.target.encode([target])[0], eos]
        with torch.no_grad():
            memory = model.encode(source, torch.ones_like(source, dtype=torch.bool))
            logits, _ = model.advance(torch.tensor([[bos, *gold[:-1]]]), model.start(memory))
        expected = logits[0].log_softmax(-1)[range(len(gold)), gold].sum().item()
        assert one.log_prob == pytest.approx(expected, abs=1e-4)
        assert one.tokens == len(gold)
        assert one.per_token == pytest.approx(expected / len(gold), abs=1e-4)


def test_nothing_is_cut_when_scoring(echo: Translator) -> None:
    long = "one two three. " * 50
    (one,) = echo.score([long], [long])
    assert one.tokens == len(echo.tokenizers.target.encode([long])[0]) + 1
    assert len(echo.engine.batches[0][0]) > echo.longest  # type: ignore[attr-defined]
    assert echo.score([], []) == []


def test_scoring_needs_as_many_of_each(echo: Translator) -> None:
    with pytest.raises(DataError, match="score: 2 sources and 1 targets were given; give as many of each"):
        echo.score(["one", "two"], ["eins"])
    with pytest.raises(DataError, match="to: 2 were given for only 1 texts"):
        echo.score(["one"], ["eins"], to=["de", "fr"])


def test_what_is_no_list_of_texts_and_no_search_is_refused(toy: Toy) -> None:
    for work in (toy.translator.score, toy.translator.align):
        with pytest.raises(DataError, match=r"one text was given where a list is expected; give \[source\] and"):
            work("five", "fünf")
    with pytest.raises(ConfigError, match=r"search: expected one such as .*Beam\(size=5\), got 'beam'"):
        toy.translator.translate(["five"], search="beam")


def test_a_word_is_no_config_to_train_by(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train: expected a Config, got 'tiny'; make one .*transduce\.config\.load"):
        transduce.train("tiny", tmp_path / "run")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ways", "text"),
    [
        ({"beam": 100_000}, "beam: expected at most 4,096, got 100000"),
        ({"n_best": 100_000}, "n_best: expected at most 4,096, got 100000"),
    ],
)
def test_more_paths_than_any_engine_searches_are_refused(toy: Toy, ways: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toy.translator("five", to="de", **ways)  # type: ignore[call-overload]
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("search", "name"),
    [(Beam, "size"), (Sample, "samples"), (CTCCollapse, "size"), (Joint, "size"), (MaskPredict, "length_candidates")],
)
def test_every_search_has_a_bound_on_its_paths(search: Any, name: str) -> None:
    search(**{name: 4096})
    with pytest.raises(ConfigError) as caught:
        search(**{name: 4097})
    assert str(caught.value) == f"{name}: expected at most 4,096, got 4097"
