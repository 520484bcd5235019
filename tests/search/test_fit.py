"""A search that does not fit the model's decoder is refused, wherever it comes from, saying what fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from transduce import config as configs
from transduce.errors import ConfigError
from transduce.experiment import Config
from transduce.model.parallel import ParallelDecoder
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder
from transduce.objectives.masked_prediction import MaskedPrediction
from transduce.search.fit import check_fit
from transduce.search.minimum_bayes_risk import MinimumBayesRisk
from transduce.search.settings import Beam, Greedy, MaskPredict, Sample
from transduce.training.settings import Validation
from transduce.translator import Translator


@dataclass(frozen=True)
class Own:
    """A user's own search for such a decoder."""

    needs: ClassVar[str] = "parallel"

    def build(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Silent:
    """A user's own class that says nothing."""


@pytest.mark.parametrize("search", [Beam(), Greedy(), Sample(), MinimumBayesRisk(), Silent()])
def test_what_writes_token_by_token_fits_today_s_searches(search: Any) -> None:
    check_fit(search, TransformerDecoder())
    check_fit(search, Silent())
    with pytest.raises(ConfigError, match=r"needs a decoder that writes token by token; model.decoder is 'parallel'"):
        check_fit(search, ParallelDecoder())


def test_the_text_says_what_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_fit(MaskPredict(), TransformerDecoder(), "validation.search")
    assert str(caught.value) == (
        "validation.search.kind: 'mask_predict' needs a decoder that writes all tokens at once;"
        " model.decoder is 'transformer', which fits beam or greedy or sample or mbr or joint"
    )
    with pytest.raises(ConfigError) as caught:
        check_fit(Beam(), ParallelDecoder())
    assert str(caught.value) == (
        "search.kind: 'beam' needs a decoder that writes token by token; model.decoder is 'parallel',"
        " which fits mask_predict"
    )


def test_a_config_refuses_a_misfit_when_it_is_made() -> None:
    model = replace(Model(), decoder=ParallelDecoder())
    with pytest.raises(ConfigError, match=r"^objective.kind: 'cross_entropy' needs a decoder"):
        Config(model=model)
    objective = MaskedPrediction()
    with pytest.raises(ConfigError, match=r"^search.kind: 'beam' needs a decoder"):
        Config(model=model, objective=objective)
    with pytest.raises(ConfigError, match=r"^validation.search.kind: 'greedy' needs a decoder"):
        Config(model=model, objective=objective, search=MaskPredict())
    Config(model=model, objective=objective, search=MaskPredict(), validation=Validation(search=MaskPredict()))


def test_and_when_it_is_read() -> None:
    """Here a search of the user's own, named in the file."""
    with pytest.raises(ConfigError, match=r"^command line: search.kind: 'own' needs a decoder that writes all"):
        configs.load(Config, None, [f'search={{kind="{__name__}:Own"}}'])


def test_a_translator_refuses_a_search_given_at_call_time() -> None:
    engine: Any = None
    translator = Translator(engine, engine, Beam(), decoder=TransformerDecoder())
    with pytest.raises(ConfigError, match="'mask_predict' needs a decoder that writes all tokens at once"):
        translator.translate(["one"], search=MaskPredict())
    parallel = Translator(engine, engine, MaskPredict(), decoder=ParallelDecoder())
    with pytest.raises(ConfigError, match=r"search.kind: 'beam' needs a decoder"):
        parallel.translate(["one"], beam=3)
    assert Translator(engine, engine, MaskPredict()).translate([], beam=3) == []  # nothing is known of the decoder
