"""The options of every command that opens models: each passes all of them on, and does its work with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cli_runner import Run, refused

import transduce
from transduce.core.errors import RunError
from transduce.data.corpus import Corpus
from transduce.engines.torch.engine import TorchEngine

if TYPE_CHECKING:
    from toy_model import Toy

BF16 = ("--precision", "bf16", "--device", "cpu")
COMMANDS = {
    "translate": "MODEL five --to de",
    "score": "MODEL TEXT/valid.en TEXT/valid.de --to de",
    "align": "MODEL TEXT/valid.en TEXT/valid.de --to de",
    "confidence": "MODEL --source TEXT/valid.en --target TEXT/valid.de --to de",
    "evaluate": "TEXT/valid.de MODEL --source TEXT/valid.en --to de",
    "inspect": "five --model MODEL --to de",
    "serve": "en-de=MODEL --port 0",
    "distill": "MODEL --output OUT/distilled --workers 1",
    "transcribe": "MODEL five.wav",
}


@pytest.fixture(scope="module")
def rounded(toy: Toy) -> transduce.Translator:
    return transduce.load(toy.model, "cpu", precision="bf16")


def words_of(command: str, toy: Toy, folder: Path) -> list[str]:
    places = {"MODEL": toy.model, "TEXT": toy.text, "OUT": folder}
    found = COMMANDS[command]
    for name, place in places.items():
        found = found.replace(name, str(place))
    return [command, *found.split()]


def lines(toy: Toy, language: str) -> list[str]:
    return (toy.text / f"valid.{language}").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_is_refused_by_every_command(command: str, toy: Toy, tmp_path: Path, run: Run) -> None:
    words = words_of(command, toy, tmp_path)
    assert refused(run(*words, "--precision", "fp16")) == "precision: expected fp32 or bf16, got 'fp16'"
    assert refused(run(*words, "--graphs", "maybe")) == "graphs: expected auto, on, off or compiled, got 'maybe'"
    assert "got 'onnx'" in refused(run(*words, "--engine", "onnx"))
    assert "is not a device; use auto, cpu, cuda or cuda:0" in refused(run(*words, "--device", "abacus"))
    assert not (tmp_path / "distilled").exists()


def test_a_corpus_is_distilled_by_torch(toy: Toy, tmp_path: Path, run: Run) -> None:
    assert refused(run(*words_of("distill", toy, tmp_path), "--engine", "native")) == (
        "engine: expected auto or torch, got 'native'; a corpus is distilled with the weights that were trained, which"
        " torch runs"
    )


def test_scores_and_alignments_of_rounded_weights(
    toy: Toy, rounded: transduce.Translator, tmp_path: Path, run: Run
) -> None:
    ran = run(*words_of("score", toy, tmp_path), *BF16)
    pair = lines(toy, "en"), lines(toy, "de")
    assert ran.lines == [f"{one.log_prob:.4f}\t{one.per_token:.4f}" for one in rounded.score(*pair, "de")]
    assert ran.lines != run(*words_of("score", toy, tmp_path), "--device", "cpu").lines
    ran = run(*words_of("align", toy, tmp_path), *BF16, "--graphs", "on")
    assert ran.lines == [one.pharaoh() for one in rounded.align(*pair, "de")]
    assert "graphs: a CPU has none; decoding without\n" in ran.err


def test_translations_of_rounded_weights(toy: Toy, rounded: transduce.Translator, tmp_path: Path, run: Run) -> None:
    made = rounded(lines(toy, "en"), to="de", protect=False)
    assert made != toy.translator(lines(toy, "en"), to="de", protect=False)
    ran = run(*words_of("evaluate", toy, tmp_path), *BF16, "--output", tmp_path / "made", "--json")
    assert json.loads(ran.out)["qualities"]
    assert (tmp_path / "made").read_text(encoding="utf-8").split("\n")[:-1] == made
    ran = run(*words_of("inspect", toy, tmp_path), *BF16, "--output", tmp_path / "seen.json")
    (seen,) = json.loads((tmp_path / "seen.json").read_bytes())
    assert seen["translation"] == rounded("five", to="de", protect=False)
    assert seen["log_prob"] == pytest.approx(transduce.inspect(rounded, "five", to="de").log_prob)
    assert seen["log_prob"] != pytest.approx(transduce.inspect(toy.translator, "five", to="de").log_prob)


def test_a_server_opens_all_its_models_so(toy: Toy, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("transduce.server.running.serve", lambda app, *rest: served.append(app))
    shutil.copytree(toy.model, tmp_path / "second", ignore=shutil.ignore_patterns("checkpoints"))
    ran = run("serve", f"en-de={toy.model}", f"en-zh={tmp_path / 'second'}", *BF16, "--graphs", "compiled")
    assert ran.code == 0, ran.err
    assert ran.err.count("graphs: a CPU has none; decoding without\n") == 2
    state = served[0].state.transduce
    for one in state.models.served:
        engine = one.translator.engine
        assert isinstance(engine, TorchEngine)
        assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.bfloat16}
        assert state.batchers[one.name].translator.engine is engine
    state.close()


def test_a_corpus_of_rounded_weights_resumes_with_no_others(
    toy: Toy, rounded: transduce.Translator, tmp_path: Path, run: Run
) -> None:
    words = (*words_of("distill", toy, tmp_path), "--beam", "1")
    assert run(*words, *BF16).code == 0
    made = Corpus.open(tmp_path / "distilled")
    assert made.manifest["distillation"]["precision"] == "bf16"
    sources = [made.split("train").pair(index) for index in range(0, 400, 40)]
    for source, target in sources:
        ((found, *_),) = rounded.find([source.tolist()], rounded.choose_search(1))
        assert not found.finished or not found.tokens or list(found.tokens) == target.tolist()
    assert "nothing to do: it is complete" in run(*words, *BF16).err
    assert "already exists and is complete; choose another output, or remove it first" in refused(run(*words))
    work = tmp_path / ".distilled.distilling"
    work.mkdir()
    shutil.rmtree(made.folder)
    facts = {**made.manifest["distillation"], "chunk_tokens": 300}
    del facts["kept"]
    (work / "settings.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="was begun with precision = 'bf16', and now 'fp32' is requested"):
        transduce.distill(toy.model, made.folder, beam=1, workers=1)
