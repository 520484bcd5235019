"""A search that does not fit the model's decoder is refused, wherever it comes from, saying what fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.experiment import Config
from transduce.model.parallel import CutAtEnd, ParallelDecoder, Upsampled
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder
from transduce.objectives.parallel import MaskedPrediction
from transduce.search.settings import (
    Beam,
    CTCCollapse,
    Greedy,
    Joint,
    MaskPredict,
    MinimumBayesRisk,
    Sample,
    Samples,
    check_search,
)
from transduce.training.settings import Validation
from transduce.translate.translator import Translator


@dataclass(frozen=True)
class Own:
    """A user's own search for such a decoder."""

    needs: ClassVar[str] = "parallel"

    def build(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Silent:
    """A user's own class that says nothing."""


CTC_DECODER = ParallelDecoder(length=Upsampled())
CANDIDATES: list[tuple[Any, Any]] = [
    (Samples(), TransformerDecoder()),
    (Beam(4, n_best=4), TransformerDecoder()),
    (Joint(4, n_best=4), TransformerDecoder()),
    (MaskPredict(n_best=5), ParallelDecoder()),
    (CTCCollapse(4, 4), CTC_DECODER),
]


@pytest.mark.parametrize("search", [Beam(), Greedy(), Sample(), MinimumBayesRisk(), Silent()])
def test_what_writes_token_by_token_fits_today_s_searches(search: Any) -> None:
    check_search(search, TransformerDecoder())
    check_search(search, Silent())
    with pytest.raises(ConfigError, match=r"needs a decoder that decodes token by token; model.decoder is 'parallel'"):
        check_search(search, ParallelDecoder())


def test_the_text_says_what_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        check_search(MaskPredict(), TransformerDecoder(), "validation.search")
    assert str(caught.value) == (
        "validation.search.kind: 'mask_predict' needs a decoder that is non-autoregressive;"
        " model.decoder is 'transformer', which fits beam or greedy or sample or mbr or joint"
    )
    with pytest.raises(ConfigError) as caught:
        check_search(Beam(), ParallelDecoder())
    assert str(caught.value) == (
        "search.kind: 'beam' needs a decoder that decodes token by token; model.decoder is 'parallel',"
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


def test_what_finds_candidates_has_to_fit_and_is_named() -> None:
    for candidates, decoder in CANDIDATES:
        check_search(MinimumBayesRisk(candidates), decoder)
    with pytest.raises(ConfigError) as caught:
        check_search(MinimumBayesRisk(), ParallelDecoder())
    assert str(caught.value) == (
        "search.candidates.kind: 'sample' needs a decoder that decodes token by token; model.decoder is 'parallel',"
        " which fits mask_predict"
    )
    with pytest.raises(ConfigError, match=r"'ctc' needs .*; model.decoder is 'transformer', which fits sample or beam"):
        check_search(MinimumBayesRisk(CTCCollapse(4, 4)), TransformerDecoder())


CUT = ParallelDecoder(length=CutAtEnd())
ONE_LENGTH = (
    "n_best: expected 1, got 3: 'mask_predict' finds one translation for each length it tries, and model.decoder.length"
    " 'cut_at_end' has one length a sentence, which fits 'mask_predict' with n_best=1; for more train a model with"
    " model.decoder.length=length_classifier"
)


def test_several_translations_want_several_lengths() -> None:
    check_search(MaskPredict(), CUT)  # which tries up to five lengths, where there are as many
    check_search(MaskPredict(n_best=3), ParallelDecoder())
    for search, where in (
        (MaskPredict(n_best=3), "search"),
        (MinimumBayesRisk(MaskPredict(n_best=3)), "search.candidates"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_search(search, CUT)
        assert str(caught.value) == f"{where}.{ONE_LENGTH}"


@pytest.mark.parametrize("where", ["search", "validation.search"])
def test_and_a_config_that_has_one_is_refused_when_it_is_read(where: str) -> None:
    searches = {"search": "{kind='mask_predict'}", "validation.search": "{kind='mask_predict'}"}
    searches[where] = "{kind='mask_predict',n_best=3}"
    parallel = ["model.decoder={kind='parallel',length='cut_at_end'}", "objective=masked_prediction"]
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, [*parallel, *(f"{key}={value}" for key, value in searches.items())])
    assert str(caught.value) == f"command line: {where}.{ONE_LENGTH}"


NO_HEAD = (
    "search.kind: 'joint' needs a model with a head 'ctc', and model.heads is ['length']; set model.heads=['length',"
    " 'ctc'] with a term that trains it, or choose beam or greedy or sample or mbr"
)
NO_ATTENTION = (
    "search.coverage: expected 0, since model.decoder 'recurrent' has no attention to the source; or choose a decoder"
    " that has"
)
FIXED = ["model.decoder.kind=recurrent", "model.decoder.attention=fixed_vector"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.heads=length", "search.kind=joint"], NO_HEAD),
        (["model.heads=length", "validation.search=joint"], f"validation.{NO_HEAD}"),
        (
            ["search={kind='mbr',candidates={kind='joint',n_best=3}}"],
            "search.candidates.kind: 'joint' needs a model with a head 'ctc', and model.heads is []; set"
            " model.heads=['ctc'] with a term that trains it, or choose sample or beam",
        ),
        ([*FIXED, "search.coverage=0.2"], NO_ATTENTION),
        ([*FIXED, "validation.search={kind='beam',coverage=0.2}"], f"validation.{NO_ATTENTION}"),
        (
            [*FIXED, "search={kind='mbr',candidates={kind='beam',n_best=4,coverage=0.2}}"],
            NO_ATTENTION.replace("search.", "search.candidates."),
        ),
    ],
)
def test_what_a_search_reads_besides_must_be_there_when_the_config_is_read(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, overrides)
    assert str(caught.value).endswith(f": {expected}")


def test_and_where_it_is_there_nothing_is_refused() -> None:
    searches = [f"{where}={{kind='{kind}'}}" for where in ("search", "validation.search") for kind in ("joint", "beam")]
    for search in searches:
        configs.load(Config, None, ["model.heads=ctc", search])
    covered = ["model.decoder.kind=recurrent", "search.coverage=0.2"]
    for decoder in (covered, ["model.decoder.kind=convolutional", "search.coverage=0.2"], ["search.coverage=0.2"]):
        configs.load(Config, None, decoder)
    configs.load(Config, None, FIXED)


def test_and_when_it_is_read() -> None:
    """Here a search of the user's own, named in the file."""
    with pytest.raises(ConfigError, match=r"^command line: search.kind: 'own' needs a decoder that is non"):
        configs.load(Config, None, [f'search={{kind="{__name__}:Own"}}'])


def test_a_translator_refuses_a_search_given_at_call_time() -> None:
    engine: Any = None
    translator = Translator(engine, engine, Beam(), decoder=TransformerDecoder())
    with pytest.raises(ConfigError, match="'mask_predict' needs a decoder that is non-autoregressive"):
        translator.translate(["one"], search=MaskPredict())
    parallel = Translator(engine, engine, MaskPredict(), decoder=ParallelDecoder())
    with pytest.raises(ConfigError, match=r"search.kind: 'beam' needs a decoder"):
        parallel.translate(["one"], beam=3)
    with pytest.raises(ConfigError, match=r"^search.n_best: expected 1, got 2: 'mask_predict' finds one"):
        Translator(engine, engine, MaskPredict(), decoder=CUT).translate(["one"], n_best=2)
    assert Translator(engine, engine, MaskPredict()).translate([], beam=3) == []  # nothing is known of the decoder
