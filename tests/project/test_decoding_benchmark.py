"""benchmarks/decoding.py, quality.py and callers.py at a toy's size: what they measure, and that they see a fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import callers
import decoding
import gpu_book
import gpu_peer
import gpu_trained
import quality
from toy_model import Toy
from workload import BOS, EOS, PAD, UNK

import transduce
from transduce.data.batch import pad_sources
from transduce.engines.native.library import built
from transduce.engines.native.lowering import lower
from transduce.engines.native.weight_file import write
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search.settings import Greedy, Limits
from transduce.text.vocabulary import Symbols

pytestmark = pytest.mark.skipif(built() is None, reason="the core is not built: make native")


def small_model() -> tuple[Model, Seq2Seq]:
    torch.manual_seed(1)
    stack = {"layers": 1, "attention": Attention(2), "d_ff": 16}
    config = Model(16, 0.0, encoder=TransformerEncoder(**stack), decoder=TransformerDecoder(**stack))  # type: ignore[arg-type]
    return config, config.build(30, 30, shared=True).eval()


@pytest.mark.parametrize("setting", [decoding.Setting(1, 1), decoding.Setting(4, 2), decoding.Setting(1, 0)])
@pytest.mark.parametrize("forced", [0, 7])
def test_a_child_measures_what_it_writes(tmp_path: Path, setting: decoding.Setting, forced: int) -> None:
    write(tmp_path / "model", lower(*small_model(), quantize=True))
    (tmp_path / "sources").write_text(json.dumps([[5, 6, 7], [8], [9, 10]]))
    job = decoding.Job("native", str(tmp_path / "model"), str(tmp_path / "sources"), setting, (1, 1), forced, 2)
    outcome = decoding.child(job)
    assert len(outcome.written) == 3
    assert not forced or {len(tokens) for tokens in outcome.written} == {forced}
    assert min(outcome.wall, outcome.processor, outcome.p50, outcome.p95, outcome.start, outcome.megabytes) > 0
    assert outcome.p50 <= outcome.p95
    assert setting.name in ("greedy, batch 1", "beam 4, batch 2", "greedy, file")


def test_sources_and_references_stay_together(toy: Toy, tmp_path: Path) -> None:
    lines = {language: (toy.text / f"valid.{language}").read_text().split("\n")[:9] for language in ("en", "de")}
    for language, own in lines.items():
        (tmp_path / language).write_text("".join(f"{line}\n" for line in [own[0], "", *own[1:]]))
    contest = decoding.trained(toy.model, tmp_path / "en", tmp_path / "de", tmp_path, [])
    assert contest.megabytes("native") == (tmp_path / "run.native").stat().st_size / 1e6
    assert contest.references == tuple(lines["de"])  # an empty line is left out on both sides
    (tmp_path / "short").write_text("eins\n")
    with pytest.raises(SystemExit, match="has 1 lines, and"):
        decoding.trained(toy.model, tmp_path / "en", tmp_path / "short", tmp_path, [])


def test_options_that_belong_together_are_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in (
        (["--run", "runs/mine"], "--run and --input go together"),
        (["--input", "text"], "--run and --input go together"),
        (["--references", "text"], "--references are for a trained model"),
    ):
        monkeypatch.setattr(sys, "argv", ["decoding.py", *words])
        with pytest.raises(SystemExit):
            decoding.main()
        assert told in capsys.readouterr().err


@pytest.mark.slow  # it imports transformers
def test_hugging_face_writes_what_torch_writes(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a peer of the benchmark: pip install transduce[test]")
    config, model = small_model()
    models = decoding.write_models(config, model, tmp_path / "model", ["huggingface"])
    sources = [[5, 6, 7], [8], [9, 10]]
    (tmp_path / "sources").write_text(json.dumps(sources))
    setting, folder = decoding.Setting(1, 2), str(models["huggingface"])
    job = decoding.Job("huggingface", folder, str(tmp_path / "sources"), setting, (1, 1), 7, 1)
    symbols = Symbols(PAD, BOS, EOS, UNK, (PAD, UNK, BOS))
    limits = Limits(longest=7, longest_extra=7, shortest=6, forbid=(EOS,))
    with torch.no_grad():
        found = Greedy(limits).build()(model, model.encode(*pad_sources(sorted(sources, key=len), symbols)), symbols)
    assert decoding.child(job).written == [list(best.tokens) for (best, *_) in found]
    anything = Symbols(PAD, BOS, EOS, UNK)  # on GPUs peers that must write so many tokens are spared the rest
    with torch.no_grad():
        found = Greedy(limits).build()(model, model.encode(*pad_sources(sources, symbols)), anything)
    assert gpu_peer.Peer(models["huggingface"]).write(sources, 1, 7) == [list(best.tokens) for (best, *_) in found]


def test_a_trained_model_is_timed_with_its_bleu(tmp_path: Path) -> None:
    texts = [f"{word} stands here among other words" for word in ("one", "two", "three")]
    lines = gpu_trained.Lines([[4], [5, 6], [7, 8, 9]], texts, lambda tokens: texts[tokens[0]])
    book, calls = gpu_book.Book(tmp_path, 60), []

    def write(sources: list[list[int]], search: str) -> list[list[int]]:
        calls.append(len(sources))
        return [[len(source) - 1] for source in sources]

    gpu_trained.measure(book, "graphs", write, lines, (1, 2), torch.device("cpu"), 0.5)
    assert [(row["search"], row["batch"], row["bleu"]) for row in book.rows] == [
        ("Greedy", 1, None), ("Greedy", 2, 100.0), ("Beam", 1, None), ("Beam", 2, 100.0)
    ]  # fmt: skip
    assert set(calls) == {1, 2}
    assert (tmp_path / "graphs.Beam.txt").read_text().split("\n")[:-1] == texts
    peer = [{**row, "who": gpu_book.PEER, "tokens_per_s": 10} for row in book.rows]
    book.rows = [{**row, "tokens_per_s": 30, "memory_mb": 70} for row in book.rows] + peer
    table = gpu_book.tables(book)
    assert "| graphs | 30 (3.0x) | 30 (3.0x) | 30 (3.0x) | 30 (3.0x) |" in table
    assert "| 70 | 0.5 | 100.0 | 100.0 |" in table


def test_times_are_reported_by_median_and_tail() -> None:
    found = gpu_book.timing_of([number / 100 for number in range(1, 101)])
    assert (found.p50, found.p95, found.least) == (0.505, 0.96, 0.01)
    assert found.row(1010)["tokens_per_s"] == 2000
    assert found.row(1)["p95_ms"] == 960


def test_int8_is_compared_and_sentences_are_the_same_in_any_batch(toy: Toy, tmp_path: Path) -> None:
    native = transduce.convert(toy.model, tmp_path / "int8")
    sources, references = ((toy.text / f"valid.{language}").read_text().split("\n")[:-1] for language in ("en", "de"))
    found = quality.compare(toy.model, native, sources, references)
    assert 0 <= found.same <= 1
    assert quality.Compared(30.0, 29.81, 1.0).within
    assert not quality.Compared(30.0, 29.79, 1.0).within
    assert quality.invariance(native, sources, beam=2) == quality.Invariance(
        len(sources), {"by 32": 0, "by 7, shuffled": 0, "by 1,000": 0}
    )


def test_callers_are_raced_and_wrong_answers_seen() -> None:
    batches = [[[number]] for number in range(6)]
    raced = callers.race(lambda batch: [[*batch[0], 1]], batches, callers=3, rounds=2)
    assert raced.right
    assert raced.ratio > 0
    assert len(raced.one) == len(raced.several) == 2
    count = iter(range(100))
    assert not callers.race(lambda batch: [[next(count)]], batches, callers=3, rounds=1).right
