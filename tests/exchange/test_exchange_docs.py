"""The commands and Python of docs/exchange.md run as printed, on random models and generated text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_runner import Run

pytest.importorskip("transformers", reason="docs/exchange.md shows it: pip install transduce[test]")
pytest.importorskip("ctranslate2", reason="docs/exchange.md shows it: pip install transduce[test]")
pytest.importorskip("onnxscript", reason="docs/exchange.md shows it: pip install transduce[test]")
pytest.importorskip("onnxruntime", reason="docs/exchange.md shows it: pip install transduce[test]")

import marian_models as marian
import random_runs
import toys

import transduce
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Greedy, Limits

DOCS = (Path(__file__).parents[2] / "docs" / "exchange.md").read_text(encoding="utf-8")
SHORT = ["training.steps=4", "training.save_every=4", "training.device=cpu", "data.tokens=500"]


@pytest.mark.slow
def test_commands_and_python_run_as_printed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    marian.folder(Path("opus-mt-en-de"), "renormalized")
    random_runs.run(
        Path("runs/mine"),
        Model(
            16, 0.0, encoder=TransformerEncoder(1, Attention(2), 16), decoder=TransformerDecoder(1, Attention(2), 16)
        ),
    )
    for name, begin, stop in (("train.", 0, 100), ("valid.", 100, 110), ("", 0, 5)):
        for side, lines in (("source", marian.SOURCE), ("target", marian.TARGET)):
            text = "".join(f"{line}\n" for line in lines[begin:stop])
            Path(f"{name}{side}" if name else f"{side}.txt").write_text(text, encoding="utf-8")
    printed: list[str] = []
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", DOCS, flags=re.MULTILINE | re.DOTALL):
        if language == "sh":
            for line in block.strip().split("\n"):
                words = shlex.split(line)[1:]
                words = [*words[:2], *toys.latest(*SHORT, *words[2:])] if words[0] == "train" else words
                ran = run(*words)
                assert ran.code == 0, (line, ran.err)
        else:
            capsysbinary.readouterr()
            exec(compile(block, "docs/exchange.md", "exec"), {})
            printed.append(capsysbinary.readouterr().out.decode().strip("\n[']"))
    assert len(Path("translated.txt").read_text(encoding="utf-8").split("\n")) == 6
    assert (
        transduce.load("runs/tuned", "cpu").tokenizers.digest()
        == transduce.load("runs/opus", "cpu").tokenizers.digest()
    )
    assert len(printed) == 3
    greedy = Greedy(Limits(longest_ratio=0, longest_extra=19, longest=19))
    assert printed[2] == transduce.load("runs/mine", "cpu")("abc def", search=greedy)
