"""Comparison files: what each variant becomes, whose word counts, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.workflows.compare.plan import ComparisonPlan, read_plan

HEAD = 'base = "tiny"\nseeds = [1, 2]\n'


def plan(folder: Path, text: str, *overrides: str) -> ComparisonPlan:
    (folder / "some.toml").write_text(text, encoding="utf-8")
    return read_plan(folder / "some.toml", overrides)


def settings(found: ComparisonPlan, variant: str, seed: int = 1) -> dict[str, Any]:
    (config,) = [run.config for run in found.runs if (run.variant, run.seed) == (variant, seed)]
    return configs.flatten(config)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(folder, text, *overrides)
    return str(caught.value).replace(str(folder / "some.toml"), "FILE")


def test_every_variant_with_every_seed(tmp_path: Path) -> None:
    found = plan(tmp_path, HEAD + 'baseline = "b"\n[[variant]]\nname = "a"\n[[variant]]\nname = "b"\n')
    assert (found.name, found.variants, found.baseline) == ("some", ("a", "b"), "b")
    assert [(run.variant, run.seed, run.config.seed) for run in found.runs] == [
        ("a", 1, 1),
        ("a", 2, 2),
        ("b", 1, 1),
        ("b", 2, 2),
    ]
    assert found.runs[1].label == "a, seed 2"
    assert found.runs[1].folder(Path("out")) == Path("out/a/seed-2")
    assert found.runs[1].beside(Path("out"), "log") == Path("out/a/seed-2.log")


def test_whose_word_counts(tmp_path: Path) -> None:
    """Base, then common settings, then the command line, then the variant's own."""
    text = HEAD + (
        "settings.training.steps = 70\nsettings.model.dropout = 0.2\nsettings.training.clip = 2.0\n"
        '[[variant]]\nname = "a"\nsettings.model.dropout = 0.4\n[[variant]]\nname = "b"\n'
    )
    found = plan(tmp_path, text, "training.clip=3", "model.dropout=0.3", "training.steps=80")
    for variant, dropout in (("a", 0.4), ("b", 0.3)):
        own = settings(found, variant)
        assert (own["model.dropout"], own["training.clip"], own["training.steps"]) == (dropout, 3.0, 80)
        assert own["model.d_model"] == 128


def test_another_kind_drops_the_settings_of_the_old_one(tmp_path: Path) -> None:
    text = HEAD + '[[variant]]\nname = "g"\nsettings.search = "greedy"\n[[variant]]\nname = "b"\n'
    found = plan(tmp_path, text, "search.size=9")
    assert settings(found, "b")["search.size"] == 9
    assert settings(found, "g")["search.kind"] == "greedy"
    assert "search.size" not in settings(found, "g")


def test_scaled_numbers_follow_the_base(tmp_path: Path) -> None:
    text = HEAD + (
        '[[variant]]\nname = "a"\nscaled.model = { d_model = 0.5, dropout = 2, encoder.layers = 0.1 }\n'
        '[[variant]]\nname = "b"\n'
    )
    own = settings(plan(tmp_path, text), "a")
    assert (own["model.d_model"], own["model.dropout"], own["model.encoder.layers"]) == (64, 0.2, 1)
    assert settings(plan(tmp_path, text, "model.d_model=32"), "a")["model.d_model"] == 16
    assert settings(plan(tmp_path, text, "base=small"), "a")["model.d_model"] == 128
    found_by_trying = HEAD + '[[variant]]\nname = "a"\nscaled.data.tokens = 0.25\n'
    assert settings(plan(tmp_path, found_by_trying), "a")["data.tokens"] == 512
    assert settings(plan(tmp_path, found_by_trying, "data.tokens=0"), "a")["data.tokens"] == 0


def test_keys_of_the_comparison_on_the_command_line(tmp_path: Path) -> None:
    found = plan(tmp_path, HEAD + '[[variant]]\nname = "a"\n', "seeds=[7]", "base=small", "baseline=a", "language=zh")
    assert [run.seed for run in found.runs] == [7]
    assert settings(found, "a", 7)["model.d_model"] == 256
    assert (found.baseline, found.language) == ("a", "zh")


def test_a_base_lies_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "mine.toml").write_text('extends = "tiny"\nlicense = "mine"\n', encoding="utf-8")
    text = 'base = "../mine.toml"\n[[variant]]\nname = "a"\n'
    assert settings(plan(tmp_path / "sub", text), "a")["license"] == "mine"
    monkeypatch.chdir(tmp_path)
    assert settings(plan(tmp_path / "sub", text, "base=mine.toml"), "a")["license"] == "mine"


def test_a_variant_names_the_run_of_another(tmp_path: Path) -> None:
    """The one with the same seed, in the folder where all will be, wherever in the settings."""
    text = HEAD + (
        '[[variant]]\nname = "a.1"\n[[variant]]\nname = "b"\nsettings.training.start_from = "{a.1}"\n'
        '[[variant]]\nname = "c"\nsettings.training.start_from = "{b}"\n'
        'settings.objective.terms = [{ kind = "distillation", teacher = "{a.1}" }]\n'
    )
    found = plan(tmp_path, text)
    assert [run.after for run in found.runs] == [(), (), ("a.1",), ("a.1",), ("b", "a.1"), ("b", "a.1")]
    assert settings(found, "a.1")["training.start_from"] == ""
    assert settings(found, "b", 2)["training.start_from"] == "runs/compare/some/a.1/seed-2"
    elsewhere = read_plan(tmp_path / "some.toml", output=Path("out"))
    (term,) = settings(elsewhere, "c", 2)["objective.terms"]
    assert (term["teacher"], settings(elsewhere, "c")["training.start_from"]) == ("out/a.1/seed-2", "out/b/seed-1")


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        (HEAD, [], "variant: must be given, and has no default"),
        ("variant = []", [], "FILE: variant: expected at least one [[variant]], got none"),
        ('[[variant]]\nname = "a"\n' * 2, [], "FILE: variant: two are called 'a'; give each a name of its own"),
        ('[[variant]]\nname = "a/b"', [], "variant[0].name: expected letters, digits and . + - _, for it names a"),
        ('[[variant]]\nnam = "a"', [], "variant[0].nam: no such setting; did you mean 'name'?"),
        ('[[variant]]\nname = "a"', ["seeds=[1, 1]"], "seeds: expected one or more, each once, got [1, 1]"),
        ('[[variant]]\nname = "a"', ["baseline=b"], "command line: baseline: 'b' is no variant; variants are a"),
        ('[[variant]]\nname = "a"', ["seed=3"], "seed: every variant is trained with each seed of the comparison;"),
        (
            '[[variant]]\nname = "a"\nsettings = 3',
            [],
            "variant[0].settings: expected a table of settings, got 3 (an integer)",
        ),
        (
            '[[variant]]\nname = "a"\nsettings.training.steps = 3',
            [],
            "FILE: variant 'a': training.steps: is the same for all variants; set it for all, under 'settings' or as",
        ),
        (
            '[[variant]]\nname = "a"\nsettings.model.encoder.layrs = 3',
            [],
            "FILE: variant 'a': settings: model.encoder.layrs: no such setting; did you mean 'layers'?",
        ),
        (
            '[[variant]]\nname = "ok"\n[[variant]]\nname = "a"\nsettings.model.encoder.residual = "pre"',
            [],
            "FILE: variant 'a': settings: model.encoder.residual.kind: 'pre' is not one of",
        ),
        (
            'settings.model.dropout = 7\n[[variant]]\nname = "a"',
            [],
            "FILE: variant 'a': FILE: settings: model.dropout: expected at least 0 and below 1, got 7.0",
        ),
        (
            '[[variant]]\nname = "a"',
            ["model.dropout=7"],
            "FILE: variant 'a': command line: model.dropout: expected at least 0 and below 1, got 7.0",
        ),
        (
            '[[variant]]\nname = "a"\nscaled.model.tie = 2',
            [],
            "FILE: variant 'a': scaled.model.tie: the base has no number to multiply there, but 'all'",
        ),
        (
            '[[variant]]\nname = "a"\nscaled.model.d_model = "x"',
            [],
            "FILE: variant 'a': scaled.model.d_model: expected a number to multiply 512 by, got 'x'",
        ),
        (
            '[[variant]]\nname = "a"\nsettings.training.start_from = "{a}"',
            [],
            "variant 'a': settings: '{a}' is the run of no variant that stands before it in the file; these are none",
        ),
        (
            '[[variant]]\nname = "a"\n[[variant]]\nname = "b"\nsettings.training.start_from = "{c}"',
            [],
            "variant 'b': settings: '{c}' is the run of no variant that stands before it in the file; these are a",
        ),
        ('base = "tinny"\n[[variant]]\nname = "a"', [], "'tinny' is neither a .toml file nor a preset"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, overrides: list[str], expected: str) -> None:
    assert expected in refusal(tmp_path, text, *overrides)


@pytest.mark.parametrize("name", ["missing.toml", "tiny"])
def test_a_file_that_is_not_there(name: str) -> None:
    """A preset is no comparison, and is not offered as one."""
    with pytest.raises(ConfigError) as caught:
        read_plan(name)
    assert str(caught.value) == (
        f"{name}: no such file; give a comparison file, a .toml file with a [[variant]] for each thing to compare"
        " (a preset is the base of one, not one itself)"
    )
