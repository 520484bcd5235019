"""Distilled corpora: the model's own translations as training targets, whatever stops the work on the way."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import toys
from cli_runner import Run, refused
from hypothesis import given
from hypothesis import strategies as st

import transduce
from transduce.core.errors import ConfigError, DataError, RunError, UserError
from transduce.data.batching import Batches
from transduce.data.corpus import Corpus
from transduce.data.formats.parallel import ParallelText
from transduce.data.prepare.run import Prepare, prepare
from transduce.metrics.corpus import chrf_metric
from transduce.search import Hypothesis
from transduce.search.settings import Beam, Greedy, MinimumBayesRisk, Sample
from transduce.text.train_tokenizer import GivenTokenizer, SentencePiece
from transduce.training.weights import load_weights, save_weights
from transduce.workflows import distill
from transduce.workflows.distill import GPU_CHUNK, Chunks, Distilled

if TYPE_CHECKING:
    from toy_model import Toy

ROOT = Path(__file__).parents[2]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def targets(corpus: Corpus, start: int = 0, stop: int | None = None) -> list[list[int]]:
    split = corpus.split("train")
    return [split.pair(index)[1].tolist() for index in range(start, len(split) if stop is None else stop)]


@pytest.fixture(scope="module")
def distilled(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The toy's own corpus, distilled in one go."""
    made = transduce.distill(toy.model, tmp_path_factory.mktemp("whole") / "out", beam=5, chunk_tokens=300, workers=1)
    assert made.reason == "finished"
    return Corpus.open(made.folder)


# ---- what is written -------------------------------------------------------------------------------------------------


def test_targets_are_what_the_model_makes_of_the_text(toy: Toy, distilled: Corpus) -> None:
    """From the text of the corpus through the translator: the same pieces as from the tokens."""
    original = Corpus.open(toy.corpus)
    pieces, kept = distilled.tokenizers.target.pieces, 0
    for span in original.split("train").spans:
        lines = (toy.text / "train.en").read_text().split("\n")[:-1]
        assert span.stop - span.start == len(lines)
        found = toy.translator.translate(lines, beam=5, to=span.tag.strip("<2>"), protect=False)
        for index, translation in enumerate(found, span.start):
            usable = translation.finished and translation.tokens
            expected = translation.tokens if usable else pieces(original.split("train").pair(index)[1].tolist())
            assert tuple(pieces(distilled.split("train").pair(index)[1].tolist())) == tuple(expected)
            kept += not usable
    assert distilled.manifest["distillation"]["kept"] == kept
    assert targets(distilled) != targets(original)


def test_all_else_is_as_it_was(toy: Toy, distilled: Corpus) -> None:
    before, after = content(toy.corpus), content(distilled.folder)
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"manifest.json", "report.txt", "train.target.tokens", "train.target.offsets"}
    distilled.verify()
    old, new = Corpus.open(toy.corpus).split("train").spans, distilled.split("train").spans
    assert [replace(span, name=f"{span.name} distilled") for span in old] == new
    facts = distilled.manifest["distillation"]
    assert facts["corpus"] == Corpus.open(toy.corpus).digest
    assert (facts["search.kind"], facts["search.size"], facts["best_of"]) == ("beam", 5, 1)
    report = after["report.txt"].decode()
    assert report.startswith(before["report.txt"].decode())
    assert f"distilled: {len(distilled.split('train'))} targets of train are translations of a model, but" in report
    assert distilled.manifest["splits"]["train"]["target_tokens"] == sum(map(len, targets(distilled)))
    assert not list(distilled.folder.parent.glob(".*"))


def test_a_model_trains_on_it(distilled: Corpus, tmp_path: Path) -> None:
    assert toys.run(distilled.folder, tmp_path / "run", "training.steps=2").step == 2


def test_originals_may_be_kept_after_the_new_ones(toy: Toy, distilled: Corpus, tmp_path: Path) -> None:
    made = transduce.distill(toy.model, tmp_path / "both", beam=5, keep_original=True, workers=1)
    both, original, count = Corpus.open(made.folder), Corpus.open(toy.corpus), len(distilled.split("train"))
    assert (made.pairs, len(both.split("train"))) == (count, 2 * count)
    assert targets(both, 0, count) == targets(distilled)
    assert targets(both, count) == targets(original)
    for index in range(count):
        source = original.split("train").pair(index)[0]
        assert np.array_equal(both.split("train").pair(index)[0], source)
        assert np.array_equal(both.split("train").pair(index + count)[0], source)
    spans = both.split("train").spans
    assert [span.name for span in spans] == ["en-de distilled", "en-zh distilled", "en-de", "en-zh"]
    assert [span.stop for span in spans] == [
        span.stop + offset for offset in (0, count) for span in original_spans(toy)
    ]
    both.verify()


def original_spans(toy: Toy) -> list[transduce.data.corpus.Span]:  # type: ignore[name-defined]
    return Corpus.open(toy.corpus).split("train").spans


def test_links_go_from_new_targets_and_stay_with_the_old(toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "a.align").write_text("0-0\n" * 200)
    folder = toy.model / "tokenizer"
    text = ParallelText(
        str(toy.text / "train.en"), str(toy.text / "train.de"), alignment=str(tmp_path / "a.align"), tag="<2de>"
    )
    given = GivenTokenizer(shared=str(folder / "shared.model"))
    aligned = prepare(Prepare(str(tmp_path / "aligned"), (text,), tokenizer=given, workers=1))
    plain = transduce.distill(toy.model, tmp_path / "plain", aligned.folder, beam=1, workers=1)
    assert not Corpus.open(plain.folder).split("train").aligned
    both = transduce.distill(toy.model, tmp_path / "both", aligned.folder, beam=1, keep_original=True, workers=1)
    split = Corpus.open(both.folder).split("train")
    assert split.aligned
    assert [len(split.links(index)) for index in range(len(split))] == [0] * 200 + [1] * 200
    batches = Batches(split, aligned.tokenizers, 512, 8, 1)
    assert batches.make(batches.plan(0), 0, 0).alignment is not None
    assert Corpus.open(both.folder).manifest["splits"]["train"]["aligned"] == 200


def test_the_best_of_several_is_the_nearest_to_the_target(toy: Toy, distilled: Corpus, tmp_path: Path) -> None:
    made = transduce.distill(toy.model, tmp_path / "out", beam=5, best_of=5, workers=1)
    corpus, original, decode = Corpus.open(made.folder), Corpus.open(toy.corpus), distilled.tokenizers.target.decode
    metric, better = chrf_metric(), 0
    for new, first, old in zip(targets(corpus), targets(distilled), targets(original), strict=True):
        ours, best = (metric.sentence_score(decode(tokens), [decode(old)]).score for tokens in (new, first))
        assert ours >= best
        better += ours > best
    assert better > 0


def test_several_teachers_teach_what_they_translate_together(toy: Toy, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(toy.model, other)
    weights, metadata = load_weights(other / "model.safetensors")
    noise = torch.Generator().manual_seed(1)
    noisy = {name: t + 0.05 * t.std() * torch.randn(t.shape, generator=noise) for name, t in weights.items()}
    save_weights(other / "model.safetensors", noisy, metadata)
    made = transduce.distill(toy.model, tmp_path / "out", ensemble=[other], beam=2, workers=1)
    corpus, split = Corpus.open(made.folder), Corpus.open(toy.corpus).split("train")
    together = transduce.load([toy.model, other], "cpu", engine="torch")
    sources = [split.pair(index)[0].tolist() for index in range(20)]
    found = [best for best, *_ in together.find(sources, together.choose_search(2, 1))]
    whole = [(best, target) for best, target in zip(found, targets(corpus, 0, 20), strict=True) if best.finished]
    assert len(whole) > 10
    assert all(list(best.tokens) == target for best, target in whole)
    assert len(set(corpus.manifest["distillation"]["models"])) == 2
    alone = transduce.distill(toy.model, tmp_path / "alone", beam=2, workers=1)
    assert targets(Corpus.open(alone.folder)) != targets(corpus)


def test_empty_and_cut_translations_are_not_taught(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(sources: list[list[int]], search: object) -> list[list[Hypothesis]]:
        kinds = [((), True), ((9, 9), False), ((9, 8), True)]
        return [
            [Hypothesis(*kinds[len(source) % 3][:1], 0.0, 0.0, kinds[len(source) % 3][1], ())] for source in sources
        ]

    monkeypatch.setattr(
        "transduce.translate.translator.Translator.find", lambda self, sources, search: find(sources, search)
    )
    made = transduce.distill(toy.model, tmp_path / "out", workers=1)
    original, new = Corpus.open(toy.corpus), Corpus.open(made.folder)
    lengths = original.split("train").source_lengths
    for length, old, now in zip(lengths.tolist(), targets(original), targets(new), strict=True):
        assert now == ([9, 8] if length % 3 == 2 else old)
    assert made.kept == sum(length % 3 != 2 for length in lengths.tolist())


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(1, 100))
def test_chunks_hold_each_pair_once_and_pairs_of_like_length(lengths: list[int], tokens: int) -> None:
    made = Chunks.of(SimpleNamespace(source_lengths=np.array(lengths, np.int32)), tokens)  # type: ignore[arg-type]
    parts = [made.pairs(number).tolist() for number in range(len(made))]
    assert sorted(pair for part in parts for pair in part) == list(range(len(lengths)))
    assert [lengths[pair] for part in parts for pair in part] == sorted(lengths)
    for part in parts:
        assert sum(lengths[pair] + 1 for pair in part[1:]) < tokens
    assert all(parts) or not lengths


# ---- stopped and going on --------------------------------------------------------------------------------------------


def start(
    toy: Toy, output: Path, *, workers: int = 1, seconds: float = 0.0, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """A process that distills in small chunks, slowed down so that it can be met at work."""
    code = (
        "import sys, time, transduce\nfrom functools import partial\n"
        "from transduce.workflows import distill as workflow\n"
        "translate_chunk = workflow.translate_chunk\n"
        "def slow(work, task):\n"
        f"    time.sleep({seconds})\n"
        "    return translate_chunk(work, task)\n"
        "workflow.translate_chunk = slow\n"
        "if __name__ == '__main__':\n"
        f"    places = ({str(toy.model)!r}, {str(output)!r})\n"
        f"    made = transduce.distill(*places, beam=5, chunk_tokens=300, workers={workers})\n"
        "    print(made.reason)\n"
    )
    script = output.with_name("work.py")
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, str(script)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def chunks(output: Path) -> list[Path]:
    return sorted(output.with_name(f".{output.name}.distilling").glob("[0-9]*[0-9]"))


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(
    toy: Toy, distilled: Corpus, tmp_path: Path, warm: str
) -> None:
    """SIGKILL again and again; each time at least one more chunk is done, and none is done twice."""
    output, chooser, kills = tmp_path / "out", random.Random(7), 0
    known: dict[Path, int] = {}
    while not output.exists():
        process = start(toy, output, seconds=0.15, python=warm)
        goal = len(known) + chooser.randint(3, 5)
        wait_until = lambda goal=goal: len(chunks(output)) >= goal or output.exists()  # noqa: E731
        try:
            wait_for(wait_until, process)
        except AssertionError:
            assert process.wait() == 0  # it had so little left that it finished
        time.sleep(chooser.random() * 0.15)
        process.kill()
        kills += process.wait() != 0
        now = {path: path.stat().st_mtime_ns for path in chunks(output)}
        assert all(now.get(path) == written for path, written in known.items()) or output.exists()
        known = now
    assert kills >= 2
    transduce.distill(toy.model, output, beam=5, chunk_tokens=300)  # whatever the last kill left to tidy up
    assert content(output) == content(distilled.folder)
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.slow
def test_interrupted_it_keeps_what_is_done_and_resumes_with_other_workers(
    toy: Toy, distilled: Corpus, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(toy, output, workers=2, seconds=0.3)
    wait_for(lambda: len(chunks(output)) >= 1, process)
    os.killpg(process.pid, signal.SIGTERM)  # as a scheduler does: the workers die of it
    assert process.communicate(timeout=60)[0].decode().strip() == "SIGTERM"
    assert not output.exists()
    assert len(chunks(output)) >= 1
    made = transduce.distill(toy.model, output, beam=5, workers=1)  # the chunks keep their size
    kept = distilled.manifest["distillation"]["kept"]
    assert made == Distilled(output, len(distilled.split("train")), kept, "finished")
    assert content(output) == content(distilled.folder)


def test_a_signal_lets_the_chunk_under_way_end(
    toy: Toy, distilled: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    translate_chunk = distill.translate_chunk

    def interrupted(work: distill.Work, task: tuple[int, object]) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return translate_chunk(work, task)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("transduce.workflows.distill.translate_chunk", interrupted)
        made = transduce.distill(toy.model, tmp_path / "out", beam=5, workers=1, chunk_tokens=300)
    assert made.reason == "SIGINT"
    assert len(chunks(tmp_path / "out")) == 1
    error = capfd.readouterr().err
    assert "SIGINT: ending with the sentences under way; once more aborts" in error
    assert "SIGINT: what is translated is kept; the same command resumes from there" in error
    transduce.distill(toy.model, tmp_path / "out", beam=5, workers=1, chunk_tokens=300)
    assert (
        f"resuming: {made.pairs:,} of {len(distilled.split('train')):,} pairs are translated" in capfd.readouterr().err
    )
    assert content(tmp_path / "out") == content(distilled.folder)


def test_the_command_exits_with_the_code_of_its_signal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Distilled(Path("x"), 1, 0, "SIGTERM")
    monkeypatch.setattr("transduce.workflows.distill.distill", lambda *arguments, **options: stopped)
    ran = run("distill", "model", "-o", "x")
    assert (ran.code, ran.out) == (143, b"")


def test_what_is_complete_is_left_alone(toy: Toy, distilled: Corpus, capfd: pytest.CaptureFixture[str]) -> None:
    before = (distilled.folder / "manifest.json").stat().st_mtime_ns
    distilled.folder.with_name(".out.distilling").mkdir()
    made = transduce.distill(toy.model, distilled.folder, beam=5)
    assert (made.reason, made.pairs) == ("finished", len(distilled.split("train")))
    assert (distilled.folder / "manifest.json").stat().st_mtime_ns == before
    assert "nothing to do: it is complete" in capfd.readouterr().err
    assert not distilled.folder.with_name(".out.distilling").exists()


def test_a_gpu_is_shared_by_as_many_processes_as_are_requested_and_kept_busy(toy: Toy) -> None:
    cpu, gpu = (distill.Teacher(("run",), ("",), device, False) for device in ("cpu", "cuda:0"))
    assert [cpu.processes(count) for count in (0, 1, 3)] == [0, 1, 3]  # 0: one on each core
    assert [gpu.processes(count) for count in (0, 1, 3)] == [1, 1, 3]
    translator = distill.in_large_batches(transduce.load(toy.model, "cpu"))
    assert (translator.batch_tokens, translator.search_tokens) == (distill.GPU_BATCH, 0)  # no static caches: as ever
    translator.search_tokens = 1000
    assert distill.in_large_batches(translator).search_tokens == distill.GPU_ROOM > 2 * GPU_CHUNK


def test_torch_keeps_its_threads(toy: Toy, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        transduce.distill(toy.model, tmp_path / "out", beam=1, workers=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command(toy: Toy, distilled: Corpus, run: Run, tmp_path: Path) -> None:
    beam = ("--corpus", toy.corpus, "--beam", "5")
    ran = run("distill", toy.model, "--output", tmp_path / "out", *beam, "--workers", "1")
    facts, count = distilled.manifest["distillation"], len(distilled.split("train"))
    assert ran.lines == [
        f"{tmp_path}/out: {count:,} training pairs distilled, {facts['kept']:,} of them with their original target"
    ]
    assert targets(Corpus.open(tmp_path / "out")) == targets(distilled)
    own = run("distill", toy.model, "-o", tmp_path / "own", "--beam", "0", "--workers", "1")
    assert own.code == 0
    assert Corpus.open(tmp_path / "own").manifest["distillation"]["search.kind"] == "greedy"
    assert run("distill", toy.model, "-o", tmp_path / "unsaid", "--workers", "1").code == 0
    assert content(tmp_path / "unsaid") == content(tmp_path / "own")


def test_without_a_beam_the_teacher_searches_as_it_does(toy: Toy) -> None:
    """But for one that searches with a beam, which gets one of five, with its other settings."""
    translator = copy.copy(toy.translator)
    for own, expected in (
        (Greedy(), Greedy()),
        (Sample(top_p=0.9), Sample(top_p=0.9)),
        (MinimumBayesRisk(), MinimumBayesRisk()),
        (Beam(8, length_penalty=1.0), Beam(5, length_penalty=1.0)),
    ):
        translator.search = own
        assert distill.search_of(translator, None, 1, "teacher") == expected
        assert distill.search_of(translator, 0, 1, "teacher") == own
        assert isinstance(distill.search_of(translator, 3, 1, "teacher"), Beam)


def test_a_teacher_that_writes_all_at_once(tmp_path: Path, run: Run) -> None:
    corpus = toys.corpus(tmp_path / "copies", toys.copies(12), toys.copies(2, seed=9))
    search = "search={kind='mask_predict',iterations=2,length_candidates=2}"
    settings = ("model.decoder.kind=parallel", "objective=masked_prediction", search, f"validation.{search}")
    toys.run(corpus, tmp_path / "teacher", *settings, "training.steps=2", "validation.every=2")
    ran = run("distill", tmp_path / "teacher", "-o", tmp_path / "out", "--workers", "1", "--device", "cpu")
    assert ran.code == 0, ran.err
    facts = Corpus.open(tmp_path / "out").manifest["distillation"]
    assert (facts["search.kind"], facts["search.iterations"], facts["search.length_candidates"]) == (
        "mask_predict",
        2,
        2,
    )
    assert refused(run("distill", tmp_path / "teacher", "-o", tmp_path / "no", "--beam", "4", "--device", "cpu")) == (
        f"beam: 4 asks for a beam search, which needs a model that writes token by token, and {tmp_path}/teacher is"
        " non-autoregressive; leave it out, or say 0, for the model's own search, 'mask_predict'"
    )


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(kind: type[UserError], *arguments: object, **options: object) -> str:
    with pytest.raises(kind) as error:
        transduce.distill(*arguments, **{"workers": 1, **options})  # type: ignore[arg-type]
    return str(error.value)


def test_places_that_are_not_what_they_should_be(toy: Toy, tmp_path: Path, run: Run) -> None:
    assert "not a trained model (no such folder)" in refusal(RunError, tmp_path / "gone", tmp_path / "out")
    assert "gone: not a prepared corpus (no such folder)" in refusal(
        DataError, toy.model, tmp_path / "out", tmp_path / "gone"
    )
    assert "already exists and is complete; choose another output" in refusal(DataError, toy.model, toy.corpus)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "a folder with other files in it" in refused(run("distill", toy.model, "-o", tmp_path / "mine"))
    assert "a file; expected the name of a folder" in refusal(DataError, toy.model, tmp_path / "mine" / "thesis.tex")
    assert "making a folder for the work failed" in refusal(RunError, toy.model, "/proc/out")
    assert (
        refusal(ConfigError, toy.model, tmp_path / "out", best_of=0)
        == "best_of=0, workers=1, chunk_tokens=0: expected at least 1, 0 and 0"
    )
    assert "beam: expected a size of at least 1" in refusal(ConfigError, toy.model, tmp_path / "out", beam=-1)
    assert (
        refusal(ConfigError, toy.model, tmp_path / "out", beam=2, best_of=3)
        == "best_of: expected at most the beam's size (2), got 3; give a larger beam"
    )


def test_a_model_without_its_corpus_or_weights(toy: Toy, tmp_path: Path) -> None:
    shutil.copytree(toy.model, tmp_path / "model")
    config = tmp_path / "model" / "config.toml"
    config.write_text(config.read_text().replace(str(toy.corpus), "data/moved"))
    assert refusal(DataError, tmp_path / "model", tmp_path / "out") == (
        f"{tmp_path}/model: was trained on the corpus data/moved, which is not there (seen from {Path.cwd()}); "
        "say where a prepared corpus lies with --corpus FOLDER"
    )
    (tmp_path / "model" / "model.safetensors").unlink()
    assert "has no model.safetensors yet" in refusal(RunError, tmp_path / "model", tmp_path / "out", toy.corpus)


def test_a_corpus_with_another_tokenizer(toy: Toy, tmp_path: Path) -> None:
    text = ParallelText(str(toy.text / "train.en"), str(toy.text / "train.de"))
    other = prepare(Prepare(str(tmp_path / "other"), (text,), tokenizer=SentencePiece(vocabulary=320), workers=1))
    assert refusal(DataError, toy.model, tmp_path / "out", other.folder) == (
        f"{tmp_path}/other: has another tokenizer than the model {toy.model}, so its tokens mean nothing to it; "
        f"prepare the text with the model's: tokenizer.kind=given_tokenizer and the files in {toy.model}/tokenizer"
    )


def test_resuming_with_other_settings_or_damaged_work(
    toy: Toy, distilled: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, ready = tmp_path / "out", []
    translate_chunk = distill.translate_chunk

    def third(work: distill.Work, task: tuple[int, object]) -> int:
        if len(ready) == 3:
            raise RunError("enough")
        ready.append(work.path(task[0]))
        return translate_chunk(work, task)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("transduce.workflows.distill.translate_chunk", third)
        assert refusal(RunError, toy.model, output, beam=5, chunk_tokens=300) == "enough"
    assert chunks(output) == sorted(ready)
    begun = f"{tmp_path}/.out.distilling: was begun with"
    told = "is requested; give the same settings to resume, or delete that folder to begin anew"
    assert refusal(RunError, toy.model, output, beam=4) == f"{begun} search.size = 5, and now 4 {told}"
    assert f"{begun} best_of = 1, and now 2" in refusal(RunError, toy.model, output, beam=5, best_of=2)
    assert f"{begun} chunk_tokens = 300, and now 10" in refusal(RunError, toy.model, output, beam=5, chunk_tokens=10)
    broken = bytearray(ready[1].read_bytes())
    broken[-1] ^= 1
    ready[1].write_bytes(broken)
    assert refusal(RunError, toy.model, output, beam=5) == (
        f"{ready[1]}: is damaged; delete this file and run the same command again, which makes it anew"
    )
    assert not output.exists()
    ready[1].unlink()
    transduce.distill(toy.model, output, beam=5, workers=1)
    assert content(output) == content(distilled.folder)


def test_two_at_once_and_a_model_that_changes(toy: Toy, tmp_path: Path) -> None:
    from transduce.core.durable import lock_folder

    lock = lock_folder(tmp_path / ".out.distilling")
    assert "another process is using this folder" in refusal(RunError, toy.model, tmp_path / "out")
    os.close(lock)
    with pytest.raises(RunError, match="its weights have changed since the work began; distill with a model that"):
        distill.Teacher((str(toy.model),), ("of another time",), "cpu", trust=False).load()
