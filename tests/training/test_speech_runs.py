"""Speech and pictures end to end: trained, resumed bit-identically, transcribed, scored, aligned, measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import toys
from cli_runner import Run
from snapshots import same
from toy_media import RATE, draw, sentence, write_speech
from toy_model import Toy

import transduce
from transduce.core.errors import ConfigError, DataError, RunError, UserError
from transduce.data.formats.parallel import ParallelText
from transduce.data.images import Images
from transduce.data.prepare.run import Prepare, prepare
from transduce.data.readers import PreparedFrames
from transduce.data.speech import Speech
from transduce.inspection.inspect import inspect
from transduce.search.settings import Joint
from transduce.server.models import open_models
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.loop import train

soundfile = pytest.importorskip("soundfile", reason="recordings are read by it: pip install transduce[senses]")
pytest.importorskip("jiwer", reason="error rates are measured by it: pip install transduce[senses]")
WORDS = SentencePiece("bpe", vocabulary=40, byte_fallback=False)
SOUND = (
    "model.source.kind=frames model.source.features=20 model.source.channels=8"
    " model.encoder.residual=pre_norm model.decoder.residual=pre_norm model.d_model=32 model.dropout=0.0"
    " data.tokens=1200 data.bucket=16 validation.every=1000 training.save_every=1000"
    " training.learning_rate.kind=cosine training.learning_rate.peak=5e-3 training.learning_rate.warmup=10"
    " training.clip=1 training.threads=1"
).split()
CTC = ('model.heads=[{kind="ctc",upsample=1}]', 'objective.terms=[{kind="ctc"},{kind="guided_attention",until=20}]')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of tones, their corpus, and a model that has learned them."""
    folder = tmp_path_factory.mktemp("tones")
    for seed, (name, count) in enumerate((("train", 240), ("valid", 8), ("test", 24))):
        write_speech(folder, name, count, seed, most=2)
    texts = {name: (ParallelText(path=str(folder / f"{name}.tsv")),) for name in ("train", "valid", "test")}
    prepare(Prepare(str(folder / "corpus"), **texts, sources=Speech(RATE, 20), tokenizer=WORDS, workers=1))
    config = toys.config(folder / "corpus", *SOUND, *CTC, "training.steps=200")
    train(config, folder / "run")
    return folder


def manifest(folder: Path, name: str = "test") -> tuple[list[str], list[str]]:
    pairs = [line.split("\t") for line in (folder / f"{name}.tsv").read_text().split("\n")[:-1]]
    return [str(folder / path) for path, _ in pairs], [text for _, text in pairs]


@pytest.mark.slow
def test_tones_are_learned_and_written_down(made: Path, run: Run) -> None:
    listener = transduce.load(made / "run", "cpu")
    paths, texts = manifest(made)
    heard = listener(paths)
    right = sum(one == other for one, other in zip(heard, texts, strict=True))
    assert right >= 22, list(zip(heard, texts, strict=True))
    assert [one.text for one in listener.translate(paths[:5], beam=3)] == texts[:5]
    ran = run("transcribe", str(made / "run"), "--input", str(made / "test.tsv"), "--device", "cpu")
    assert ran.out.decode().split("\n")[:-1] == heard
    ran = run("transcribe", str(made / "run"), *paths[:2], "--json", "--beam", "2", "--n-best", "2", "--device", "cpu")
    assert [json.loads(line)["text"] for line in ran.out.decode().split("\n")[:-1]] == heard[:2]
    rounded = ("--precision", "bf16", "--engine", "torch", "--graphs", "off")
    ran = run("transcribe", str(made / "run"), *paths[:5], *rounded, "--device", "cpu")
    assert ran.lines == transduce.load(made / "run", "cpu", precision="bf16")(paths[:5])
    ran = run("evaluate", str(made / "test.tsv"), str(made / "run"), "--json", "--device", "cpu")
    values = {one["name"]: one["value"] for one in json.loads(ran.out)["qualities"]}
    assert values["SER"] == pytest.approx(100 * (24 - right) / 24)
    assert values["WER"] <= values["SER"]


@pytest.mark.slow
def test_arrays_are_heard_like_files_in_any_company(made: Path) -> None:
    listener = transduce.load(made / "run", "cpu")
    samples = sentence(["low", "high"], seed=77)
    frames = listener.reading.reader.read(samples)  # type: ignore[union-attr]
    assert listener([samples])[0] == listener([PreparedFrames(frames)])[0] == "low high"  # type: ignore[list-item]
    several = [sentence(words, seed) for seed, words in enumerate((["mid"], ["low", "high"], ["high"]))]
    assert listener(several) == [listener([one])[0] for one in several]  # type: ignore[arg-type,list-item]
    assert listener(["", " "]) == ["", ""]
    (path, *_), _ = manifest(made)
    assert listener(Path(path)) == listener(path)  # type: ignore[call-overload]


@pytest.mark.slow
def test_long_recordings_are_heard_in_parts(made: Path) -> None:
    listener = transduce.load(made / "run", "cpu")
    words = ["low", "high", "mid", "both", "mid", "low"]
    (heard,) = listener.translate([sentence(words, seed=5)])  # type: ignore[list-item]
    assert heard.parts > 1
    found = heard.text.split()
    assert sum(one == other for one, other in zip(found, words, strict=False)) >= 4


@pytest.mark.slow
def test_what_is_heard_is_found_in_time(made: Path) -> None:
    listener = transduce.load(made / "run", "cpu")
    (path, *_), (text, *_) = manifest(made)
    (aligned,) = listener.align([path], [text])
    frames = listener.reading.reader.read(path)  # type: ignore[union-attr]
    assert len(aligned.source) == -(-len(frames) // 4)
    assert aligned.source[1] == "0.04,0.08"
    assert aligned.target == tuple(text.split())
    np.testing.assert_allclose([sum(row) for row in aligned.weights], 1, atol=1e-3)
    (translated,) = listener.translate([path], align="words")
    assert translated.alignment is not None
    assert translated.alignment.source == aligned.source
    right, wrong = listener.score([path, path], [text, "both both both"])
    assert right.log_prob > wrong.log_prob
    with pytest.raises(DataError, match=r"to: 'de': this model reads speech, which take no tag"):
        listener([path], to="de")


@pytest.mark.slow
def test_an_inspection_shows_the_spectrogram_and_where_it_is_looked_at(made: Path, tmp_path: Path, run: Run) -> None:
    listener = transduce.load(made / "run", "cpu")
    (path, *_), _ = manifest(made)
    seen = inspect(listener, path, beam=2)
    frames = listener.reading.reader.read(path)  # type: ignore[union-attr]
    assert seen.translation == listener(path)
    joint = inspect(listener, path, search=Joint(3))
    assert joint.translation == listener(path, search=Joint(3))
    assert joint.tree is not None
    assert joint.search == "joint"
    assert seen.sight is not None
    assert seen.sight.values.shape == (20, len(frames))
    assert (seen.sight.values.min(), seen.sight.values.max()) == (0, 1)
    assert len(seen.sight.boxes) == len(seen.source) == -(-len(frames) // 4)
    assert seen.sight.boxes[1] == (4.0, 0.0, 4.0, 20.0)
    assert seen.map("cross", 0).weights.shape == (2, len(seen.written), len(seen.source))
    loudest = np.asarray(frames, np.float32)[20].argmax()
    assert seen.sight.values[:, 20].argmax() == 19 - loudest, "low bands below"
    assert json.loads(json.dumps(seen.as_json()))["sight"]["width"] == len(frames)
    for name in ("page.html", "picture.png", "all.json"):
        ran = run("inspect", path, "--model", str(made / "run"), "--device", "cpu", "--output", str(tmp_path / name))
        assert ran.code == 0, ran.err
        assert (tmp_path / name).stat().st_size > 1000
    ran = run("inspect", path, "--model", str(made / "run"), "--device", "cpu")
    assert ran.code == 0, ran.err


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_identically(made: Path, tmp_path: Path) -> None:
    hidden = ("model.source.augment.kind=spec_augment", "model.source.augment.time_width=5", "model.dropout=0.1")
    short = (*SOUND, *CTC, *hidden, "training.steps=8", "training.save_every=4", "validation.every=4")
    train(toys.config(made / "corpus", *short), tmp_path / "whole")
    train(toys.config(made / "corpus", *short, "training.steps=4"), tmp_path / "parts")
    train(toys.config(made / "corpus", *short), tmp_path / "parts")
    assert same(toys.final(tmp_path / "parts"), toys.final(tmp_path / "whole"))
    assert json.loads((tmp_path / "whole" / "reader.json").read_text())["kind"] == "speech"


@pytest.mark.slow
def test_models_and_corpora_that_do_not_go_together(made: Path, tmp_path: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match=r"model.source: reads tokens, and .* holds speech"):
        train(toys.config(made / "corpus"), tmp_path / "run")
    shutil.copytree(made / "run", tmp_path / "other")
    (tmp_path / "other" / "reader.json").write_text(json.dumps(Speech(RATE, 20, normalise="bands").facts()))
    with pytest.raises(ConfigError, match=r"other: reads its sources otherwise than .* \(reader.json\)"):
        transduce.load([made / "run", tmp_path / "other"], "cpu")
    (tmp_path / "other" / "reader.json").write_text("{")
    with pytest.raises(DataError, match=r"reader.json: cannot be read .*take it from a copy of the model"):
        transduce.load(tmp_path / "other", "cpu")
    assert (
        "expected files, or a list of them with --input FILE, and not both" in run("transcribe", str(made / "run")).err
    )
    with pytest.raises(UserError, match=r"serve: .* reads speech, and only models of text are served"):
        open_models([f"en-de={made / 'run'}"], lambda folder: transduce.load(folder, "cpu"))
    with pytest.raises(DataError, match="holds speech, and only sources of text are distilled"):
        transduce.distill(made / "run", tmp_path / "distilled")
    with pytest.raises(RunError, match="source is 'frames', expected tokens"):
        transduce.export(made / "run", tmp_path / "exported", "onnx")
    (tmp_path / "bad.tsv").write_text("no tab\n")
    told = run("evaluate", str(tmp_path / "bad.tsv"), str(made / "run")).err
    assert "bad.tsv:1: expected the path of a file, a tab and its text" in told
    assert "cannot be read: no such file" in run("transcribe", str(made / "run"), "gone.wav", "--device", "cpu").err


@pytest.mark.slow
def test_all_files_that_cannot_be_read_are_named_and_may_be_skipped(made: Path, tmp_path: Path, run: Run) -> None:
    paths, _ = manifest(made)
    torn = tmp_path / "torn.wav"
    torn.write_bytes(Path(paths[0]).read_bytes()[:20])
    gone = str(tmp_path / "gone.wav")
    listed, said = tmp_path / "list.txt", tmp_path / "said.txt"
    listed.write_text("\n".join([paths[0], str(torn), paths[1], gone]) + "\n")
    words = ("transcribe", str(made / "run"), "--input", str(listed), "--output", str(said), "--device", "cpu")
    ran = run(*words)
    assert ran.code == 2
    assert f"{gone}: cannot be read: no such file" in ran.err
    assert f"{torn}: cannot be read: " in ran.err
    assert "2 of 4 files cannot be read, and nothing was transcribed; expected a recording" in ran.err
    assert "or leave them out by --skip" in ran.err
    assert not said.exists()
    ran = run(*words, "--skip")
    first, second = transduce.load(made / "run", "cpu")(paths[:2])
    assert ran.code == 0
    assert said.read_text().split("\n") == [first, "", second, "", ""]
    assert f"{gone}: cannot be read: no such file" in ran.err
    assert f"{torn}: cannot be read: " in ran.err
    assert "2 of 4 files cannot be read and were skipped: an empty line each" in ran.err
    ran = run("transcribe", str(made / "run"), gone, str(torn), "--skip", "--device", "cpu")
    assert ran.code == 2
    assert "none of the files can be read; expected a recording" in ran.err


@pytest.mark.slow
def test_a_model_of_text_transcribes_nothing(toy: Toy, run: Run) -> None:
    told = run("transcribe", str(toy.model), "a.wav").err
    assert "reads text, not recordings or pictures; use `transduce translate`" in told


@pytest.mark.slow
def test_drawn_digits_are_read(tmp_path: Path) -> None:
    from PIL import Image

    generator = np.random.default_rng(1)
    for name, count in (("train", 300), ("valid", 5), ("test", 30)):
        lines = []
        (tmp_path / name).mkdir()
        for number in range(count):
            text = str(generator.integers(0, 10))
            Image.fromarray(draw(text, int(generator.integers(1 << 30)))).save(tmp_path / name / f"{number}.png")
            lines.append(f"{name}/{number}.png\t{text}\n")
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    texts = {name: (ParallelText(path=str(tmp_path / f"{name}.tsv")),) for name in ("train", "valid")}
    characters = SentencePiece("char", vocabulary=20, byte_fallback=False)
    prepare(Prepare(str(tmp_path / "c"), **texts, sources=Images(16, patch=4), tokenizer=characters, workers=1))
    seen = (
        *(setting for setting in SOUND if "model.source" not in setting),
        *("model.source.kind=patches", "model.source.patch=4", "model.source.rows=4", "model.source.stem=8"),
        *("training.steps=200", "data.tokens=600"),
    )
    train(toys.config(tmp_path / "c", *seen), tmp_path / "run")
    paths, expected = manifest(tmp_path)
    read = transduce.load(tmp_path / "run", "cpu")(paths)
    assert sum(one == other for one, other in zip(read, expected, strict=True)) >= 26, list(
        zip(read, expected, strict=True)
    )
