"""Configs from files, presets and overrides: what they give, what they refuse and in which words, and back to TOML."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.core.plugins import is_protocol, name_of
from transduce.data.prepare.run import Prepare
from transduce.experiment import Config
from transduce.model.parallel import ParallelDecoder
from transduce.objectives.cross_entropy import CrossEntropy, RDrop
from transduce.search.settings import Beam, Greedy, Sample
from transduce.training.optimizer import Cosine


@dataclass(frozen=True)
class Circle:
    radius: float = 1.0


@dataclass(frozen=True)
class LongSquare:
    side: int = 2
    name: str = "square"


@dataclass(frozen=True)
class Drawing:
    """A config with one of everything."""

    title: str
    shape: Circle | LongSquare = Circle()
    shapes: tuple[Circle | LongSquare, ...] = ()
    squares: tuple[LongSquare, ...] = ()
    size: tuple[int, int] = (3, 4)
    colours: tuple[str, ...] = ()
    pen: Literal["thick", "thin"] = "thick"
    filled: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ConfigError(f"scale: expected above 0, got {self.scale}")


def drawing(*overrides: str) -> Drawing:
    return configs.load(Drawing, None, overrides, defaults=[["title=mine"]])


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def message(cls: type[Any], path: str | Path | None, *overrides: str, trust: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        configs.load(cls, path, overrides, trust)
    return str(caught.value)


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LongSquare.side` was called `edge`, and `Drawing.title` was called `caption`."""
    names = {name_of(LongSquare): {"edge": "side"}, name_of(Drawing): {"caption": "title"}}
    monkeypatch.setattr(configs, "RENAMED", names)
    configs._warn.cache_clear()


# -- what settings give ----------------------------------------------------------------------------------------------


def test_defaults_are_the_class_s_own() -> None:
    assert configs.load(Config) == Config()
    assert drawing() == Drawing("mine")


def test_an_override_is_toml_or_else_a_word() -> None:
    assert drawing("size=[1, 2]").size == (1, 2)
    assert drawing("title = ein Satz ").title == "ein Satz"
    assert drawing('title="7"').title == "7"
    assert drawing("title=").title == ""
    assert drawing("title=a=b").title == "a=b"
    assert drawing("title=first\nscale = 5").title == "first\nscale = 5"
    assert drawing("filled=true").filled is True


def test_a_whole_number_will_do_for_a_float_and_not_the_reverse() -> None:
    scale = drawing("scale=2").scale
    assert (scale, type(scale)) == (2.0, float)
    assert "shape.side: expected an integer, got 2.0 (a number)" in message(
        Drawing, None, "title=x", "shape.kind=long_square", "shape.side=2.0"
    )


def test_kinds_are_chosen_by_table_by_word_and_by_default() -> None:
    assert drawing("shape.kind=long_square", "shape.side=5").shape == LongSquare(5)
    assert drawing('shape={kind="long_square", side=5}').shape == LongSquare(5)
    assert drawing("shape=long_square").shape == LongSquare()
    assert drawing("shape.radius=3.0").shape == Circle(3.0)


def test_another_kind_drops_the_old_kind_s_settings_and_the_same_kind_keeps_them(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'title = "a"\n[shape]\nkind = "long_square"\nside = 7\nname = "s"\n')
    assert configs.load(Drawing, file, ["shape.kind=circle"]).shape == Circle()
    assert configs.load(Drawing, file, ["shape=circle"]).shape == Circle()
    assert configs.load(Drawing, file, ["shape.kind=long_square"]).shape == LongSquare(7, "s")
    assert configs.load(Drawing, file, ["shape=long_square"]).shape == LongSquare(7, "s")
    assert configs.load(Drawing, file, ["shape.side=8"]).shape == LongSquare(8, "s")


def test_a_table_without_kind_keeps_the_kind_it_inherits() -> None:
    config = configs.load(Config, "tiny", ["search=greedy", "search.limits.longest=9"])
    assert isinstance(config.search, Greedy)
    assert config.search.limits.longest == 9
    assert isinstance(configs.load(Config, "tiny", ["search.size=9"]).search, Beam)


def test_one_item_may_stand_for_an_array() -> None:
    assert drawing("colours=red").colours == ("red",)
    assert drawing('colours=["red", "blue"]').colours == ("red", "blue")
    assert drawing("squares.side=5", "squares.name=s").squares == (LongSquare(5, "s"),)
    assert drawing("shapes=circle").shapes == (Circle(),)
    assert drawing("shapes.kind=long_square", "shapes.side=4").shapes == (LongSquare(4),)


def test_a_setting_changes_the_only_table_of_an_array(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'title = "a"\n[[squares]]\nside = 5\nname = "s"\n')
    assert configs.load(Drawing, file, ["squares.side=6"]).squares == (LongSquare(6, "s"),)
    assert configs.load(Drawing, file, ["squares=[{side=1}, {side=2}]"]).squares == (LongSquare(1), LongSquare(2))


def test_the_corpora_of_prepare_may_be_spelt_out_on_the_command_line() -> None:
    config = configs.load(Prepare, None, ["output=o", "train.source=a", "train.target=b", "valid.path=v.tsv"])
    assert [(text.source, text.target) for text in config.train] == [("a", "b")]
    assert config.valid[0].path == "v.tsv"


def test_extends_is_relative_to_the_file_and_may_name_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "parent.toml", 'extends = "tiny"\n[model]\ndropout = 0.2\n[training]\nsteps = 7\n')
    write(tmp_path / "deep" / "child.toml", 'extends = "../parent.toml"\n[training]\nsteps = 8\n')
    monkeypatch.chdir("/")
    config = configs.load(Config, tmp_path / "deep" / "child.toml", ["training.clip=1"])
    assert (config.training.steps, config.model.dropout, config.model.d_model) == (8, 0.2, 128)
    assert config.training.clip == 1.0


def test_presets_are_found_by_name_and_are_what_they_say() -> None:
    assert configs.presets() == ["base", "big", "modern", "small", "tiny"]
    assert configs.load(Config, "base").model == Config().model
    assert configs.load(Config, "big").model.d_model == 1024
    assert configs.load(Config, "big").training.learning_rate == configs.load(Config, "base").training.learning_rate


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 5\n")
    assert configs.load(Config, tmp_path / "a.toml").seed == 5


def test_the_base_given_in_python_is_not_changed() -> None:
    base = {"shape": {"kind": "long_square", "side": 3}, "title": "x"}
    merged = configs.layers(Drawing, None, ["shape.side=4"], base=base)
    assert configs.resolve(Drawing, merged).shape == LongSquare(4)
    assert base["shape"] == {"kind": "long_square", "side": 3}


# -- words in any order ----------------------------------------------------------------------------------------------


def test_settings_of_another_kind_count_before_and_after_its_name() -> None:
    words = ["model.decoder.layers=1", "model.decoder.d_ff=256", "model.decoder.kind=parallel"]
    needed = ["objective.kind=masked_prediction", "search=mask_predict", "validation.search=mask_predict"]
    for order in itertools.permutations(words):
        decoder = configs.load(Config, "tiny", [*order, *needed]).model.decoder
        assert (configs.kind_of(type(decoder)), decoder.layers, decoder.d_ff) == ("parallel", 1, 256)
    for order in itertools.permutations(["training.learning_rate.peak=1e-4", "training.learning_rate.kind=cosine"]):
        assert configs.load(Config, None, order).training.learning_rate == Cosine(peak=1e-4)


def test_a_new_kind_takes_nothing_from_the_kind_that_a_preset_chose() -> None:
    """Of the file's table nothing is left: what counts is the command line, and the new kind's defaults."""
    needed = ["objective.kind=masked_prediction", "search=mask_predict", "validation.search=mask_predict"]
    assert configs.load(Config, "tiny").model.decoder.layers == 3
    found = configs.load(Config, "tiny", ["model.decoder.kind=parallel", "model.decoder.d_ff=99", *needed])
    assert found.model.decoder == ParallelDecoder(d_ff=99)


def test_a_setting_that_the_chosen_kind_does_not_have_is_refused_by_name() -> None:
    words = ["title=x", "shape.radius=2.0", "shape.kind=long_square"]
    texts = {message(Drawing, None, *order) for order in itertools.permutations(words)}
    assert texts == {
        "command line: shape.radius: no such setting; settings of kind 'long_square': side, name; kinds"
        " with 'radius': circle"
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["scale=1", "scale=2"], "scale: given twice, as 1 and as 2; give it once"),
        (["scale=1", "scale=1.0"], "scale: given twice, as 1 and as 1.0; give it once"),
        (["scale=[1]", "scale=[true]"], "scale: given twice, as [1] and as [True]; give it once"),
        (["scale=0.0", "scale=-0.0"], "scale: given twice, as -0.0 and as 0.0; give it once"),
        (["shape=circle", "shape.kind=long_square"], "shape.kind: given twice, as 'long_square' and as 'circle'"),
        (["squares=[{side=1}]", "squares.side=2"], "squares: given twice, as {'side': 2} and as [{'side': 1}]"),
        (["size=1", "size.x=2"], "size: given twice, as {'x': 2} and as 1; give it once"),
    ],
)
def test_a_setting_that_is_given_twice_is_refused(words: list[str], expected: str) -> None:
    assert {message(Drawing, None, "title=x", *order)[: len(expected)] for order in (words, words[::-1])} == {expected}


def test_the_same_said_twice_is_said_once() -> None:
    assert drawing("scale=2", "scale=2", "shape=long_square", "shape.kind=long_square").shape == LongSquare()


def test_layers_of_words_change_one_another_as_files_do() -> None:
    words = ["shape.side=9"]
    found = configs.load(Drawing, None, words, defaults=[["title=x", "shape=long_square"], ["shape.name=s"]])
    assert found == Drawing("x", LongSquare(9, "s"))
    found = configs.load(Drawing, None, ["shape=circle"], defaults=[["title=x", "shape=long_square", "shape.side=3"]])
    assert found == Drawing("x", Circle())


WORDS = st.sampled_from(
    [
        *("title=x", "title=5", "title.x=1", "scale=2", "scale=-1", "scale=3.5", "pen=thin", "pen=thik", "size=[1, 2]"),
        *("shape=circle", "shape=long_square", "shape.kind=long_square", "shape.kind=circle", "shape.kind=oval"),
        *("shape.radius=2", "shape.side=3", "shape.name=s", 'shape={kind="long_square", side=4}', "shape={radius=7}"),
        *("shapes=circle", "shapes.radius=2", "shapes.kind=long_square", "shapes.side=1", "shapes=[{radius=1}]"),
        *("squares.side=5", "squares.name=s", "squares=[{side=1}, {side=2}]", "tittle=x", "shape.radios=2", "=x", "x"),
    ]
)


@given(st.lists(WORDS, max_size=6).flatmap(lambda words: st.tuples(st.just(words), st.permutations(words))))
@settings(deadline=None)
def test_any_order_of_words_gives_the_same_config_or_the_same_refusal(orders: tuple[list[str], list[str]]) -> None:
    def outcome(words: list[str]) -> Any:
        try:
            return configs.load(Drawing, None, words)
        except ConfigError as error:
            return str(error)

    assert outcome(orders[0]) == outcome(orders[1])


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["tittle=x"], "command line: tittle: no such setting; did you mean 'title'?; settings here: title, shape,"),
        (["title=x", "zzz=x"], "zzz: no such setting; settings here: title,"),
        (["title=x", "shape.radios=1"], "no such setting; did you mean 'radius'?; settings of kind 'circle': radius"),
        (["title=x", "scale=big"], "command line: scale: expected a number, got 'big' (text)"),
        (["title=x", "filled=1"], "filled: expected true or false, got 1 (an integer)"),
        (["title=5"], "title: expected text, got 5 (an integer)"),
        (["title=x", "scale=[1]"], "scale: expected a number, got [1] (an array)"),
        (["title={a=1}"], "title: expected text, got {'a': 1} (a table)"),
        (["title=x", "pen=thik"], "pen: 'thik' is not one of thick, thin; did you mean 'thick'?"),
        (["title=x", "pen=3"], "pen: 3 is not one of thick, thin"),
        (["title=x", "shape.kind=circel"], "shape.kind: 'circel' is not one of circle, long_square; did you mean"),
        (["title=x", "shape=LongSquare"], "shape.kind: 'LongSquare' is not one of circle, long_square; did you mean"),
        (["title=x", "shape.kind=[1]"], "shape.kind: [1] is not one of circle, long_square"),
        (["title=x", "shape=3"], "shape: expected a kind or a table, got 3 (an integer)"),
        (["title=x", "squares=3"], "squares: expected a table of settings, got 3 (an integer)"),
        (["title=x", "squares=[3]"], "squares[0]: expected a table of settings, got 3 (an integer)"),
        (
            ["title=x", "squares=[{side=1}, {side=true}]"],
            "squares[1].side: expected an integer, got True (true or false)",
        ),
        (["title=x", "size=[1, 2, 3]"], "size: expected 2 values, got 3: [1, 2, 3]"),
        (["title=x", "size=1"], "size: expected 2 values, got 1: 1"),
        (["title=x", "size=[1, true]"], "size[1]: expected an integer, got True (true or false)"),
        (["title=x", "colours=[1]"], "colours[0]: expected text, got 1 (an integer)"),
        (["scale=2"], "title: must be given, and has no default"),
        (["title=x", "scale=-1"], "command line: scale: expected above 0, got -1.0"),
        (["title"], "'title': expected key=value, such as training.steps=500"),
        (["title.=x"], "'title.=x': the key has a dot with no name beside it; expected names with one dot between"),
        (["size..x=4"], "'size..x=4': the key has a dot with no name beside it"),
        (["squares.0.side=1"], "'squares.0.side=1': '0' in the key is a number, and items of a list cannot be set one"),
        (["squares.0.side=1"], "one by one; give the whole list, squares=[...]"),
        (["ti-tle=x"], "'ti-tle' in the key is no name of a setting; expected letters, digits and underscores"),
        (
            ["title=x", "size=3,4"],
            "size: expected a list, each of it an integer, got '3,4' (text); write size=[3,",
        ),
        (["title=x", 'colours=["a",<b>]'], "colours: '[\"a\",<b>]' begins as a list and is no TOML; write a list as"),
        (["title=x", "colours=[\n"], 'a list as \'["a", "b"]\', and a text that begins so with quotes, \'"[a"\''),
        (["title=x", 'colours=["\\ud800"]'], "begins as a list and is no TOML"),
        (["title=x", "shape=[circle"], "shape.kind: '[circle' is not one of"),
        (["=x"], "'=x': expected key=value"),
    ],
)
def test_the_words_for_a_wrong_setting(overrides: list[str], expected: str) -> None:
    assert expected in message(Drawing, None, *overrides)


def test_a_check_of_the_class_itself_is_reported_with_the_dotted_key() -> None:
    text = message(Config, "tiny", "model.encoder.attention.heads=7")
    assert text == "command line: model.encoder.attention.heads: 7 heads do not divide d_model = 128; choose a divisor"


def test_a_text_may_begin_as_a_list_does() -> None:
    assert drawing("title=[draft", 'colours="[red"').colours == ("[red",)
    assert type(drawing("title=[draft").title) is str


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "model.d_model=130",
            "preset tiny, with model.d_model of the command line laid over: model.encoder.attention.heads: 4 heads do"
            " not divide d_model = 130; choose a divisor",
        ),
        ("training.learning_rate.peak=1", "of kind 'paper': warmup, factor; kinds with 'peak': inverse_root, cosine"),
        ("training.optimizer=SGD", "adam, adam_w, muon; a class of your own is named as package.module:Class"),
        (
            "training.optimizer.kind=fractions:Fraction",
            "'fractions:Fraction' is not a dataclass; 'optimizer' needs one with 'build'; docs/extending.md shows one",
        ),
        ("training.steps=abc", "command line: training.steps: expected an integer, got 'abc' (text)"),
    ],
)
def test_the_words_for_a_wrong_setting_of_a_run(word: str, expected: str) -> None:
    assert message(Config, "tiny", word).endswith(expected)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize("key", ["training.minutes", "objective.label_smoothing", "model.dropout"])
def test_numbers_are_finite(key: str, number: str) -> None:
    found = float(number)
    assert message(Config, "tiny", f"{key}={number}") == f"command line: {key}: expected a finite number, got {found}"


def test_a_whole_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^radius: expected a finite number, got 1000*\.\.\.0*$"):
        configs.parse(Circle, {"radius": 10**400})


def test_a_fault_of_the_file_alone_is_not_laid_on_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path / "wrong.toml", "[model]\nd_model = true\n")
    assert message(Config, file, "seed=2").startswith(f"{file}: model.d_model: expected an integer, got True")


def test_the_file_that_a_wrong_value_came_from_is_named(tmp_path: Path) -> None:
    parent = write(tmp_path / "parent.toml", "[model]\nd_modle = 3\n")
    child = write(tmp_path / "child.toml", 'extends = "parent.toml"\nseed = 3\n')
    assert message(Config, child).startswith(f"{parent}: model.d_modle: no such setting; did you mean 'd_model'?")


def test_files_that_cannot_be_found_or_read(tmp_path: Path) -> None:
    assert "neither a .toml file nor a preset; presets are base, big, modern, small, tiny; did you mean 'small'?" in (
        message(Config, "smal")
    )
    assert f"{tmp_path / 'none.toml'}: no such file; give a .toml file or one of the presets" in message(
        Config, tmp_path / "none.toml"
    )
    orphan = write(tmp_path / "orphan.toml", 'extends = "gone.toml"\n')
    assert f"{tmp_path / 'gone.toml'}: no such file" in message(Config, orphan)
    assert f"{tmp_path}: no such file" in message(Config, f"{tmp_path}")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.toml", "seed = 1\n")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("transduce.core.untrusted.open_regular", refuse)
    assert message(Config, file) == f"{file}: cannot be read: Permission denied"


def test_files_that_are_no_toml(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.toml", "seed = 1\n[model\n")
    text = message(Config, bad)
    assert text.startswith(f"{bad}: not TOML: ")
    assert "line 2" in text
    (tmp_path / "latin.toml").write_bytes(b"license = 'M\xfcller'\n")
    assert message(Config, tmp_path / "latin.toml").endswith("latin.toml: not UTF-8 at byte 12; save the file as UTF-8")


def test_extends_in_a_circle_and_of_the_wrong_type(tmp_path: Path) -> None:
    one = write(tmp_path / "one.toml", 'extends = "two.toml"\n')
    two = write(tmp_path / "two.toml", 'extends = "one.toml"\n')
    assert f"{one}: extends itself through {one} -> {two}; remove one 'extends'" in message(Config, one)
    wrong = write(tmp_path / "wrong.toml", "extends = 3\n")
    assert message(Config, wrong) == f"{wrong}: extends: expected a file or preset name, got 3"


def test_one_setting_for_several_tables_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'title = "a"\n[[squares]]\nside = 5\n[[squares]]\nside = 6\n')
    text = message(Drawing, file, "squares.side=7")
    assert "squares: 2 tables are already set, and it is not clear which of them to change" in text
    assert "squares=[{...}, {...}]" in text


# -- a class of one's own --------------------------------------------------------------------------------------------

OWN = """
from dataclasses import dataclass
from transduce.search.settings import Limits

@dataclass(frozen=True)
class MySearch:
    width: int = 3
    limits: Limits = Limits()

    def build(self):
        return None

    @dataclass(frozen=True)
    class Inner:
        depth: int = 1

        def build(self):
            return None

@dataclass(frozen=True)
class NoBuild:
    width: int = 3

class NoDataclass:
    def build(self):
        return None
"""


FAULTY = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Unresolved:
    width: "nothing" = 3

    def build(self):
        return None

@dataclass(frozen=True)
class Picky:
    width: int = 3

    def __post_init__(self):
        if self.width % 2 == 0:
            raise ValueError(f"{self.width} is not odd")

    def build(self):
        return None
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's in the current folder, and a broken one."""
    write(tmp_path / "my_searches.py", OWN)
    write(tmp_path / "my_broken.py", "def (\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield "my_searches"
    sys.path[:] = path
    sys.modules.pop("my_searches", None)


def test_a_class_of_one_s_own_is_taken_from_the_current_folder(own_module: str) -> None:
    config = configs.load(Config, "tiny", [f"search.kind={own_module}:MySearch", "search.width=5"])
    assert (type(config.search).__name__, config.search.width) == ("MySearch", 5)  # type: ignore[union-attr]
    again = configs.parse(Config, tomllib.loads(configs.dump(config)))
    assert again == config
    nested = configs.load(Config, "tiny", [f"search={own_module}:MySearch.Inner"])
    assert configs.parse(Config, tomllib.loads(configs.dump(nested))) == nested


def test_the_words_for_a_class_that_cannot_be_used(own_module: str) -> None:
    def text(kind: str, *more: str, trust: bool = True) -> str:
        return message(Config, None, f"search.kind={kind}", *more, trust=trust)

    assert (
        "search.kind: cannot import 'no_such_module:X': ModuleNotFoundError: No module named 'no_such_module'; expected"
        in text("no_such_module:X")
    )
    assert f"cannot import '{own_module}:Gone'" in text(f"{own_module}:Gone")
    assert "cannot import ':X'" in text(":X")
    assert "cannot import 'my_searches:'" in text("my_searches:")
    assert "cannot import '.relative:X'" in text(".relative:X")
    assert "cannot import 'my_broken:X': SyntaxError: invalid syntax" in text("my_broken:X")
    assert text(f"{own_module}:NoBuild").endswith(
        f"'{own_module}:NoBuild' has no method 'build(self) -> Search', which 'search' needs; docs/extending.md shows"
        " one"
    )
    assert f"'{own_module}:NoDataclass' is not a dataclass; 'search' needs one" in text(f"{own_module}:NoDataclass")
    assert "search.wdth: no such setting; did you mean 'width'?" in text(f"{own_module}:MySearch", "search.wdth=1")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck (FILE:1); expected package.module:Class, of a module"),
        ("import sys\nsys.exit(7)", "SystemExit: 7 (FILE:2); expected package.module:Class, of a module that Python"),
        ("def __getattr__(name):\n    assert name == 'Y'", "AssertionError (FILE:2); expected"),
    ],
)
def test_what_a_module_raises_is_reported(own_module: str, tmp_path: Path, code: str, told: str) -> None:
    file = write(tmp_path / "my_raising.py", code)
    text = message(Config, None, "search.kind=my_raising:X")
    sys.modules.pop("my_raising", None)
    assert f"search.kind: cannot import 'my_raising:X': {told.replace('FILE', str(file))}" in text


def test_what_a_class_of_one_s_own_raises_is_reported(own_module: str, tmp_path: Path) -> None:
    file = write(tmp_path / f"{own_module}.py", FAULTY)
    assert message(Config, None, f"search.kind={own_module}:Unresolved") == (
        f"command line: search.kind: the types of the settings of '{own_module}:Unresolved' cannot be read: NameError:"
        " name 'nothing' is not defined; write types that its module defines or imports"
    )
    assert message(Config, None, f"search.kind={own_module}:Picky", "search.width=4").endswith(
        f"search: '{own_module}:Picky' refuses its settings: ValueError: 4 is not odd ({file}:17); change them, or the"
        " class"
    )


def test_a_class_in_a_place_that_is_not_its_own_is_refused() -> None:
    text = message(Config, "tiny", "model.decoder=transduce.model.seq2seq:Model")
    assert text == (
        "command line: model.decoder.kind: 'transduce.model.seq2seq:Model' has no attribute 'layers: int', which"
        " 'decoder' needs; docs/extending.md shows one"
    )


def test_a_folder_from_others_imports_nothing(own_module: str) -> None:
    text = message(Config, None, f"search.kind={own_module}:MySearch", trust=False)
    assert f"search.kind: '{own_module}:MySearch' would import code; if you trust where this folder came from" in text
    assert "--trust" in text
    assert own_module not in sys.modules


# -- and back to TOML ------------------------------------------------------------------------------------------------


def round_trip(config: Any) -> Any:
    return configs.parse(type(config), tomllib.loads(configs.dump(config)))


@pytest.mark.parametrize("preset", configs.presets())
def test_presets_return_from_toml(preset: str) -> None:
    config = configs.load(Config, preset)
    assert round_trip(config) == config


shapes = st.one_of(
    st.builds(Circle, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(LongSquare, st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))),
)
squares = st.builds(LongSquare, st.integers(0, 9), st.text("ab\"'\\\n\r\t\u0085\u2028äß中 #=[]", max_size=8))


@given(
    st.builds(
        Drawing,
        title=st.text(st.characters(exclude_categories=["Cs"])),
        shape=shapes,
        shapes=st.lists(shapes, max_size=3).map(tuple),
        squares=st.lists(squares, max_size=3).map(tuple),
        size=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        colours=st.lists(st.text("ab\"'\\\n\u2028", max_size=5), max_size=3).map(tuple),
        pen=st.sampled_from(["thick", "thin"]),
        filled=st.booleans(),
        scale=st.floats(min_value=1e-300, allow_infinity=False),
    )
)
@settings(deadline=None)
def test_any_config_returns_from_toml(config: Drawing) -> None:
    assert round_trip(config) == config


@given(
    st.integers(0, 2**40),
    st.sampled_from([Beam(size=7, n_best=2), Greedy(), Sample(top_p=0.3)]),
    st.sampled_from([CrossEntropy(0.0), RDrop(alpha=0.5)]),
)
@settings(deadline=None)
def test_configs_of_a_run_return_from_toml(seed: int, search: Any, objective: Any) -> None:
    config = Config(seed=seed, search=search, objective=objective)
    assert round_trip(config) == config


def test_what_is_shown_says_where_each_value_came_from(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.toml", 'extends = "tiny"\n[training]\nsteps = 9\n[search]\nkind = "sample"\n')
    merged = configs.layers(Config, file, ["training.tensorboard=true", "search.top_p=0.5", "data.folder=corpus"])
    config = configs.resolve(Config, merged)
    lines = configs.dump(config, merged.origins).split("\n")
    assert f"steps = 9 # {file}" in lines
    assert "d_model = 128 # preset tiny" in lines
    assert "dropout = 0.1 # preset base" in lines
    assert f'kind = "sample" # {file}' in lines
    assert "top_p = 0.5 # command line" in lines
    assert 'folder = "corpus" # command line' in lines
    assert "tensorboard = true # command line" in lines
    assert "seed = 1" in lines
    assert configs.parse(Config, tomllib.loads("\n".join(lines))) == config


def test_the_origin_of_a_dropped_setting_is_forgotten() -> None:
    merged = configs.layers(Config, "base", ["search.kind=greedy"])
    assert {key: place for key, place in merged.origins.items() if key.startswith("search")} == {
        "search.kind": "command line"
    }


def test_flatten_gives_every_setting_by_its_dotted_key() -> None:
    flat = configs.flatten(Drawing("x", shape=LongSquare(5), squares=(LongSquare(1),)))
    assert flat["shape.kind"] == "long_square"
    assert flat["shape.side"] == 5
    assert flat["size"] == [3, 4]
    assert flat["squares"] == [{"side": 1, "name": "square"}]


# -- a convention the loader rests on --------------------------------------------------------------------------------


def config_classes(cls: Any) -> Iterator[Any]:
    """A config class and all that its settings can hold."""
    if dataclasses.is_dataclass(cls):
        yield cls
        for hint in typing.get_type_hints(cls).values():
            yield from config_classes(hint)
    else:
        for member in typing.get_args(cls):
            if not isinstance(member, str):
                yield from config_classes(member)


def test_the_first_member_of_a_union_is_the_default_kind() -> None:
    """A table without `kind` means the first of the union; it must be what leaving the table out means, too."""
    seen = 0
    for cls in {*config_classes(Config), *config_classes(Prepare)}:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            choices = configs.choices_of(hints[field.name])
            if not choices:
                continue
            seen += 1
            first = next(iter(choices.values()))
            made: Any = field.default_factory
            default = made() if field.default is dataclasses.MISSING else field.default
            assert default == first(), f"{cls.__name__}.{field.name}"
            members = [one for one in typing.get_args(hints[field.name]) if not is_protocol(one)]
            assert len(choices) == len(members), f"two of {choices} share a kind"
    assert seen >= 7


def test_every_config_class_is_frozen_and_documented() -> None:
    for cls in {*config_classes(Config), *config_classes(Prepare)}:
        assert cls.__dataclass_params__.frozen, cls
        assert cls.__doc__, cls
        assert not cls.__doc__.startswith(f"{cls.__name__}("), f"{cls} has only the docstring that dataclasses make"


def test_unions_of_the_same_classes_in_another_order_have_another_default() -> None:
    """Python holds `A | B` and `B | A` to be equal: what was looked up for one must not serve the other."""
    config = configs.load(Config, None, ["search.limits.longest=9", "validation.search.limits.longest=9"])
    assert isinstance(config.search, Beam)
    assert isinstance(config.validation.search, Greedy)


# -- old names of settings -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("renamed")
def test_an_old_name_is_read_with_a_warning_that_names_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = 'caption = "x"\n[shape]\nkind = "long_square"\nedge = 5\n[[shapes]]\nkind = "long_square"\nedge = 6\n'
    path = write(tmp_path / "old.toml", old)
    expected = Drawing("x", shape=LongSquare(5), shapes=(LongSquare(6),))
    assert configs.load(Drawing, path) == configs.load(Drawing, path) == expected
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: caption: this setting is now called 'title'; the old name is still read",
        f"{path}: shape.edge: this setting is now called 'side'; the old name is still read",
        "shapes[0].edge: this setting is now called 'side'; the old name is still read",
    ]
    assert "edge" not in configs.dump(expected)
    assert configs.parse(Drawing, {"caption": "x"}) == Drawing("x")


@pytest.mark.usefixtures("renamed")
def test_an_override_by_either_name_is_laid_over_the_other(tmp_path: Path) -> None:
    old = write(tmp_path / "old.toml", 'caption = "x"\n[shape]\nkind = "long_square"\nedge = 5\n')
    new = write(tmp_path / "new.toml", 'title = "x"\n[shape]\nkind = "long_square"\nside = 5\n')
    for path, word in ((old, "shape.side=7"), (new, "shape.edge=7")):
        assert configs.load(Drawing, path, [word]) == Drawing("x", shape=LongSquare(7))


@pytest.mark.usefixtures("renamed")
def test_an_old_name_beside_its_new_one_is_refused() -> None:
    words = "shape.kind=long_square", "shape.edge=7", "shape.side=8"
    told = message(Drawing, None, "title=x", *words)
    assert told == "command line: shape.edge: the old name of 'side', which is given too; remove one"


def test_an_error_in_a_choice_given_as_a_word_names_where_it_comes_from() -> None:
    told = message(Config, "tiny", "validation.metric=mine:Nothing")
    assert told.startswith("command line: validation.metric.kind: ")


def test_words_are_listed_as_toml_writes_them() -> None:
    assert message(Config, "tiny", "training.compile=maybe").endswith("'maybe' is not one of auto, true, false")
