"""Every example of docs/extending.md runs as printed; what is no class for a slot is refused by the method's name."""

from __future__ import annotations

import importlib
import inspect
import math
import re
import shlex
import sys
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import toys
from cli_runner import Run

import transduce
from transduce.core import config as configs
from transduce.core.errors import ConfigError, DataError
from transduce.core.plugins import members
from transduce.data.corpus import Corpus
from transduce.data.prepare.run import Prepare
from transduce.engines.native.lowering import reasons_against
from transduce.metrics.sentence import sentence_scorer
from transduce.search.settings import MinimumBayesRisk
from transduce.training.loop import train

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def short(words: list[str]) -> list[str]:
    """A `train` command with a tiny model and few steps, but for what it says itself."""
    keys = [word.partition("=")[0] for word in words if "=" in word]
    small = [*toys.latest(*toys.TINY, "training.steps=2", "validation.every=2"), "training.threads=1"]

    def free(word: str) -> bool:
        key = word.partition("=")[0]
        return not any(f"{own}.".startswith(f"{key}.") or f"{key}.".startswith(f"{own}.") for own in keys)

    return [*words, *filter(free, small)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mine.py, a prepared corpus in data/mine, and tables of numbers with their names."""
    folder = tmp_path_factory.mktemp("extending")
    (folder / "mine.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    toys.corpus(folder / "data", toys.copies(40), toys.copies(6, seed=2)).rename(folder / "data" / "mine")
    for number in range(40):
        (folder / f"table-{number}.txt").write_text(f"{number} 1 2\n3 4 {number}\n" * (1 + number % 3))
    lines = [f"table-{number}.txt\t{word}\n" for number, (word, _) in enumerate(toys.copies(40))]
    (folder / "tables.tsv").write_text("".join(lines[:34]))
    (folder / "more-tables.tsv").write_text("".join(lines[34:]))
    return folder


@pytest.fixture(autouse=True)
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In that folder, with `mine` imported from there."""
    path = list(sys.path)
    monkeypatch.chdir(place)
    yield
    sys.path[:] = path


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    yield
    sys.modules.pop("mine", None)


def test_every_slot_has_an_example() -> None:
    listed = re.findall(r"^\| \[.*\]\(#(.*)\) \|", PAGE, flags=re.MULTILINE)
    assert len(listed) == 19
    assert set(listed) == {name.lower().replace(" ", "-") for name in SECTIONS}
    for name, text in SECTIONS.items():
        assert blocks("python", text), name
        assert "mine:" in "".join(blocks("sh", text)), name


@pytest.mark.parametrize("section", ["", *(name for name in SECTIONS if name != "MBR utility")])
def test_the_example_runs_as_printed(section: str, place: Path, run: Run) -> None:
    for line in "".join(blocks("sh", SECTIONS.get(section, PAGE.partition("\n## ")[0]))).splitlines():
        program, command, *words = shlex.split(line)
        assert program == "transduce"
        if command == "train":
            words = short(words)
        elif command == "prepare":
            words += ["workers=2", "tokenizer.model=char", "tokenizer.byte_fallback=false"]
        ran = run(command, *words)
        assert ran.code == 0, ran.err
        if command == "train":
            decodes_as_it_reads(place / words[words.index("--output") + 1])


def decodes_as_it_reads(folder: Path) -> None:
    """What was trained translates, and says the same of a token whether it reads one at a time or all at once."""
    translator = transduce.load(folder, "cpu", trust=True, engine="torch")
    model = typing.cast("transduce.model.seq2seq.Seq2Seq", translator.engine.model)  # type: ignore[attr-defined]
    if translator.reading is not None:
        return
    assert len(translator.translate(["abc", "a"], beam=2)) == 2
    tokens = torch.tensor([[1, 5, 6, 7], [1, 6, 5, 5]])
    source, mask = torch.tensor([[5, 6, 7], [5, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    with torch.inference_mode():
        memory = model.encode(source, mask)
        whole, _ = model.advance(tokens, model.start(memory))
        state, steps = model.start(memory), []
        for token in tokens.unbind(1):
            logits, state = model.advance(token[:, None], state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_the_example_of_a_utility_runs_as_printed(place: Path, run: Run) -> None:
    if not (place / "runs" / "reward").is_dir():
        (line,) = blocks("sh", SECTIONS["Reward"])
        assert run("train", *short(shlex.split(line)[2:])).code == 0
    (line,) = blocks("sh", SECTIONS["MBR utility"])
    _, command, *words = shlex.split(line)
    ran = run(command, *words)
    assert ran.code == 0, ran.err
    assert len(ran.lines) == 1


# -- what is refused -------------------------------------------------------------------------------------------------

# Of each slot a class of the page that belongs in another.
WRONG = {
    "model.encoder.attention.score": "Ramp",
    "model.encoder.attention.weights": "MinP",
    "model.encoder.positions": "Distance",
    "model.encoder.norm": "Distance",
    "model.encoder.residual": "DynamicTanh",
    "model.encoder.activation": "DynamicTanh",
    "model.encoder.feed_forward": "SquaredReLU",
    "model.encoder": "Bigram",
    "model.decoder": "BagOfWords",
    "model.decoder.wiring": "Trapezoid",
    "model.heads": "Sigmoid",
    "model.source": "Table",
    "sources": "Ramp",
    "objective": "Confidence",
    "objective.terms": "Focal",
    "objective.inputs": "Confidence",
    "objective.reward": "LengthError",
    "search": "Sigmoid",
    "search.candidates": "MinP",
    "search.utility": "Lion",
    "validation.search": "Sigmoid",
    "validation.metric": "Overlap",
    "training.optimizer": "Trapezoid",
    "training.learning_rate": "Distance",
}
BESIDE = {"objective.reward": "objective.kind=reinforce", "search.utility": "search.kind=mbr"}
BESIDE |= {"search.candidates": "search.kind=mbr"}


def refusal(key: str, kind: str) -> str:
    """What is said of a class in the slot of this key."""
    value = f'[{{kind="{kind}"}}]' if key in ("model.heads", "objective.terms") else kind
    words = [f"{key}={value}", *filter(None, [BESIDE.get(key)])]
    root: typing.Any = transduce.Config
    if key == "sources":
        root, words = Prepare, ["output=x", "train.path=tables.tsv", *words]
    with pytest.raises(ConfigError) as caught:
        configs.load(root, None, words)
    return str(caught.value)


def protocol_of(key: str) -> typing.Any:
    """The contract in the type of a setting."""
    if key == "sources":
        return configs.slot_of(configs.hints_of(Prepare)[key])
    config: typing.Any = configs.load(transduce.Config, "tiny", [*filter(None, [BESIDE.get(key)])])
    *parts, name = key.split(".")
    for part in parts:
        config = getattr(config, part)
    hint = configs.hints_of(type(config))[name]
    return configs.slot_of(typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint)


def faulty(protocol: typing.Any, folder: Path, name: str, more: str = "", without: str = "") -> str:
    """A class with all that a protocol wants, `without` one of it, and `more` parameters of each method."""
    lines = ["from dataclasses import dataclass", "", "@dataclass(frozen=True)", f"class {name}:", "    own: int = 1"]
    for member in members(protocol):
        method = inspect.getattr_static(protocol, member, None)
        if member != without and not inspect.isfunction(method):
            lines.append(f"    {member} = 1")
        elif member != without:
            lines.append(
                f"    def {member}({', '.join([*inspect.signature(method).parameters, more]).rstrip(', ')}): ..."
            )
    module = f"faulty_{protocol.__name__.lower()}_{name.lower()}"
    (folder / f"{module}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{module}:{name}"


def signature(protocol: typing.Any, member: str) -> str:
    """As `build(self, d_model: int) -> nn.Module`."""
    return member + str(inspect.signature(inspect.getattr_static(protocol, member))).replace("'", "")


@pytest.mark.parametrize("key", WRONG)
def test_a_class_of_another_slot_is_refused(key: str) -> None:
    told, slot = refusal(key, f"mine:{WRONG[key]}"), key.rpartition(".")[2]
    assert told.endswith(f", which {slot!r} needs; docs/extending.md shows one"), told
    said = [name for name in members(protocol_of(key)) if re.search(rf"'{name}[(:]", told)]
    assert len(said) == 1, told
    method = inspect.getattr_static(protocol_of(key), said[0], None)
    if inspect.isfunction(method):
        assert f"'{signature(protocol_of(key), said[0])}', which" in told


@pytest.mark.parametrize("key", WRONG)
def test_a_method_that_is_missing_or_takes_something_else_is_named(key: str, place: Path) -> None:
    protocol = protocol_of(key)
    *_, method = (
        name for name in members(protocol) if inspect.isfunction(inspect.getattr_static(protocol, name, None))
    )
    lacking = refusal(key, faulty(protocol, place, "Lacking", without=method))
    assert f":Lacking' has no method '{signature(protocol, method)}', which" in lacking
    asking = refusal(key, faulty(protocol, place, "Asking", more="more"))
    assert re.search(r":Asking' has '(\w+)\(self.*more\)' in place of '\1\(self", asking), asking


def test_a_corpus_and_a_model_that_name_a_class_import_it_where_they_are_trusted(place: Path, run: Run) -> None:
    if not (place / "runs" / "tables").is_dir():
        test_the_example_runs_as_printed("Source and file reader", place, run)
    sys.modules.pop("mine")
    with pytest.raises(ConfigError, match=r"manifest.json: its files were read by 'mine:Table', .*set data.trust=true"):
        Corpus.open(place / "data" / "tables").split("train")
    with pytest.raises(ConfigError, match=r"'mine:Table' would import code; .*pass trust=True \(--trust\)"):
        transduce.load(place / "runs" / "tables", "cpu")
    assert "mine" not in sys.modules
    assert type(Corpus.open(place / "data" / "tables", trust=True).reader).__name__ == "Table"


def test_the_native_engine_and_exporters_refuse_parts_of_one_s_own(place: Path, run: Run) -> None:
    for part in ("attention.score", "norm", "feed_forward", "activation"):
        kind = {"attention.score": "Distance", "norm": "DynamicTanh", "feed_forward": "Maxout"}.get(part, "SquaredReLU")
        config = configs.load(transduce.Config, "tiny", [f"model.encoder.{part}=mine:{kind}"])
        assert f"model.encoder.{part} is 'mine:{kind}', a class of your own" in reasons_against(config.model)


def test_words_stay_words_beside_classes_of_one_s_own() -> None:
    for words in (["validation.metric=chrf"], ["validation.metric.kind=chrf"]):
        assert configs.load(transduce.Config, "tiny", words).validation.metric == "chrf"
    with pytest.raises(
        ConfigError, match=r"validation.metric: 'blue' is not one of bleu, chrf, .* a class of your own"
    ):
        configs.load(transduce.Config, "tiny", ["validation.metric=blue"])
    with pytest.raises(ConfigError, match=r"validation.metric.lower: no such setting; 'bleu' has none"):
        configs.load(transduce.Config, "tiny", ["validation.metric.lower=true"])
    merged = configs.layers(transduce.Config, None, ["validation.metric=mine:Weighed", "validation.metric.weight=2"])
    configs.merge(transduce.Config, merged, {"validation": {"metric": "mine:Weighed"}}, "another file")
    assert merged.tree["validation"]["metric"] == {"kind": "mine:Weighed", "weight": 2}, "the same class keeps settings"
    configs.merge(transduce.Config, merged, {"validation": {"metric": "chrf"}}, "another file")
    assert configs.resolve(transduce.Config, merged).validation.metric == "chrf"
    own = configs.load(transduce.Config, "tiny", ["model.encoder.activation=mine:SquaredReLU"])
    assert configs.parse(transduce.Config, tomllib.loads(configs.dump(own))) == own
    with pytest.raises(ConfigError, match="'mine:SquaredReLU' would import code"):
        configs.load(transduce.Config, "tiny", ["model.encoder.activation=mine:SquaredReLU"], trust=False)


@dataclass(frozen=True)
class Wordless:
    """Measures that are none."""

    lower: bool = False

    def measure(self, hypotheses: list[str], references: list[str]) -> float:
        return math.nan

    def score(self, hypotheses: list[str], references: list[str]) -> list[float]:
        return [50.0]


def test_measures_that_are_no_numbers_are_refused(place: Path) -> None:
    config = toys.config(place / "data" / "mine", "training.steps=2", "validation.every=2")
    config = replace(config, validation=replace(config.validation, metric=Wordless()))
    with pytest.raises(
        ConfigError, match=r"validation.metric: measure of '.*:Wordless' gave nan; expected a finite num"
    ):
        train(config, place / "runs" / "wordless")
    with pytest.raises(
        DataError, match=r"Wordless': score gave \(1,\), for 2 hypotheses; expected a finite number from"
    ):
        sentence_scorer(Wordless())(["a", "b"], ["a", "b"])


def test_a_measure_of_sentences_compares_all_with_all() -> None:
    own = sentence_scorer(importlib.import_module("mine").Overlap())
    assert own.matrix(["a b", "c"], ["a", "c", "b a"]).tolist() == [[50, 0, 100], [0, 100, 0]]
    assert own.matrix([], ["a"]).shape == (0, 1)
    assert MinimumBayesRisk(utility=importlib.import_module("mine").Overlap()).choose(["x y", "y z", "y"])[0][0] == 2
