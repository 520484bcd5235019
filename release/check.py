"""Check that a release could be made of this commit, and make its files. Publishes nothing."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from build_wheel import ROOT, ReleaseError, check_installed, make, pythons, run, version_of_the_package

FILES = ("LICENSE", "LICENSE-WEIGHTS", "SECURITY.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CHANGELOG.md")


def check_tree() -> None:
    """Nothing uncommitted: what is published is a commit."""
    changed = run("git", "status", "--porcelain").strip()
    if changed:
        raise ReleaseError(f"the working tree has changes; commit them first:\n{changed}")


def check_files(version: str) -> None:
    """The files that a release needs, and the version in the change log alone beside its one place."""
    missing = [name for name in FILES if not (ROOT / name).is_file()]
    if missing:
        raise ReleaseError(f"missing: {', '.join(missing)}")
    if not re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md: no heading '## {version}'; write what is new, or change __version__")
    tags = run("git", "tag", "--list", f"v{version}", "--points-at", "HEAD").split()
    if run("git", "tag", "--list", f"v{version}").strip() and not tags:
        raise ReleaseError(f"the tag v{version} is on another commit; raise __version__ in transduce/__init__.py")


def check_source(source: Path, version: str) -> None:
    """The source archive installs from scratch, with this machine's own compiler, and its core translates."""
    with tempfile.TemporaryDirectory() as folder:
        said = check_installed(source, pythons()[0], version, Path(folder) / "environment")
    print(f"{source.name}: {said}")


def main() -> int:
    try:
        version = version_of_the_package()
        check_tree()
        check_files(version)
        source, *others = make(ROOT / "dist")
        check_source(source, version)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in (source, *others):
        print(path.relative_to(ROOT))
    print(f"transduce {version} is ready. To publish: git tag -s v{version}, push the tag, upload dist/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
