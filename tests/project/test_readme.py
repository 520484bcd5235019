"""The commands and Python of README.md, of docs/using.md and its pages run as printed, on text that this test makes.

Only training is cut short: `transduce train` and `compare` lines get a few overrides at their end, which the README's
own explanation allows (everything is a setting).
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from transduce.text.number_words import english, german

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORT = " training.steps=8 training.report_every=4 training.save_every=4 validation.every=4 data.tokens=512"
# In an order in which each finds what those before have made.
PAGES = "using models objectives non-autoregressive training engines distilling decoding alignments comparing".split()
TERSE = " search.limits.longest=12 validation.search.limits.longest=12"  # what has learned nothing seldom ends


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("readme")
    for split, numbers in (("train", range(0, 2000, 5)), ("valid", range(1, 100, 7))):
        (place / f"{split}.en").write_text("".join(f"{english(n)}\n" for n in numbers), encoding="utf-8")
        (place / f"{split}.de").write_text("".join(f"{german(n)}\n" for n in numbers), encoding="utf-8")
    return place


def test_it_says_how_long_training_takes_and_what_an_early_stop_leaves() -> None:
    text = " ".join(README.split())
    assert re.search(r"steps of `tiny` take about [^.]+ hour for number words, and [^.]+ for 8,600 pairs", text)
    assert "stopped earlier, the folder translates with the best weights so far" in text


def test_the_figures_of_the_first_screen_stand_with_the_results() -> None:
    """With the commands that measure them, and as the model's card has them."""
    one_way_and_back = r"([\d.]+) [^\d]*? and ([\d.]+) back"
    told = re.search(rf"on newstest2014 it has {one_way_and_back}, {one_way_and_back}", " ".join(README.split()))
    assert told
    summary = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    log = (ROOT / "docs" / "results" / "quality.md").read_text(encoding="utf-8")
    for page, heading in ((summary, "### News"), (log, "## 2026-11-18: the shipped model on news")):
        (section,) = re.findall(rf"^{heading}.*?(?=^##)", page, flags=re.MULTILINE | re.DOTALL)
        assert f"| student, int8, native engine | {' | '.join(told.groups())} |" in section
        (commands,) = blocks("sh", section)
        for line, pair in zip(commands.splitlines(), ("en-de", "en-de", "en-fr", "en-fr"), strict=True):
            assert line.startswith(f"transduce evaluate data/wmt-news/newstest2014.{pair}.")
    names = ("BLEU en-de", "de-en", "en-fr", "fr-en")
    ways = ", ".join(f"{figure} {name}" for figure, name in zip(told.groups(), names, strict=True))
    for card in ("transduce/everyday/README.md", "recipes/everyday.toml"):
        assert f"it has {ways}." in (ROOT / card).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)  # some forty processes
def test_commands_and_python_run_as_printed(folder: Path, warm: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(warm).parent}{os.pathsep}{os.environ['PATH']}"}
    using = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
    commands = [line for block in blocks("sh") + blocks("sh", using) for line in block.splitlines() if line]
    assert len(commands) >= 20
    (comparison,) = [block for block in blocks("toml", using) if "[[variant]]" in block]
    (folder / "mine.toml").write_text(comparison, encoding="utf-8")
    for command in commands:
        short = command
        if command.startswith(("transduce train", "transduce compare")):
            settings = (
                SHORT + (TERSE if "search=" not in command else "") + (" seeds=[1]" if "compare" in command else "")
            )
            added = (word for word in settings.split() if f" {word.partition('=')[0]}=" not in command)
            short = command.replace(" --output", f" {' '.join(added)} --output")
        done = subprocess.run(
            short, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{short}\n{done.stdout}\n{done.stderr}"
    assert len((folder / "translated.de").read_text(encoding="utf-8").splitlines()) == 15
    assert len((folder / "translated.txt").read_text(encoding="utf-8").splitlines()) == 15
    assert "| pre | " in (folder / "runs" / "compare" / "mine" / "table.md").read_text(encoding="utf-8")
    assert (folder / "mine.png").stat().st_size > 10_000
    programs = blocks("python", using) + blocks("python")
    assert len(programs) == 7
    for program in programs:
        done = subprocess.run(
            [warm, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{program}\n{done.stderr}"
    assert "torch.Size([2, 1, 100]) torch.Size([2, 8, 1, 7])" in done.stdout


def test_files_it_names_exist() -> None:
    for name in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / name).exists(), name


def test_pages_lead_to_pages_and_headings_that_exist() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for name, _, heading in (link.partition("#") for link in re.findall(r"\]\((?!http)([^)\s]+)\)", text)):
            target = page.parent / name if name else page
            assert target.exists(), f"{page}: {name}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                assert heading in anchors, f"{page}: {name}#{heading}"


def test_using_leads_to_all_of_its_pages() -> None:
    using = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
    assert all(f"]({page}.md)" in using for page in PAGES[1:])


def test_make_targets_it_names_exist() -> None:
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{name}:", targets, flags=re.MULTILINE), name
