"""What is published: one wheel for every Python, licences of code and weights, the version in one place."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import transduce

ROOT = Path(__file__).resolve().parents[2]
CORE = "transduce/engines/native/libtransduce.so"
SOURCES = "transduce/engines/native/src"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of a copy of the package whose core is one empty function: compiling all of it takes a minute."""
    folder = tmp_path_factory.mktemp("packaging")
    unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.cpp", "model.native")
    shutil.copytree(ROOT / "transduce", folder / "transduce", ignore=unwanted)
    code = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
    (folder / "transduce" / "engines" / "native" / "src" / "core.cpp").write_text(code)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "LICENSE-WEIGHTS"):
        shutil.copy(ROOT / name, folder)
    for command in ("sdist", "bdist_wheel"):
        done = subprocess.run([sys.executable, "setup.py", "-q", command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def build_wheel() -> ModuleType:
    """The module behind `make wheel`, whose checks need none of its tools."""
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "release" / "build_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(wheel: Path, folder: Path, name: str, drop: str = "", add: str = "") -> Path:
    """A wheel under another name, without a file or with one more."""
    made = folder / name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
        for one in old.namelist():
            if one != drop:
                new.writestr(one, old.read(one))
        if add:
            new.writestr(add, b"")
    return made


def members(built: Path) -> tuple[zipfile.ZipFile, Message]:
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (place,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return archive, Parser().parsestr(archive.read(place).decode())


def test_one_wheel_serves_every_python(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert re.fullmatch(rf"transduce-{re.escape(transduce.__version__)}-py3-none-linux_\w+\.whl", wheel.name)
    archive, _ = members(built)
    libraries = [name for name in archive.namelist() if ".so" in name]
    assert libraries == [CORE]
    assert ctypes.CDLL(archive.extract(CORE, tmp_path)).answer() == 42


def test_sources_of_the_core_are_in_the_sdist_and_not_in_the_wheel(built: Path) -> None:
    archive, _ = members(built)
    names = archive.namelist()
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    data = "py.typed presets/tiny.toml everyday/README.md everyday/config.toml server/pages/static/learn.js".split()
    assert {f"transduce/{name}" for name in data} <= set(names)
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    headers = {
        f"transduce/engines/native/src/{path.name}"
        for path in (ROOT / "transduce" / "engines" / "native" / "src").glob("*.h")
    }
    assert {"setup.py", "LICENSE", "LICENSE-WEIGHTS", "transduce/engines/native/src/core.cpp", *headers} <= inside
    assert not [name for name in inside if name.startswith("tests")]


def test_the_metadata_state_the_licences_of_code_and_weights(built: Path) -> None:
    archive, metadata = members(built)
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "LICENSE-WEIGHTS"]
    (place,) = (name for name in archive.namelist() if name.endswith("licenses/LICENSE-WEIGHTS"))
    text = archive.read(place).decode()
    assert "https://creativecommons.org/licenses/by/2.0/legalcode" in text
    assert "transduce/everyday/README.md" in text


def test_make_wheel_refuses_what_is_no_release(built: Path, build_wheel: ModuleType, tmp_path: Path) -> None:
    """The tag of an old glibc, no sources, all that a wheel needs, and the licences: each is checked before hashes."""
    (plain,) = built.glob("*.whl")
    version = transduce.__version__
    name = f"transduce-{version}-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    weights = "transduce/everyday/model.native"
    good = changed(plain, tmp_path, name, add=weights)  # the copy that was built leaves them out
    build_wheel.check_contents(good, version)
    (tmp_path / "bad").mkdir()
    for called, change, told in (
        (plain.name, {}, f"the wheel is called {plain.name}, expected {name}"),
        (
            name,
            {"add": "transduce/engines/native/src/core.cpp"},
            "has C++ sources: transduce/engines/native/src/core.cpp",
        ),
        (name, {"drop": weights}, f"has no {weights}"),
    ):
        wheel = changed(good, tmp_path / "bad", called, **change)
        with pytest.raises(build_wheel.ReleaseError, match=re.escape(told)):
            build_wheel.check_contents(wheel, version)
    with pytest.raises(build_wheel.ReleaseError, match="the wheel is called"):
        build_wheel.check_contents(good, "99.0")


def test_make_wheel_writes_hashes_that_sha256sum_checks(build_wheel: ModuleType, tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    sums = build_wheel.write_hashes(tmp_path, [tmp_path / "b.whl", tmp_path / "a.tar.gz"])
    check = ["sha256sum", "--check", sums.name]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, text=True).stdout == "a.tar.gz: OK\nb.whl: OK\n"
    (tmp_path / "a.tar.gz").write_text("other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


def test_a_release_is_cited_with_its_version_and_date(
    build_wheel: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    (tmp_path / "dist").mkdir()
    monkeypatch.setattr(build_wheel, "ROOT", tmp_path)
    for heading, released in (("(unreleased)", None), ("(2027-01-31)", "2027-01-31")):
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## 9.8.7 {heading}\n\n## 9.8.6 (2026-01-01)\n")
        made = build_wheel.write_citation(tmp_path / "dist", "9.8.7")
        cited = yaml.load(made.read_text(encoding="utf-8"), yaml.BaseLoader)
        assert (cited["version"], cited.get("date-released")) == ("9.8.7", released)
        assert cited["title"].startswith("transduce")


def test_make_wheel_compiles_against_an_old_glibc(build_wheel: ModuleType) -> None:
    words = build_wheel.compiler()
    assert all(f"-target x86_64-linux-gnu.{build_wheel.GLIBC}" in words[name] for name in ("CC", "CXX", "LDCXXSHARED"))
    assert build_wheel.GLIBC.replace(".", "_") in build_wheel.PLATFORM


def test_the_version_stands_in_one_place(built: Path) -> None:
    _, metadata = members(built)
    assert metadata["Version"] == transduce.__version__
    files = ("pyproject.toml", "setup.py", "Makefile", "CITATION.cff", "README.md", "docs/releasing.md")
    assert [name for name in files if transduce.__version__ in (ROOT / name).read_text(encoding="utf-8")] == []
    assert f"\n## {transduce.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["SECURITY.md", "CITATION.cff", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md"]
)
def test_what_strangers_look_for_is_there(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_citation_and_templates_are_sound() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    forms = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in templates if path.name != "config.yml"]
    assert len(forms) == 2
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        assert all(field["type"] in ("textarea", "input", "markdown") for field in form["body"])
