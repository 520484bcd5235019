"""Minimum Bayes risk: the candidate that agrees best with all the others, rather than the most probable one.

Kumar and Byrne, 2004; over samples Eikema and Aziz, 2020. Candidates come from another search. Agreement is a sentence
metric of texts, which a search does not see: the translator has the candidates found and calls `choose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from transduce.config import kind_of
from transduce.errors import ConfigError
from transduce.search.hypothesis import Search
from transduce.search.limits import require
from transduce.search.settings import Beam, CTCCollapse, Joint, MaskPredict, Sample


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

    candidates: Candidates = Samples()
    utility: Literal["chrf", "bleu"] = "chrf"
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
        from transduce.evaluation.sentence import sentence_scorer  # numpy comes with it: only now

        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            first.setdefault(text, place)
        others = max(1, len(texts) - 1)
        utilities = sentence_scorer(self.utility, self.tokenize).matrix(list(first), texts)
        itself = [utilities[row, place] for row, place in enumerate(first.values())]
        expected = [(float(total) - float(own)) / others for total, own in zip(utilities.sum(1), itself, strict=True)]
        ranked = sorted(zip(first.values(), expected, strict=True), key=lambda pair: -pair[1])
        return ranked[: self.n_best]
