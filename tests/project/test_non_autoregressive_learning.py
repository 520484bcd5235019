"""Non-autoregressive models, end to end: trained, validated, loaded, translating and scoring on the command line.

What does not go with them is refused when the config is read.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import toys
from cli_runner import Run

import transduce
from transduce.core import config as configs
from transduce.core.errors import ConfigError, RunError
from transduce.data.batch import collate
from transduce.experiment import Config
from transduce.model.parallel import Length
from transduce.objectives import ObjectiveStep
from transduce.text.vocabulary import Symbols
from transduce.training.run_folder import open_teacher

SETTINGS = (
    "data.tokens=512 model.d_model=64 model.dropout=0.0"
    " model.encoder.layers=2 model.encoder.attention.heads=4 model.encoder.d_ff=256 model.encoder.residual=pre_norm"
    " model.decoder.kind=parallel model.decoder.residual=pre_norm"
    " model.decoder.layers=2 model.decoder.attention.heads=4 model.decoder.d_ff=256"
    " training.report_every=50 training.save_every=1000 training.learning_rate.kind=cosine"
    " training.learning_rate.peak=3e-3 training.learning_rate.warmup=50"
    " validation.every=1000 validation.metric=chrf validation.sentences=50"
).split()
MASKED = "objective=masked_prediction search={kind='mask_predict',iterations=4,length_candidates=2}".split()
MASKED += ["validation.search={kind='mask_predict',iterations=1,length_candidates=1}"]
CTC = "objective=parallel_ctc search=ctc validation.search=ctc".split()


def train_and_use(folder: Path, run: Run, pairs: toys.Pairs, *settings: str) -> float:
    """Everything a trained model is used for; gives the share of held-out pairs it gets right to the letter."""
    held_out, rest = pairs[:100], pairs[100:]
    corpus = toys.corpus(folder, rest, held_out)
    toys.run(corpus, folder / "run", *SETTINGS, *settings)
    (measured,) = toys.reports(folder / "run", "valid")
    assert 0 < measured["loss"] < 3
    translator = transduce.load(folder / "run", "cpu")
    sources, targets = zip(*held_out[:6], strict=True)
    for name, texts in (("s", sources), ("t", targets)):
        (folder / name).write_bytes("".join(f"{text}\n" for text in texts).encode())
    translated = run("translate", folder / "run", "--input", folder / "s", "--device", "cpu")
    assert translated.lines == [translator(source) for source in sources]  # one by one as together
    scored = run("score", folder / "run", folder / "s", folder / "t", "--device", "cpu").lines
    logs = [float(line.split("\t")[0]) for line in scored]
    assert logs == pytest.approx([one.log_prob for one in translator.score(sources, targets)], abs=1e-3)
    worse = translator.score(sources, [target[::-1] + "a" for target in targets])
    assert sum(logs) > sum(one.log_prob for one in worse)
    ran = run("evaluate", folder / "t", folder / "run", "--source", folder / "s", "--json", "--device", "cpu")
    assert ran.code == 0
    links = run("align", folder / "run", folder / "s", folder / "t", "--pieces", "--device", "cpu").lines
    pieces = sum(len(translator.tokenizers.target.encode([target])[0]) for target in targets)
    assert sum(len(line.split()) for line in links) == pieces
    assert run("plot", folder / "run", "--output", folder / "plot.svg").code == 0
    return toys.exact(translator, held_out)


@pytest.mark.slow
def test_copying_by_mask_predict(tmp_path: Path, run: Run) -> None:
    assert train_and_use(tmp_path, run, toys.copies(3000), *MASKED, "training.steps=250") >= 0.95


@pytest.mark.slow
def test_copying_by_ctc(tmp_path: Path, run: Run) -> None:
    length = "model.decoder.length={kind='upsampled',factor=2}"
    assert train_and_use(tmp_path, run, toys.copies(3000), *CTC, length, "training.steps=200") >= 0.95


def test_a_canvas_cut_at_its_end_goes_all_the_way(tmp_path: Path) -> None:
    corpus = toys.corpus(tmp_path, toys.copies(60), toys.copies(8, seed=9))
    settings = ["model.decoder.kind=parallel", "model.decoder.length=cut_at_end", *MASKED]
    toys.run(corpus, tmp_path / "run", *settings, "objective.masking=glancing")
    translator = transduce.load(tmp_path / "run", "cpu")
    assert math.isfinite(translator.score(["abc"], ["abc"])[0].log_prob)
    assert translator.translate(["abc"], prefixes="ab")[0].text.startswith("ab")
    with pytest.raises(RunError, match="the teacher is non-autoregressive; one that writes token by token"):
        open_teacher(tmp_path / "run", translator.tokenizers)


PAGE = (Path(__file__).parents[2] / "docs" / "non-autoregressive.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_documented_example_loads_takes_a_step_and_translates(text: str, tmp_path: Path) -> None:
    file = tmp_path / "documented.toml"
    file.write_text(f'extends = "tiny"\n{text}', encoding="utf-8")
    config = configs.load(Config, file)
    symbols = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
    model = config.model.build(15, 15, shared=True)
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]], symbols, symbols)
    loss = ObjectiveStep(model, config.objective.build())(batch, 0)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert loss.total.isfinite()
    for search in (config.search, config.validation.search):
        assert len(search.build()(model, model.encode(batch.source, batch.source_mask), symbols)) == 2


def test_there_is_an_example_of_each_way_to_know_the_length() -> None:
    kinds = {re.search(r"length = \{ kind = \"(\w+)\"", text)[1] for text in EXAMPLES}  # type: ignore[index]
    assert kinds == {configs.kind_of(cls) for cls in Length.__args__}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model.decoder.kind=parallel"],
            "objective.kind: 'cross_entropy' needs a decoder that decodes token by token; model.decoder is 'parallel',"
            " which fits masked_prediction; set objective.kind=masked_prediction search.kind=mask_predict"
            " validation.search.kind=mask_predict",
        ),
        (
            ["objective=masked_prediction"],
            "objective.kind: 'masked_prediction' needs a decoder that is non-autoregressive; model.decoder is"
            " 'transformer', which fits cross_entropy or r_drop or reinforce or minimum_risk",
        ),
        (
            ["model.decoder.kind=parallel", "model.decoder.length=upsampled", *MASKED],
            "objective.kind: 'masked_prediction' needs a decoder that is non-autoregressive; model.decoder is"
            " 'parallel', which fits parallel_ctc",
        ),
        (
            ["model.decoder.kind=parallel", "objective=masked_prediction"],
            "search.kind: 'beam' needs a decoder that decodes token by token; model.decoder is 'parallel',"
            " which fits mask_predict",
        ),
        (
            ["model.decoder.kind=parallel", "objective=masked_prediction", "search=ctc"],
            "search.kind: 'ctc' needs a decoder that is non-autoregressive with CTC;"
            " model.decoder is 'parallel', which fits mask_predict",
        ),
        (
            ["model.decoder.kind=parallel", "objective=masked_prediction", "search=mask_predict"],
            "validation.search.kind: 'greedy' needs a decoder that decodes token by token; model.decoder is 'parallel',"
            " which fits mask_predict",
        ),
        (["search=ctc"], "model.decoder is 'transformer', which fits beam or greedy or sample or mbr or joint"),
    ],
    ids=str,
)
def test_what_does_not_go_together(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, overrides)
    assert expected in str(caught.value)
