"""Pipeline files: names put in, stages that need one another, settings from the command line, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runner import Run, refused

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.text.protect import MARKS
from transduce.workflows.pipeline.plan import read_pipeline
from transduce.workflows.pipeline.stages import (
    CardStage,
    ConvertStage,
    DistillStage,
    EvaluateStage,
    GatherStage,
    PrepareStage,
    TrainStage,
)

RECIPES = Path(__file__).parents[3] / "recipes"

PLAN = """
folder = "{place}/out"
paths.data = "{place}/text"
[[stage]]
kind = "prepare"
name = "corpus"
settings.train = {{ source = "{{data}}/a.en", target = "{{data}}/a.de" }}
[[stage]]
kind = "train"
name = "model"
config = "tiny"
settings.data.folder = "{{corpus}}"
[[stage]]
kind = "distill"
name = "taught"
model = "{{model}}"
corpus = "{{corpus}}"
"""


def write(place: Path, text: str = PLAN) -> Path:
    path = place / "plan.toml"
    path.write_text(text.format(place=place), encoding="utf-8")
    return path


def test_names_become_places_and_needs(tmp_path: Path) -> None:
    plan = read_pipeline(write(tmp_path))
    corpus, model, taught = plan.stages
    assert plan.output("model") == tmp_path / "out" / "model"
    assert isinstance(corpus.stage, PrepareStage)
    assert corpus.stage.settings["train"]["source"] == f"{tmp_path}/text/a.en"
    assert isinstance(model.stage, TrainStage)
    assert model.stage.settings["data"]["folder"] == f"{tmp_path}/out/corpus"
    assert isinstance(taught.stage, DistillStage)
    assert (taught.stage.model, taught.stage.beam) == (f"{tmp_path}/out/model", 5)
    assert [stage.needs for stage in plan.stages] == [(), ("corpus",), ("corpus", "model")]


def test_the_command_line_changes_paths_folders_and_stages(tmp_path: Path) -> None:
    words = ["paths.data=elsewhere", "folder=out2", "model.settings.training.steps=7", "taught.beam=2"]
    corpus, model, taught = read_pipeline(write(tmp_path), words).stages
    assert isinstance(corpus.stage, PrepareStage)
    assert corpus.stage.settings["train"]["source"] == "elsewhere/a.en"
    assert isinstance(model.stage, TrainStage)
    assert model.stage.settings == {"data": {"folder": "out2/corpus"}, "training": {"steps": 7}}
    assert isinstance(taught.stage, DistillStage)
    assert taught.stage.beam == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "{{corpus}}",
            "{{corpsu}}",
            "stage 'model': '{corpsu}': {corpsu} is no path and no earlier stage; known are corpus, ",
        ),
        ("{{corpus}}", "{{corpsu}}", "did you mean 'corpus'?"),
        ("{{data}}/a.en", "{{taught}}/a.en", "{taught} is no path and no earlier stage"),
        ('name = "model"', 'name = "corpus"', "stage[1].name: two stages are called 'corpus'"),
        ('name = "model"', 'name = "my model"', "stage[1].name: expected a word of its own in small letters"),
        ('name = "model"', 'name = "paths"', "for it names a folder, got 'paths'"),
        ('kind = "train"', 'kind = "trian"', "stage.kind: 'trian' is not one of gather, prepare, train"),
        ('config = "tiny"', 'config = "tin"', "did you mean 'tiny'?"),
        ("settings.data.folder", "settings.data.fodler", "data.fodler: no such setting; did you mean 'folder'?"),
        (
            "settings.train =",
            "settings.trian =",
            "text: expected either the folder of a gather stage, or settings.train",
        ),
        (
            "[[stage]]",
            "[[stages]]",
            "plan.toml: stages: no such setting; did you mean 'stage'?; settings here: stage, folder, paths",
        ),
        ("folder =", "foldr =", "plan.toml: foldr: no such setting; did you mean 'folder'?"),
        ("paths.data", "path.data", "plan.toml: path: no such setting; did you mean 'paths'?"),
        ('folder = "{place}/out"', "folder = 3", "plan.toml: folder: expected text, got 3 (an integer)"),
        (PLAN, "paths.data = 'x'", "stage: expected one or more [[stage]] tables, got none"),
        ('config = "tiny"', 'confg = "tiny"', "stage.confg: no such setting; did you mean 'config'?"),
    ],
)
def test_what_is_wrong_in_a_file_is_reported_with_its_stage(old: str, new: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_pipeline(write(tmp_path, PLAN.replace(old, new)))
    assert expected in str(error.value)


def test_a_wrong_word_on_the_command_line_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expected folder=..., paths.NAME=... or STAGE.SETTING=..., where stages are"
    ):
        read_pipeline(write(tmp_path), ["modle.settings.training.steps=7"])
    with pytest.raises(ConfigError, match="did you mean 'model'"):
        read_pipeline(write(tmp_path), ["modle=7"])


def test_words_for_a_stage_count_in_any_order(tmp_path: Path) -> None:
    file = write(tmp_path, PLAN.replace('config = "tiny"', 'config = "tiny"\nsettings.model.encoder.layers = 5'))
    rate = ["model.settings.training.learning_rate.peak=1e-4", "model.settings.training.learning_rate.kind=cosine"]
    for order in (rate, rate[::-1]):
        settings = read_pipeline(file, order).stages[1].settings["settings"]
        assert settings["training"] == {"learning_rate": {"kind": "cosine", "peak": 1e-4}}
    kinds = ["model.settings.model.encoder.kind=recurrent", "model.settings.model.encoder.d_ff=9"]
    for order in (kinds, kinds[::-1]):
        with pytest.raises(ConfigError, match=r"model.encoder.d_ff: no such setting; settings of kind 'recurrent'"):
            read_pipeline(file, order)
    with pytest.raises(ConfigError, match=r"taught.beam: given twice, as 2 and as 3; give it once"):
        read_pipeline(file, ["taught.beam=2", "taught.beam=3"])


def test_another_kind_for_a_stage_drops_what_the_file_gave_the_old_one(tmp_path: Path) -> None:
    """The kind that the file's settings belong to may be named by the preset beneath them alone."""
    file = write(tmp_path, PLAN.replace('config = "tiny"', 'config = "tiny"\nsettings.model.encoder.layers = 5'))
    for kind, kept in (("transformer", 5), ("recurrent", None)):
        settings = read_pipeline(file, [f"model.settings.model.encoder.kind={kind}"]).stages[1].settings["settings"]
        assert settings["model"]["encoder"].get("layers") == kept


def test_one_path_of_the_command_line_leaves_the_others(tmp_path: Path) -> None:
    file = write(tmp_path, 'paths.more = "more"\n' + PLAN.replace("a.de", "{{more}}.de"))
    corpus = read_pipeline(file, ["paths.data=elsewhere"]).stages[0].stage
    assert isinstance(corpus, PrepareStage)
    assert corpus.settings["train"] == {"source": "elsewhere/a.en", "target": "elsewhere/more.de"}


def test_a_file_that_is_not_there_is_reported_with_the_pipelines_that_are(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = "give a pipeline file, a .toml file of [[stage]] tables"
    assert f"plna.toml: no such file; {expected} (docs/pipeline.md)" in refused(run("pipeline", "plna.toml"))
    write(tmp_path)
    (tmp_path / "other.toml").write_text("seed = 1\n", encoding="utf-8")
    (tmp_path / "recipes").mkdir()
    shutil.copy(RECIPES / "numbers.toml", tmp_path / "recipes")
    told = refused(run("pipeline", "plna.toml"))
    assert f"plna.toml: no such file; {expected}, such as plan.toml, recipes/numbers.toml" in told
    assert "did you mean 'plan.toml'?" in told
    assert "preset" not in told
    assert "tiny: no such file" in refused(run("pipeline", "tiny"))
    assert refused(run("pipeline", "recipes")).startswith("recipes: is a folder; give a pipeline file, a .toml file of")


def test_stages_that_are_not_there_are_reported(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path)
    assert "no stage is called 'modle'; stages are corpus, model, taught; did you mean 'model'?" in refused(
        run("pipeline", path, "--until", "modle")
    )
    assert "from: stage 'model' comes after 'corpus', where the pipeline is to end" in refused(
        run("pipeline", path, "--from", "model", "--until", "corpus")
    )


TAUGHT = """
[[stage]]
kind = "evaluate"
name = "scores"
model = "{{model}}"
[[stage]]
kind = "card"
name = "card"
model = "{{model}}"
"""


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("taught.workers=-3", "taught.workers: expected 0 or more processes, got -3"),
        ("taught.beam=-1", "taught.beam: expected a size from 0 (the model's own) to 4,096, got -1"),
        ("taught.best_of=0", "taught.best_of: expected 1 to 5 of what the beam finds, got 0"),
        ("taught.best_of=6", "taught.best_of: expected 1 to 5 of what the beam finds, got 6"),
        ("scores.sentences=-1", "scores.sentences: expected 0 (all) or more of each direction, got -1"),
        ("scores.beam=5000", "scores.beam: expected a size from 0"),
        ("card.largest_mib=-1", "card.largest_mib: expected MiB above 0, or 0 for any size, got -1.0"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_any_stage(word: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_pipeline(write(tmp_path, PLAN + TAUGHT), [word])
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("model.settings.training.step=1", "model.settings.training.step: no such setting; did you mean 'steps'?"),
        ("model.settings.training.steps=-1", "model.settings.training.steps: expected "),
        ("corpus.settings.tokenizer.vocabulry=1", "corpus.settings.tokenizer.vocabulry: no such setting; did you mean"),
        ("taught.wokers=3", "taught.wokers: no such setting; did you mean 'workers'?"),
        ("taught.workers=-3", "taught.workers: expected 0 or more processes, got -3"),
        ("taught={workers=-3}", "taught.workers: expected 0 or more processes, got -3"),
        ("model.config=tni", "model.config: 'tni' is neither a .toml file nor a preset"),
        ('corpus.settings.tokenizer.symbols=["a",<b>]', "corpus.settings.tokenizer.symbols: '[\"a\",<b>]' begins as"),
    ],
)
def test_a_word_of_the_command_line_is_named_as_it_was_typed(word: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_pipeline(write(tmp_path), [word])
    assert str(error.value).startswith(f"command line: {expected}")


def test_what_does_not_go_with_a_word_of_the_command_line_names_both(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_pipeline(write(tmp_path), ["model.settings.model.d_model=130"])
    assert str(error.value) == (
        f"{tmp_path}/plan.toml: stage 'model', with model.settings.model.d_model of the command line laid over:"
        " stage.settings: preset tiny: model.encoder.attention.heads: 4 heads do not divide d_model = 130; choose a"
        " divisor"
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("scores.device=foo", "stage 'scores': device: 'foo' is not a device; use auto, cpu, cuda or cuda:0"),
        ("model.settings.training.device=bar", "stage 'model': settings.training.device: 'bar' is not a device"),
        (
            "paths.data=gone",
            "stage 'corpus': settings.train.source: gone/a.en: no such file; set it to a file that is there;"
            " {data} is gone: say paths.data=FOLDER for another",
        ),
    ],
)
def test_devices_and_text_are_looked_for_before_any_stage(
    word: str, expected: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="it knows the devices: pip install transduce[train]")
    (tmp_path / "text").mkdir()
    for name in ("a.en", "a.de"):
        (tmp_path / "text" / name).write_text("one\n", encoding="utf-8")
    monkeypatch.setattr(PrepareStage, "run", lambda *_: pytest.fail("a stage ran"))
    assert expected in refused(run("pipeline", write(tmp_path, PLAN + TAUGHT), word))


def test_stages_translate_with_the_precision_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="models are opened by it: pip install transduce[train]")
    from transduce.workflows import distill as distillation
    from transduce.workflows.pipeline import evaluate

    asked: list[Any] = []

    def distill(*places: Any, **settings: Any) -> SimpleNamespace:
        asked.append((settings["precision"], settings["workers"]))
        return SimpleNamespace(reason="finished")

    class Measuring(evaluate.Measuring):
        def write(self, output: Path, odd: bool = True) -> Any:
            asked.append((self.precision, self.engine, self.device))

    monkeypatch.setattr(distillation, "distill", distill)
    monkeypatch.setattr(evaluate, "Measuring", Measuring)
    for precision in ("fp32", "bf16"):
        DistillStage("taught", precision=precision, workers=3).run(tmp_path)
        EvaluateStage("scores", precision=precision, engine="torch", device="cpu").run(tmp_path)
    expected = [[(one, 3), (one, "torch", "cpu")] for one in ("fp32", "bf16")]
    assert asked == [*expected[0], *expected[1]]
    with pytest.raises(ConfigError, match=r"stage 'taught'.*precision: 'int4' is not one of fp32, bf16"):
        read_pipeline(write(tmp_path, PLAN + 'precision = "int4"\n'))


@pytest.mark.parametrize("recipe", ["everyday.toml", "general.toml"])
def test_the_recipes_are_whole(recipe: str) -> None:
    kinds = [
        GatherStage,
        PrepareStage,
        TrainStage,
        EvaluateStage,
        DistillStage,
        TrainStage,
        ConvertStage,
        EvaluateStage,
    ]
    plan = read_pipeline(RECIPES / recipe, ["paths.data=elsewhere"])
    assert [type(one.stage) for one in plan.stages] == [*kinds, EvaluateStage, CardStage]
    names = [one.name for one in plan.stages]
    assert names.index("teacher_scores") < names.index("student")  # so that `--from student` needs no teacher
    text = plan.stages[0].stage
    assert isinstance(text, GatherStage)
    corpora = text.settings["corpora"]
    assert {frozenset(one["languages"]) for one in corpora if one.get("use") == "test"} == {
        frozenset(("en", other)) for other in ("de", "fr", "es", "pt", "zh")
    }
    assert all(one["license"] and one["origin"] for one in corpora)
    numbers = read_pipeline(RECIPES / "numbers.toml")
    assert {type(one.stage) for one in numbers.stages} >= set(kinds) - {ConvertStage}


def test_the_page_names_every_recipe() -> None:
    page = (RECIPES.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")
    found = sorted(path.name for path in RECIPES.glob("*.toml"))
    assert ("zero", "one", "two", "Three", "Four")[len(found)] + " recipes are in `recipes/`" in page
    assert all(f"`{name}`" in page for name in found)


def test_the_general_recipe_learns_the_marks_and_never_trains_on_what_choices_are_made_on() -> None:
    plan = read_pipeline(RECIPES / "general.toml", ["paths.data=elsewhere"])
    text, corpus = plan.stages[0].stage, plan.stages[1].stage
    assert isinstance(text, GatherStage)
    assert isinstance(corpus, PrepareStage)
    assert tuple(corpus.settings["tokenizer"]["symbols"]) == MARKS
    assert text.settings["variants"]["marked"] > 0
    read = [one["source"] for one in text.settings["corpora"]]
    kept = ("ud-pud", "wmt-news", "bible-pd", "iwslt", "multi30k")
    assert not [path for path in read if any(name in path for name in kept)]


def test_the_recipe_for_a_cpu_learns_the_marks_and_reads_the_text_of_the_other() -> None:
    plan, other = read_pipeline(RECIPES / "general-cpu.toml"), read_pipeline(RECIPES / "general.toml")
    assert [type(one.stage) for one in plan.stages] == [
        PrepareStage,
        TrainStage,
        ConvertStage,
        EvaluateStage,
        CardStage,
    ]
    corpus, student, *_ = (one.stage for one in plan.stages)
    assert isinstance(corpus, PrepareStage)
    assert isinstance(student, TrainStage)
    assert corpus.text == str(other.output("text"))
    tokenizer = corpus.settings["tokenizer"]
    assert tuple(tokenizer["symbols"]) == MARKS
    assert len(set(tokenizer["instead_of"])) == len(MARKS)
    assert tokenizer["folder"] == student.settings["training"]["start_from"] + "/tokenizer"
    assert [one.stage.license for one in plan.stages if isinstance(one.stage, CardStage)] == [
        one.stage.license for one in other.stages if isinstance(one.stage, CardStage)
    ]


@pytest.mark.parametrize(("recipe", "most"), [("everyday.toml", 25), ("general.toml", 40), ("general-cpu.toml", 25)])
def test_the_student_of_the_recipe_is_small_enough_to_give_away(recipe: str, most: int) -> None:
    torch = pytest.importorskip("torch", reason="models are trained by it: pip install transduce[train]")
    from transduce.experiment import Config

    plan = read_pipeline(RECIPES / recipe)
    student = plan.stages[plan.find("student")].stage
    assert isinstance(student, TrainStage)
    layers = configs.layers(Config, student.config)
    configs.merge(Config, layers, student.settings, "test")
    with torch.device("meta"):
        model = configs.resolve(Config, layers).model.build(20_000, 20_000, True)
    sizes = [p.numel() + 4 * p.shape[0] if p.dim() > 1 else 4 * p.numel() for p in model.parameters()]
    assert sum(sizes) < (most - 0.75) * 2**20  # a byte a weight, a scale a row; the tokenizer takes 0.6 MiB
