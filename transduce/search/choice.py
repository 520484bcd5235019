"""The searches a config can choose from; the first is what a model translates with when nothing is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transduce.config import kind_of
from transduce.search.minimum_bayes_risk import MinimumBayesRisk
from transduce.search.settings import Beam, CTCCollapse, Greedy, Joint, MaskPredict, Sample

SearchChoice = Beam | Greedy | Sample | MinimumBayesRisk | MaskPredict | CTCCollapse | Joint


@dataclass(frozen=True)
class SearchOption:
    """A search by itself, as a command line names it: `search={kind="sample",top_p=0.9}`."""

    search: SearchChoice = Beam()


def search_label(search: Any) -> str:
    """A search in a word or two, for people: `beam 4`, `greedy`, `mask_predict`."""
    kind = kind_of(type(search))
    return f"{kind} {search.size}" if isinstance(search, Beam) else kind
