"""Settings of every search, and which search fits which model; `build` imports the search itself, and torch with it.

So a translator with another engine reads and checks the same settings on a machine without torch. `Limits` are obeyed
by rules.py and by every engine.

Minimum Bayes risk (Kumar and Byrne, 2004; over samples Eikema and Aziz, 2020) selects the candidate that agrees best
with all others, rather than the most probable one. Candidates come from another search. Agreement is a sentence metric
of texts, which a search does not see: the translator generates the candidates and calls `choose`.

A search or an objective states what it `needs`, a decoder what it `offers`: one word each, of the config class (or of
its instances, where a setting decides). A user's own class without them counts as stepwise. A search that returns one
translation per length (`needs_lengths`) does not fit a decoder with `one_length`. Other requirements, a head of the
model (`needs_head`) or cross-attention (`needs_attention`, of a decoder's `cross_heads`), are checked where the whole
config is known. `SearchChoice` lists the searches of a config; the first is the default of translation.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self, get_args

from transduce.core.bounds import Bounds, check_bounds
from transduce.core.config import kind_of
from transduce.core.errors import ConfigError, DataError
from transduce.metrics import SentenceMetric, SentenceMetricConfig
from transduce.search import CandidatesConfig, LengthNormalization, LengthPenalty, Search, SearchConfig
from transduce.search.constraints import DecodingConstraints

LARGEST_RATIO = 100  # tokens of a translation per source token
MOST_ADDED = 4096  # tokens independent of the source, by longest_extra or shortest
MOST_LONGEST = 100_000
_LONGEST_PREFIX = 4  # times the longest source, as a server allows too


def require(holds: bool, field: str, value: object, expected: str) -> None:
    """Refuse a setting unless `holds`; the config loader puts the section before `field`."""
    if not holds:
        raise ConfigError(f"{field}: expected {expected}, got {value!r}")


def check_tokens(name: str, highest: int, vocabulary: int) -> None:
    """Refuse constraint tokens outside the vocabulary."""
    if highest >= vocabulary:
        raise ValueError(f"{name}: expected tokens below the vocabulary's size ({vocabulary}), got {highest}")


@dataclass(frozen=True)
class Limits:
    """Limits of what a search writes. Lengths count from the end of a forced prefix.

    A translation with its end symbol has at most `longest_ratio` times its source's length plus `longest_extra` tokens,
    and never more than `longest`: its own source decides, not the batch. At least `shortest` tokens precede the end,
    even for short sources. `no_repeat` is the size of n-grams that may occur only once, 0 for no such rule. `forbid`
    lists tokens never to write besides those of `Symbols.never`.
    """

    longest_ratio: Annotated[float, Bounds(0, LARGEST_RATIO, expected=f"a number from 0 to {LARGEST_RATIO}")] = 2.0
    longest_extra: Annotated[int, Bounds(0, MOST_ADDED, expected=f"an integer from 0 to {MOST_ADDED:,}")] = 20
    longest: Annotated[int, Bounds(1, MOST_LONGEST, expected=f"an integer from 1 to {MOST_LONGEST:,}")] = 512
    shortest: Annotated[int, Bounds(most=MOST_ADDED, expected=f"an integer from 0 to {MOST_ADDED:,}")] = 0
    no_repeat: Annotated[int, Bounds(0, expected="an n-gram size, or 0 for no such rule")] = 0
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self)
        require(
            0 <= self.shortest < self.longest,
            "shortest",
            self.shortest,
            f"an integer from 0 up to, not including, longest ({self.longest})",
        )
        require(min(self.forbid, default=0) >= 0, "forbid", self.forbid, "token numbers of at least 0")

    def beyond(self, known: Collection[str]) -> list[str]:
        """The limits in use that are not among `known`: what an engine with only those must leave to others."""
        return [one.name for one in fields(self) if one.name not in known and getattr(self, one.name) != one.default]

    def lengths(self, sources: Sequence[int], constraints: Sequence[DecodingConstraints]) -> list[int]:
        """The maximum number of steps per sentence. These and the source lengths `sources` include the end symbol."""
        allowed = {source: int(self.longest_ratio * source) + self.longest_extra for source in set(sources)}
        bounded = {source: min(max(length, self.shortest + 1), self.longest) for source, length in allowed.items()}
        return [
            bounded[source] + len(constraint.prefix) for source, constraint in zip(sources, constraints, strict=True)
        ]


def checked_prefix(tokens: Sequence[int], longest_source: int) -> tuple[int, ...]:
    """Check a forced prefix: refuse one longer than the tokens of any text that the model translates."""
    most = max(_LONGEST_PREFIX * longest_source, Limits.longest)
    if len(tokens) > most:
        raise DataError(
            f"prefixes: expected at most {most:,} tokens, got {len(tokens):,}; give how the translation begins, not all"
            " of a long text"
        )
    return tuple(tokens)


MOST_PATHS = 4096  # of one sentence, in any search: as in the native core (engines/native/src/core.cpp)
MOST_STEPS = 1 << 21  # of all paths of a sentence together, where its source does not bound them
MOST_ITERATIONS = 1000
Paths = Annotated[int, Bounds(1, MOST_PATHS, expected="an integer of at least 1", too_large=f"at most {MOST_PATHS:,}")]
CoverageWeight = Annotated[float, Bounds(0, expected="a weight of at least 0, such as 0.2, or 0 for no such penalty")]
Iterations = Annotated[int, Bounds(1, MOST_ITERATIONS, expected=f"an integer from 1 to {MOST_ITERATIONS:,}")]
COLDEST = 1e-4  # below it log-probabilities divided by the temperature overflow float32
_TEMPERATURE = f"a number of at least {COLDEST} (for the most probable token use kind 'greedy')"


def require_few(**counts: int) -> None:
    """Refuse more paths per sentence than any engine supports."""
    for name, count in counts.items():
        require(count <= MOST_PATHS, name, count, f"at most {MOST_PATHS:,}")


def require_bounded(paths: int, limits: Limits) -> None:
    """Refuse limits that would let so many paths of a short sentence run for hours."""
    most = MOST_STEPS // paths
    expected = f"at most {most:,} tokens where a sentence has {paths:,} paths"
    require(limits.shortest <= most, "limits.shortest", limits.shortest, expected)
    require(min(limits.longest_extra, limits.longest) <= most, "limits.longest_extra", limits.longest_extra, expected)


@dataclass(frozen=True)
class Beam:
    """Beam search: the `size` best paths, ranked by log-probability / ((5 + length) / 6)^length_penalty when finished.

    With `length_normalization` "power" the divisor is length^length_penalty, as in Marian. `length` counts the end
    symbol; a penalty of 0 ranks by log-probability, a larger one favours longer translations. With `shrinking` each
    finished path gives up its slot in the beam, which ends when no slot is left (Bahdanau et al. 2015's search, and
    Marian's; Huang et al. 2017 compare the two). `n_best` hypotheses per sentence are returned, all different, fewer
    only if the rules allow no more. `groups` splits the beam into parts that search in turn at each step, where a token
    is less likely by `diversity` for every path of an earlier part that takes it; duplicates between parts are replaced
    by their other hypotheses. `coverage` is the weight of the coverage penalty. With words to include, the beam of a
    sentence has at least one slot more than these have tokens.
    """

    needs: ClassVar[str] = "stepwise"  # of a decoder

    size: Paths = 4
    length_penalty: Annotated[float, Bounds(-5, 5, expected="a number from -5 to 5")] = 0.6
    n_best: int = 1
    limits: Limits = Limits()
    groups: int = 1
    diversity: Annotated[float, Bounds(0, expected="a log-probability of at least 0")] = 0.5
    coverage: CoverageWeight = 0.0
    length_normalization: LengthNormalization = "gnmt"
    shrinking: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        require_bounded(self.size, self.limits)
        known = self.length_normalization in get_args(LengthNormalization)
        require(known, "length_normalization", self.length_normalization, "'gnmt' or 'power'")
        expected = f"an integer from 1 to the beam's size ({self.size}); raise size for more"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)
        divides = self.groups >= 1 and self.size % self.groups == 0
        require(divides, "groups", self.groups, f"a number of equal parts of the beam's size ({self.size})")

    @property
    def penalty(self) -> LengthPenalty:
        """The length penalty, which divides log-probabilities of finished paths."""
        return LengthPenalty(self.length_penalty, self.length_normalization)

    @property
    def needs_attention(self) -> bool:
        """Whether this search reads cross-attention, which the decoder must then have."""
        return self.coverage > 0

    @property
    def hypotheses(self) -> int:
        """The number of hypotheses of a sentence."""
        return self.n_best

    def with_n_best(self, count: int) -> Beam:
        """Return these settings for so many hypotheses, with the beam widened if needed."""
        width = -(-count // self.groups) * self.groups
        return replace(self, size=max(self.size, width), n_best=count)

    def build(self) -> Search:
        from transduce.search.beam import BeamSearch

        return BeamSearch(self)


@dataclass(frozen=True)
class Greedy:
    """Greedy search: the most probable token at each step, ties to the lowest id."""

    needs: ClassVar[str] = "stepwise"  # of a decoder

    limits: Limits = Limits()

    def build(self) -> Search:
        from transduce.search.sampling import StepwiseSearch, most_probable

        return StepwiseSearch(most_probable, self.limits)


@dataclass(frozen=True)
class Sample:
    """Sampling: `samples` random translations per sentence, the most probable first.

    The distribution is sharpened (`temperature` below 1) or flattened, then cut to the `top_k` most probable tokens (0:
    all), then to the fewest whose probabilities sum to `top_p`. Tokens that tie with the last one kept stay too.
    """

    needs: ClassVar[str] = "stepwise"

    temperature: Annotated[float, Bounds(COLDEST, expected=_TEMPERATURE)] = 1.0
    top_k: Annotated[int, Bounds(0, expected="a number of tokens, or 0 for all")] = 0
    top_p: Annotated[float, Bounds(0, 1, above=True, expected="a probability above 0 and at most 1")] = 1.0
    samples: Paths = 1
    seed: int = 1
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_bounds(self)
        require_bounded(self.samples, self.limits)

    @property
    def hypotheses(self) -> int:
        """The number of hypotheses of a sentence."""
        return self.samples

    def with_n_best(self, count: int) -> Self:
        """Return these settings for so many samples."""
        return replace(self, samples=count)

    def build(self) -> Search:
        from transduce.search.sampling import StepwiseSearch, drawing

        return StepwiseSearch(drawing(self), self.limits, self.samples, self.seed)


@dataclass(frozen=True)
class MaskPredict:
    """Mask-predict: predict all tokens, then `iterations` - 1 times predict the least certain ones again.

    Ghazvininejad et al. 2019, section 4: of n positions floor(n * (T - t) / T) are masked again before iteration t of
    T. The `length_candidates` most probable lengths are tried, and the mean log-probability of the tokens decides (the
    paper leaves out the length's own, which takes the end symbol's position here). One iteration is a single pass.
    """

    needs: ClassVar[str] = "parallel"  # of a decoder

    iterations: Iterations = 10
    length_candidates: Paths = 5
    n_best: int = 1

    def __post_init__(self) -> None:
        check_bounds(self)
        candidates = self.length_candidates
        expected = f"an integer from 1 to length_candidates ({candidates}); raise those for more"
        require(1 <= self.n_best <= candidates, "n_best", self.n_best, expected)

    @property
    def hypotheses(self) -> int:
        """The maximum number of hypotheses of a sentence."""
        return self.n_best

    @property
    def needs_lengths(self) -> bool:
        """Whether a sentence must have several lengths to try, since each gives one translation."""
        return self.n_best > 1

    def with_n_best(self, count: int) -> MaskPredict:
        """Return these settings for so many hypotheses, with as many lengths if needed."""
        return replace(self, length_candidates=max(self.length_candidates, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import MaskPredictSearch

        return MaskPredictSearch(self)


@dataclass(frozen=True)
class CTCCollapse:
    """CTC decoding: the most probable token or blank in every frame; repetitions are merged, then blanks removed.

    The log-probability is that of this single path, split at each token, and thus at most that of the translation,
    which is the sum over all its paths. With `size` above 1 a prefix beam search sums the paths of that many prefixes
    (Hannun et al. 2014, without a language model), and a second pass computes the exact log-probabilities of the
    `n_best`.
    """

    kind: ClassVar[str] = "ctc"
    needs: ClassVar[str] = "ctc"  # of a decoder

    size: Paths = 1
    n_best: int = 1

    def __post_init__(self) -> None:
        check_bounds(self)
        expected = f"an integer from 1 to the number of prefixes, size = {self.size}"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)

    @property
    def hypotheses(self) -> int:
        """The maximum number of hypotheses of a sentence."""
        return self.n_best

    def with_n_best(self, count: int) -> CTCCollapse:
        """Return these settings for so many hypotheses, with as many prefixes if needed."""
        return replace(self, size=max(self.size, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import CTCSearch

        return CTCSearch(self)


@dataclass(frozen=True)
class Joint:
    """Joint decoding: candidates of a beam search and of the CTC head, `size` each, ranked by both.

    The score is (1 - weight) log p of the decoder + weight log p of the head. For speech models above all, whose order
    is that of the source; the model must have a head trained by a CTC term.
    """

    needs: ClassVar[str] = "stepwise"  # of a decoder
    needs_head: ClassVar[str] = "ctc"  # of the model

    size: Paths = 5
    weight: Annotated[float, Bounds(0, 1, expected="the CTC head's share of the score, from 0 to 1")] = 0.5
    n_best: int = 1
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_bounds(self)
        require_bounded(self.size, self.limits)
        expected = f"an integer from 1 to the candidates of each kind, size = {self.size}"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)

    @property
    def beam(self) -> Beam:
        """The beam search for the decoder's candidates."""
        return Beam(self.size, 0.0, self.size, self.limits)

    @property
    def hypotheses(self) -> int:
        """The maximum number of hypotheses of a sentence."""
        return self.n_best

    def with_n_best(self, count: int) -> Joint:
        """Return these settings for so many hypotheses, with as many candidates if needed."""
        return replace(self, size=max(self.size, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import JointSearch

        return JointSearch(self)


@dataclass(frozen=True)
class Samples(Sample):
    """Sampling with many samples by default, as candidates."""

    kind: ClassVar[str] = "sample"

    samples: Paths = 32


Candidates = Samples | Beam | MaskPredict | CTCCollapse | Joint


@dataclass(frozen=True)
class MinimumBayesRisk:
    """Minimum Bayes risk: the `n_best` of `candidates` with the greatest expected utility over all others, 0 to 100.

    Candidates count as they were drawn: a text drawn twice weighs twice, and supports itself. `tokenize` names
    sacreBLEU's tokenizer for the utility "bleu"; "chrf" needs none.
    """

    kind: ClassVar[str] = "mbr"

    candidates: Candidates | CandidatesConfig = Samples()
    utility: SentenceMetric | SentenceMetricConfig = "chrf"
    n_best: int = 1
    tokenize: str = "13a"

    def __post_init__(self) -> None:
        most = self.hypotheses
        if most < 2:
            raise ConfigError(
                "candidates: expected a search with several hypotheses, such as {kind='sample',samples=32} or"
                f" {{kind='beam',size=8,n_best=8}}, got '{kind_of(type(self.candidates))}', which gives {most}"
            )
        require(1 <= self.n_best <= most, "n_best", self.n_best, f"an integer from 1 to the {most} candidates")

    @property
    def needs(self) -> str:
        return self.candidates.needs

    @property
    def hypotheses(self) -> int:
        """The number of candidates of a sentence."""
        return self.candidates.hypotheses

    def with_n_best(self, count: int) -> MinimumBayesRisk:
        """Return these settings for so many results, with at least as many candidates."""
        candidates = self.candidates if self.hypotheses >= count else self.candidates.with_n_best(count)
        return replace(self, candidates=candidates, n_best=count)

    def build(self) -> Search:
        """Build the search for all candidates."""
        return self.candidates.build()

    def choose(self, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Choose among the candidates' texts: index and expected utility of each chosen one, best first.

        Of equal texts the first stands for all; ties go to the first.
        """
        from transduce.metrics.sentence import sentence_scorer  # imports numpy: only now

        first: dict[str, int] = {}
        for index, text in enumerate(texts):
            first.setdefault(text, index)
        others = max(1, len(texts) - 1)
        utilities = sentence_scorer(self.utility, self.tokenize).matrix(list(first), texts)
        itself = [utilities[row, index] for row, index in enumerate(first.values())]
        expected = [(float(total) - float(own)) / others for total, own in zip(utilities.sum(1), itself, strict=True)]
        ranked = sorted(zip(first.values(), expected, strict=True), key=lambda pair: -pair[1])
        return ranked[: self.n_best]


SearchChoice = Beam | Greedy | Sample | MinimumBayesRisk | MaskPredict | CTCCollapse | Joint


@dataclass(frozen=True)
class SearchOption:
    """A search given on a command line: `search={kind="sample",top_p=0.9}`."""

    search: SearchChoice | SearchConfig = Beam()


def search_label(search: SearchConfig) -> str:
    """Name a search briefly for people: `beam 4`, `greedy`, `mask_predict`."""
    kind = kind_of(type(search))
    return f"{kind} {search.size}" if isinstance(search, Beam) else kind


STEPWISE = "stepwise"
MEANING = {
    STEPWISE: "decodes token by token",
    "parallel": "is non-autoregressive",
    "ctc": "is non-autoregressive with CTC",
}


def check_fit(chosen: Any, decoder: Any, where: str, choices: Iterable[type[Any]]) -> None:
    """Refuse a config that does not fit the decoder; `where` is its dotted key, `choices` all kinds it could be."""
    needs, offers = _needs(chosen), getattr(decoder, "offers", STEPWISE)
    if needs != offers:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(chosen))}' needs a decoder that {MEANING.get(needs, needs)};"
            f" model.decoder is '{kind_of(type(decoder))}', which fits {' or '.join(fitting) or 'nothing here'}"
        )


def check_search(search: SearchConfig, decoder: Any, where: str = "search") -> None:
    """Refuse a search, or the candidate search of another, that does not fit the decoder."""
    finder, where, choices = _finder(search, where)
    check_fit(finder, decoder, where, choices)
    if getattr(finder, "needs_lengths", False) and getattr(decoder, "one_length", False):
        kind, length = kind_of(type(finder)), kind_of(type(decoder.length))
        raise ConfigError(
            f"{where}.n_best: expected 1, got {finder.n_best}: '{kind}' finds one translation for each length it tries,"
            f" and model.decoder.length '{length}' has one length a sentence, which fits '{kind}'"
            " with n_best=1; for more train a model with model.decoder.length=length_classifier"
        )


def check_together(
    objective: Any, objectives: tuple[type[Any], ...], searches: Mapping[str, Any], decoder: Any
) -> None:
    """Check the objective, one of `objectives`, and searches by dotted key; the error says which settings fix all."""
    try:
        check_fit(objective, decoder, "objective", objectives)
        for where, search in searches.items():
            check_search(search, decoder, where)
    except ConfigError as error:
        finders = [_finder(search, where) for where, search in searches.items()]
        words = _fixes([(objective, "objective", objectives), *finders], decoder)
        raise ConfigError(f"{error}; set {' '.join(words)}" if words else str(error)) from None


def _fixes(chosen: Iterable[tuple[Any, str, tuple[type[Any], ...]]], decoder: Any) -> list[str]:
    """List `key=value` settings that replace each misfit by the first kind that fits."""
    offers, words = getattr(decoder, "offers", STEPWISE), []
    for config, where, choices in chosen:
        fitting = [kind_of(cls) for cls in choices if _needs(cls()) == offers]
        if fitting and _needs(config) != offers:
            words.append(f"{where}.kind={fitting[0]}")
    return words


def check_reads(search: SearchConfig, model: Any, where: str = "search") -> None:
    """Refuse a search that needs a head or cross-attention that this model's config lacks."""
    finder, where, choices = _finder(search, where)
    decoder, heads = model.decoder, [head.kind for head in model.heads]
    head = getattr(finder, "needs_head", "")
    if head and head not in heads:
        others = [kind_of(cls) for cls in choices if _needs(cls()) == _needs(finder) and not hasattr(cls, "needs_head")]
        raise ConfigError(
            f"{where}.kind: '{kind_of(type(finder))}' needs a model with a head '{head}', and model.heads is {heads};"
            f" set model.heads={[*heads, head]} with a term that trains it, or choose {' or '.join(others)}"
        )
    if getattr(finder, "needs_attention", False) and not any(getattr(decoder, "cross_heads", (1,))):
        raise ConfigError(
            f"{where}.coverage: expected 0, since model.decoder '{kind_of(type(decoder))}' has no attention to"
            " the source; or choose a decoder that has"
        )


def _needs(chosen: Any) -> str:
    return str(getattr(chosen, "needs", STEPWISE))


def _finder(search: SearchConfig, where: str) -> tuple[Any, str, tuple[type[Any], ...]]:
    """Return the search that runs the model, its dotted key, and all kinds it could be."""
    if isinstance(search, MinimumBayesRisk):
        return search.candidates, f"{where}.candidates", typing.get_args(Candidates)
    return search, where, typing.get_args(SearchChoice)
