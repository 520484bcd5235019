"""The settings of every search; what each builds is imported when it is built, and torch with it.

So a translator with another engine reads and checks the same settings on a machine that has no torch. `Limits` say how
long a translation may be and which tokens it may never hold; rules.py obeys them.

`MinimumBayesRisk` chooses the candidate that agrees best with all the others, rather than the most probable one (Kumar
and Byrne, 2004; over samples Eikema and Aziz, 2020). Candidates come from another search. Agreement is a sentence
metric of texts, which a search does not see: the translator has the candidates found and calls `choose`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self, get_args

from transduce.core.config import kind_of
from transduce.core.errors import ConfigError, DataError
from transduce.metrics import SentenceMetric, SentenceMetricConfig
from transduce.search.constraints import DecodingConstraints
from transduce.search.hypothesis import CandidatesConfig, LengthNormalization, LengthPenalty, Search

LARGEST_RATIO = 100  # tokens of a translation for each of its source
MOST_ADDED = 4096  # tokens whatever the source, by longest_extra or shortest
MOST_LONGEST = 100_000
_LONGEST_PREFIX = 4  # times the longest source, as a server allows too


def require(holds: bool, field: str, value: object, expected: str) -> None:
    """Refuse a setting that does not hold; the config loader puts the section before `field`."""
    if not holds:
        raise ConfigError(f"{field}: expected {expected}, got {value!r}")


def check_tokens(name: str, highest: int, vocabulary: int) -> None:
    """Refuse constraints in tokens that no text could have become."""
    if highest >= vocabulary:
        raise ValueError(f"{name}: expected tokens below the vocabulary's size ({vocabulary}), got {highest}")


@dataclass(frozen=True)
class Limits:
    """Bounds on what a search writes. Lengths count from the end of a forced prefix.

    A translation with its end symbol has at most `longest_ratio` times its source's length plus `longest_extra`
    tokens, and never more than `longest`: its own source decides, not the batch. Before the end come at least
    `shortest` tokens, even where the source is too short for that. `no_repeat` is the size of n-grams that may occur
    only once, 0 for no such rule. `forbid` lists tokens never to write besides those of `Symbols.never`.
    """

    longest_ratio: float = 2.0
    longest_extra: int = 20
    longest: int = 512
    shortest: int = 0
    no_repeat: int = 0
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ratio = self.longest_ratio
        require(0 <= ratio <= LARGEST_RATIO, "longest_ratio", ratio, f"a number from 0 to {LARGEST_RATIO}")
        added, expected = self.longest_extra, f"a whole number from 0 to {MOST_ADDED:,}"
        require(0 <= added <= MOST_ADDED, "longest_extra", added, expected)
        expected = f"a whole number from 1 to {MOST_LONGEST:,}"
        require(1 <= self.longest <= MOST_LONGEST, "longest", self.longest, expected)
        require(self.shortest <= MOST_ADDED, "shortest", self.shortest, f"a whole number from 0 to {MOST_ADDED:,}")
        require(
            0 <= self.shortest < self.longest,
            "shortest",
            self.shortest,
            f"a whole number from 0 up to, not including, longest ({self.longest})",
        )
        require(self.no_repeat >= 0, "no_repeat", self.no_repeat, "an n-gram size, or 0 for no such rule")
        require(min(self.forbid, default=0) >= 0, "forbid", self.forbid, "token numbers of at least 0")

    def beyond(self, known: Collection[str]) -> list[str]:
        """The limits in use that are not among `known`: what an engine with only those must leave to others."""
        return [one.name for one in fields(self) if one.name not in known and getattr(self, one.name) != one.default]

    def lengths(self, sources: Sequence[int], constraints: Sequence[DecodingConstraints]) -> list[int]:
        """The most steps each sentence may take, end symbol included. `sources` are their lengths, end included."""
        wanted = {source: int(self.longest_ratio * source) + self.longest_extra for source in set(sources)}
        written = {source: min(max(length, self.shortest + 1), self.longest) for source, length in wanted.items()}
        return [
            written[source] + len(constraint.prefix) for source, constraint in zip(sources, constraints, strict=True)
        ]


def checked_prefix(tokens: Sequence[int], longest_source: int) -> tuple[int, ...]:
    """The beginning of a translation; one that is longer than what a text of the model becomes is refused."""
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
COLDEST = 1e-4  # below it log-probabilities divided by the temperature leave float32


def require_few(**counts: int) -> None:
    """Refuse more paths of a sentence than any engine searches."""
    for name, count in counts.items():
        require(count <= MOST_PATHS, name, count, f"at most {MOST_PATHS:,}")


def require_bounded(paths: int, limits: Limits) -> None:
    """Refuse limits that let so many paths of a short sentence grow for hours."""
    most = MOST_STEPS // paths
    expected = f"at most {most:,} tokens where a sentence has {paths:,} paths"
    require(limits.shortest <= most, "limits.shortest", limits.shortest, expected)
    require(min(limits.longest_extra, limits.longest) <= most, "limits.longest_extra", limits.longest_extra, expected)


@dataclass(frozen=True)
class Beam:
    """The `size` best paths at each step, ranked at their end by log-probability / ((5 + length) / 6)^length_penalty.

    With `length_normalization` "power" they are ranked by log-probability / length^length_penalty, as in Marian.
    `length` counts the end symbol; a penalty of 0 ranks by log-probability, more favours longer translations.
    With `shrinking` each finished path gives up its place in the beam, which ends when no place is left (Bahdanau et
    al. 2015's search, and Marian's; Huang et al. 2017 compare the two).
    `n_best` hypotheses a sentence are returned, all different, fewer only where the rules allow no more. With `groups`
    the beam falls into as many parts that search one after another at each step, a token less likely by `diversity` for
    every path of an earlier part that takes it; what two parts found alike is replaced by what else they found.
    `coverage` is the weight of the coverage penalty. Where words must be included, the beam of a sentence has at least
    one place more than these have tokens.
    """

    needs: ClassVar[str] = "stepwise"  # of a decoder (fit.py)

    size: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    limits: Limits = Limits()
    groups: int = 1
    diversity: float = 0.5
    coverage: float = 0.0
    length_normalization: LengthNormalization = "gnmt"
    shrinking: bool = False

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", self.size, "a whole number of at least 1")
        require_few(size=self.size)
        require_bounded(self.size, self.limits)
        known = self.length_normalization in get_args(LengthNormalization)
        require(known, "length_normalization", self.length_normalization, "'gnmt' or 'power'")
        require(-5 <= self.length_penalty <= 5, "length_penalty", self.length_penalty, "a number from -5 to 5")
        expected = f"a whole number from 1 to the beam's size ({self.size}); raise size for more"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)
        whole = self.groups >= 1 and self.size % self.groups == 0
        require(whole, "groups", self.groups, f"a number of equal parts of the beam's size ({self.size})")
        strong = math.isfinite(self.diversity) and self.diversity >= 0
        require(strong, "diversity", self.diversity, "a log-probability of at least 0")
        covering = math.isfinite(self.coverage) and self.coverage >= 0
        require(covering, "coverage", self.coverage, "a weight of at least 0, such as 0.2, or 0 for no such penalty")

    @property
    def penalty(self) -> LengthPenalty:
        """What log-probabilities of finished paths are divided by."""
        return LengthPenalty(self.length_penalty, self.length_normalization)

    @property
    def needs_attention(self) -> bool:
        """Whether this search reads the decoder's attention to the source, so that there must be one."""
        return self.coverage > 0

    @property
    def hypotheses(self) -> int:
        """How many a sentence gets."""
        return self.n_best

    def with_n_best(self, count: int) -> Beam:
        """The same for so many hypotheses, and as wide as that takes."""
        wide = -(-count // self.groups) * self.groups
        return replace(self, size=max(self.size, wide), n_best=count)

    def build(self) -> Search:
        from transduce.search.beam import BeamSearch

        return BeamSearch(self)


@dataclass(frozen=True)
class Greedy:
    """The most probable token at each step; of equals the lowest number."""

    needs: ClassVar[str] = "stepwise"  # of a decoder (fit.py)

    limits: Limits = Limits()

    def build(self) -> Search:
        from transduce.search.sampling import StepwiseSearch, most_probable

        return StepwiseSearch(most_probable, self.limits)


@dataclass(frozen=True)
class Sample:
    """Tokens drawn at random, `samples` translations a sentence, the most probable of them first.

    The distribution is sharpened (`temperature` below 1) or flattened, then cut to the `top_k` most probable tokens
    (0: all), then to the fewest whose probabilities sum to `top_p`. Tokens as probable as the last one kept stay too.
    """

    needs: ClassVar[str] = "stepwise"

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    samples: int = 1
    seed: int = 1
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.temperature) and self.temperature >= COLDEST,
            "temperature",
            self.temperature,
            f"a number of at least {COLDEST} (for the most probable token use kind 'greedy')",
        )
        require(self.top_k >= 0, "top_k", self.top_k, "a number of tokens, or 0 for all")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "a probability above 0 and at most 1")
        require(self.samples >= 1, "samples", self.samples, "a whole number of at least 1")
        require_few(samples=self.samples)
        require_bounded(self.samples, self.limits)

    @property
    def hypotheses(self) -> int:
        """How many a sentence gets."""
        return self.samples

    def with_n_best(self, count: int) -> Self:
        """So many draws."""
        return replace(self, samples=count)

    def build(self) -> Search:
        from transduce.search.sampling import StepwiseSearch, drawing

        return StepwiseSearch(drawing(self), self.limits, self.samples, self.seed)


@dataclass(frozen=True)
class MaskPredict:
    """Write everything, then `iterations` - 1 times write again what the model was least sure of.

    Ghazvininejad et al. 2019, section 4: of n places floor(n * (T - t) / T) are written again before iteration t of T.
    The `length_candidates` most probable lengths are tried, and the mean log-probability of the tokens decides (the
    paper leaves out the length's own, which stands in the end symbol's place here). One iteration is a single pass.
    """

    needs: ClassVar[str] = "parallel"  # of a decoder (fit.py)

    iterations: int = 10
    length_candidates: int = 5
    n_best: int = 1

    def __post_init__(self) -> None:
        expected = f"a whole number from 1 to {MOST_ITERATIONS:,}"
        require(1 <= self.iterations <= MOST_ITERATIONS, "iterations", self.iterations, expected)
        candidates = self.length_candidates
        require(candidates >= 1, "length_candidates", candidates, "a whole number of at least 1")
        require_few(length_candidates=candidates)
        expected = f"a whole number from 1 to length_candidates ({candidates}); raise those for more"
        require(1 <= self.n_best <= candidates, "n_best", self.n_best, expected)

    @property
    def hypotheses(self) -> int:
        """How many a sentence gets at most."""
        return self.n_best

    @property
    def needs_lengths(self) -> bool:
        """Whether a sentence must have several lengths to try, for each gives one translation."""
        return self.n_best > 1

    def with_n_best(self, count: int) -> MaskPredict:
        """The same for so many hypotheses, and as many lengths tried as that takes."""
        return replace(self, length_candidates=max(self.length_candidates, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import MaskPredictSearch

        return MaskPredictSearch(self)


@dataclass(frozen=True)
class CTCCollapse:
    """The most probable token or blank in every frame; equal neighbours are one, then blanks fall away.

    The log-probability is that of this one path, cut after each token, and thus at most that of the translation, which
    is the sum over all its paths. With `size` above 1 a prefix beam search adds up the paths of that many beginnings
    (Hannun et al. 2014, without a language model), and a second pass gives the `n_best` their exact log-probabilities.
    """

    kind: ClassVar[str] = "ctc"
    needs: ClassVar[str] = "ctc"  # of a decoder (fit.py)

    size: int = 1
    n_best: int = 1

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", self.size, "a whole number of at least 1")
        require_few(size=self.size)
        expected = f"a whole number from 1 to the number of beginnings, size = {self.size}"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)

    @property
    def hypotheses(self) -> int:
        """How many a sentence gets at most."""
        return self.n_best

    def with_n_best(self, count: int) -> CTCCollapse:
        """The same for so many hypotheses, of as many beginnings as that takes."""
        return replace(self, size=max(self.size, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import CTCSearch

        return CTCSearch(self)


@dataclass(frozen=True)
class Joint:
    """Candidates of a beam search and of the model's CTC head, `size` each, ranked by both (non_autoregressive.py).

    The score is (1 - weight) log p of the decoder + weight log p of the head. For models of speech above all, whose
    order is that of the source; the model must have a head that a CTC term has trained.
    """

    needs: ClassVar[str] = "stepwise"  # of a decoder (fit.py)
    needs_head: ClassVar[str] = "ctc"  # of the model

    size: int = 5
    weight: float = 0.5
    n_best: int = 1
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", self.size, "a whole number of at least 1")
        require_few(size=self.size)
        require_bounded(self.size, self.limits)
        require(0 <= self.weight <= 1, "weight", self.weight, "the CTC head's share of the score, from 0 to 1")
        expected = f"a whole number from 1 to the candidates of each kind, size = {self.size}"
        require(1 <= self.n_best <= self.size, "n_best", self.n_best, expected)

    @property
    def beam(self) -> Beam:
        """What finds the decoder's candidates."""
        return Beam(self.size, 0.0, self.size, self.limits)

    @property
    def hypotheses(self) -> int:
        """How many a sentence gets at most."""
        return self.n_best

    def with_n_best(self, count: int) -> Joint:
        """The same for so many hypotheses, of as many candidates as that takes."""
        return replace(self, size=max(self.size, count), n_best=count)

    def build(self) -> Search:
        from transduce.search.non_autoregressive import JointSearch

        return JointSearch(self)


@dataclass(frozen=True)
class Samples(Sample):
    """Sampling as elsewhere, but of many translations unless another number is given."""

    kind: ClassVar[str] = "sample"

    samples: int = 32


Candidates = Samples | Beam | MaskPredict | CTCCollapse | Joint


@dataclass(frozen=True)
class MinimumBayesRisk:
    """Of `candidates`, the `n_best` with the greatest expected utility: the mean over all other candidates, 0 to 100.

    Candidates are counted as they were drawn: a text drawn twice weighs twice, and supports itself. `tokenize` names
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
        require(1 <= self.n_best <= most, "n_best", self.n_best, f"a whole number from 1 to the {most} candidates")

    @property
    def needs(self) -> str:
        return self.candidates.needs

    @property
    def hypotheses(self) -> int:
        """How many candidates a sentence has."""
        return self.candidates.hypotheses

    def with_n_best(self, count: int) -> MinimumBayesRisk:
        """The same for so many, of at least as many candidates."""
        candidates = self.candidates if self.hypotheses >= count else self.candidates.with_n_best(count)
        return replace(self, candidates=candidates, n_best=count)

    def build(self) -> Search:
        """The search for all candidates."""
        return self.candidates.build()

    def choose(self, texts: Sequence[str]) -> list[tuple[int, float]]:
        """The place among the candidates' texts and the expected utility of each chosen one, best first.

        Of equal texts the first stands for all; of equally good ones the first comes first.
        """
        from transduce.metrics.sentence import sentence_scorer  # numpy comes with it: only now

        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            first.setdefault(text, place)
        others = max(1, len(texts) - 1)
        utilities = sentence_scorer(self.utility, self.tokenize).matrix(list(first), texts)
        itself = [utilities[row, place] for row, place in enumerate(first.values())]
        expected = [(float(total) - float(own)) / others for total, own in zip(utilities.sum(1), itself, strict=True)]
        ranked = sorted(zip(first.values(), expected, strict=True), key=lambda pair: -pair[1])
        return ranked[: self.n_best]
