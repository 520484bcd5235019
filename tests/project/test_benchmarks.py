"""The arithmetic of the benchmarks against counted examples, and each of them once at a toy's size."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import kernels
import scaling
import speedrun
import training
from own import settings_of
from training import Contender, Facts, rows_of
from worker import Job, ours, peer
from workload import BOS, EOS, PAD, SIZES, Pairs, Sizes, fullness, load_batches, save_batches

from transduce.engines.native.library import built
from transduce.translate.model_folder import is_shipped, shipped

ROOT = Path(__file__).parents[2]
TINY = SIZES["tiny"]


def job(folder: Path, pairs: Pairs, sizes: Sizes) -> Job:
    save_batches(folder / "batches.npz", [pairs.padded(range(len(pairs)))])
    settings = [*settings_of(sizes, 1000, 8), "training.graphs=false"]
    return Job(sizes, "cpu", str(folder / "batches.npz"), tuple(settings))


def flops_of_linear(rows: tuple[int, int], matrix: tuple[int, int], *rest: object, **named: object) -> int:
    """Of shapes (N, I) and (O, I)."""
    return 2 * rows[0] * rows[1] * matrix[0]


@pytest.mark.parametrize("sizes", [TINY, Sizes(d_model=48, d_ff=80, heads=3, layers=2, vocabulary=100)])
@pytest.mark.parametrize("contender", ["transduce", "torch"])
def test_the_formula_counts_what_torch_counts(tmp_path: Path, sizes: Sizes, contender: str) -> None:
    """Sentences of one length, so that there is no padding, which the formula leaves out."""
    pairs = Pairs.draw(6, sizes.vocabulary, 9, seed=1, spread=0.0)
    work = job(tmp_path, pairs, sizes)
    update, (batch,) = ours(work) if contender == "transduce" else peer(contender, work)
    # torch does not count its fused attention for CPUs, nor what it has oneDNN multiply
    counted = {torch.ops.mkldnn._linear_pointwise: flops_of_linear}
    with FlopCounterMode(display=False, custom_mapping=counted) as counter, sdpa_kernel(SDPBackend.MATH):
        update(batch, False)
    assert counter.get_total_flops() == pytest.approx(pairs.flops(sizes), rel=1e-6)


def test_the_formula_by_hand() -> None:
    """One layer, width 2, inner width 3, 5 words; one source of 2 tokens and one target of 3."""
    sizes = Sizes(d_model=2, d_ff=3, heads=1, layers=1, vocabulary=5)
    encoder = 2 * (4 * 4 + 2 * 6) + 2 * 2 * 2 * 2  # four projections and two maps a token; scores and sums
    decoder = 3 * (6 * 4 + 2 * 6) + 2 * 2 * 4 + 2 * 2 * (3 * 3 + 3 * 2)
    pairs = Pairs([np.array([4])], [np.array([4, 4])])
    assert pairs.flops(sizes) == 6 * (encoder + decoder + 3 * 2 * 5)


def test_base_needs_363_million_a_pair_of_tokens_beside_attention() -> None:
    assert SIZES["base"].flops(1, 1, 0, 0, 0) == pytest.approx(363e6, rel=0.01)


def test_pairs_are_what_was_requested_and_the_same_each_time() -> None:
    pairs, again = (Pairs.draw(3000, 50, 25, seed=3) for _ in range(2))
    lengths = np.array([len(tokens) + 1 for tokens in pairs.sources])
    assert 24 <= np.median(lengths) <= 26
    assert lengths.std() > 5
    assert all(np.array_equal(one, other) for one, other in zip(pairs.targets, again.targets, strict=True))
    assert min(map(min, pairs.sources)) >= 4
    assert {len(tokens) for tokens in Pairs.draw(20, 50, 12, seed=1, spread=0.0).targets} == {11}


def test_batches_by_length_hold_every_pair_once_within_the_budget(tmp_path: Path) -> None:
    pairs = Pairs.draw(200, 50, 12, seed=1)
    batches = list(pairs.by_length(150))
    assert all(max(batch.source.size, batch.target[:, 1:].size) <= 150 for batch in batches)
    assert sum(batch.target_tokens for batch in batches) == pairs.target_tokens
    rows = [[t for t in row if t not in (PAD, BOS, EOS)] for batch in batches for row in batch.target.tolist()]
    assert sorted(rows) == sorted(tokens.tolist() for tokens in pairs.targets)
    assert 0.7 < fullness(batches) <= 1
    save_batches(tmp_path / "batches.npz", batches)
    for one, other in zip(load_batches(tmp_path / "batches.npz"), batches, strict=True):
        assert np.array_equal(one.source, other.source)


def test_rows_compare_round_by_round_with_the_best_peer() -> None:
    """The best peer is 'torch', though 'marian' was luckier once; each is shown at its best number of threads."""
    us = Contender("transduce", None, first={"1 fp32": 9, "2 fp32": 9}, memory=5)
    us.seconds, us.cpu = (
        {"1 fp32": [1.0, 4.0, 2.0], "2 fp32": [9.0, 9.0, 9.0]},
        {"1 fp32": [1, 1, 1], "2 fp32": [1, 1, 1]},
    )
    torch_, marian = (Contender(name, None, first={"1 fp32": 4}) for name in ("torch", "marian"))
    torch_.seconds, marian.seconds = {"1 fp32": [3.0, 8.0, 2.0]}, {"1 fp32": [1.0, 9.0, 9.0]}
    torch_.cpu = marian.cpu = {"1 fp32": [2, 2, 2]}
    facts = Facts(100, 1e12, {"1 fp32": 2e12, "2 fp32": 4e12}, {"transduce": 0.9, "peers": 1.0})
    rows = {row.name: row for row in rows_of([us, torch_, marian], "fp32", facts)}
    assert rows["transduce"].setting == "1 fp32"
    assert rows["transduce"].ratio == 2  # of 3, 2 and 1
    assert rows["torch"].ratio == 1
    assert rows["transduce"].cpu_ratio == 2
    assert (rows["transduce"].tokens_per_second, rows["transduce"].best_tokens_per_second) == (50, 100)
    assert (rows["transduce"].tera, rows["transduce"].share) == (0.5, 0.25)
    shown = training.table(list(rows.values()), {"fp32": ("1 fp32", 45.0)})
    assert "0.90 of the bare step" in shown
    assert "| transduce, bare step | 1, fp32 | 50; 100 | 100 | 0.5 | 25% | 11 | 0.0 | 90.0% | 2.00, 2.00 |" in shown


def test_exponents_are_slopes_of_logarithms() -> None:
    points = [scaling.Point(n, 3e-3 * n**2, 7 * n) for n in (2, 4, 8, 16)]
    assert scaling.exponent(points, lambda point: point.seconds) == pytest.approx(2)
    assert "| width | 2: 12.0, 4: 48.0, 8: 192.0, 16: 768.0 | 2.00 | 1.00 |" in scaling.table({"width": points})


def test_the_board_has_a_row_for_a_run_and_says_if_it_missed() -> None:
    row = speedrun.Result(10.0, 100.0, 10.0, 2500, 40.1, 39.49).row("a GPU", ["training.steps=3000"])
    assert "| a GPU | **2.00** (10 + 100 + 10 s) | 39.49, missed | 40.10 | 2,500 | training.steps=3000 |" in row
    assert "39.50, reached" in speedrun.Result(1, 1, 1, 1, 40.1, 39.5).row("a GPU", [])
    report = {
        "qualities": [{"name": "BLEU", "value": 1.0}, {"name": "BLEU (lower-cased, Moses-tokenised)", "value": 2.0}]
    }
    assert speedrun.published(report) == 2.0


def run(python: str, script: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    command = [python, str(ROOT / "benchmarks" / script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_training_benchmark_runs(tmp_path: Path, warm: str) -> None:
    words = "--size tiny --pairs 40 --tokens 200 --rounds 1 --threads 1 --precision fp32 --peers torch,joeynmt"
    printed = run(warm, "training.py", *words.split(), "--output", str(tmp_path))
    results = json.loads((tmp_path / "training.json").read_text())
    assert [row["name"] for row in results["rows"]][:2] == ["transduce", "torch"]
    assert results["loop"]["fp32"][1] > 0
    assert "| `transduce train` | 1, fp32 |" in printed
    assert "JoeyNMT" in printed  # measured, or said to be left out


@pytest.mark.slow
def test_the_scaling_benchmark_runs(tmp_path: Path, warm: str) -> None:
    words = "--size tiny --tokens 64 --axes length,layers --largest 16 --repeats 1 --precision fp32"
    printed = run(warm, "scaling.py", *words.split(), "--output", str(tmp_path))
    assert "| layers | 1: " in printed
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_benchmark_of_preparing_runs(tmp_path: Path, warm: str) -> None:
    words = "--millions 0.001 0.002 --plan 0.002 --workers 1 --output"
    printed = run(warm, "preparing.py", *words.split(), str(tmp_path / "figures.json"))
    assert "| seconds (processor seconds) per million pairs | 0.001 M | 0.002 M | last / first |" in printed
    assert "planning 0.002 M pairs alone: " in printed
    assert json.loads((tmp_path / "figures.json").read_text())["prepare"]["0.002"]["cpu"]["tokenizing"] > 0


@pytest.mark.slow
def test_the_speedrun_runs_on_text_of_its_own(tmp_path: Path, warm: str) -> None:
    """Letters backwards: val says that it is enough long before the planned end."""
    generator = torch.Generator().manual_seed(1)
    for stem, count in (("train", 300), ("val", 20), ("test_2016_flickr", 20)):
        draws = torch.randint(97, 103, (count, 5), generator=generator).tolist()
        for language, order in (("en", 1), ("de", -1)):
            text = "".join(" ".join(map(chr, row[::order])) + "\n" for row in draws)
            (tmp_path / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    settings = "validation.every=20 validation.patience=0 training.report_every=20 training.device=cpu model.d_model=32"
    printed = run(
        warm,
        *("speedrun.py", "--data", str(tmp_path), "--config", "tiny", "--stop", "0"),
        *("--prepare", "tokenizer.model=char", "tokenizer.byte_fallback=false", "workers=1", "doctor.duplicates=keep"),
        *("--", *settings.split()),
    )
    assert "missed" in printed or "reached" in printed
    assert "| 20 |" in printed


@pytest.mark.slow
def test_decoding_in_static_caches_is_measured_and_checked(tmp_path: Path, warm: str) -> None:
    command = [warm, "benchmarks/gpu_decoding.py", "--size", "tiny", "--device", "cpu", "--output", str(tmp_path)]
    without = ["--without", "peer", "profile", "rounded", "products", "without", "plain"]
    done = subprocess.run([*command, *without], cwd=ROOT, capture_output=True, text=True, check=False)
    rows = json.loads((tmp_path / "gpu_decoding.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stderr
    assert not [row for row in rows if row["what"] == "failed"]
    exact = [row for row in rows if row["what"] == "check fp32"]
    assert len(exact) == 6
    assert all(row["same"] == row["of"] for row in exact)
    files = [row for row in rows if row["what"] == "file"]
    assert {row["written"] for row in files} == {files[0]["most"]}
    assert "| graphs |" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(
    built() is None or not is_shipped(), reason="needs the native core, and the model that comes with us"
)
def test_a_server_is_loaded_and_measured() -> None:
    few = ["--clients", "3", "--requests", "9", "--beam", "1", "--serve", "--engine native"]
    load = run(sys.executable, "serving.py", "load", str(shipped()), *few)
    assert "{200: 9}" in load
    assert "0 responses differ from offline ones" in load
    lines = run(sys.executable, "serving.py", "throughput", str(shipped()), *few, "--turns", "1").splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["1 clients", "3 clients"]
    assert all("{200: 9}" in line for line in lines[:2])  # the same texts for both
    assert lines[2].startswith("one at a time ")
    assert lines[2].endswith(" times")


@pytest.mark.slow
@pytest.mark.skipif(
    built() is None or not is_shipped(), reason="needs the native core, and the model that comes with us"
)
def test_two_checkouts_are_compared_in_turns() -> None:
    said = run(sys.executable, "before_after.py", "--before", str(ROOT), *"--work greedy --rounds 1 --lines 2".split())
    ratios = re.findall(r"greedy +(clock|processor) +old/new ([0-9.]+) \(of 1 rounds", said)
    assert [name for name, _ in ratios] == ["clock", "processor"]
    assert all(float(ratio) > 0 for _, ratio in ratios)


def test_time_is_reported_by_kind_gap_and_shape() -> None:
    def event(name: str, begin: float, lasts: float, number: int = 0) -> dict[str, object]:
        return {"cat": "kernel", "name": name, "ts": begin, "dur": lasts, "args": {"External id": number}}

    ran = [event("nvjet_tst_128", 0, 400, 7), event("_backward", 450, 100), event("triton_poi_fused_relu", 500, 100)]
    call = {"External id": 7, "Input Dims": [[512], [2000, 512], [512, 1000]]}
    calls = [{"cat": "cpu_op", "name": "aten::addmm", "ts": 0, "dur": 1, "args": call}]
    assert kernels.idle(ran) == 50
    assert [kernels.kind_of(str(one["name"])) for one in ran] == ["products", "attention backward", "ReLU"]
    told = kernels.report(2, ran, [*calls, *ran])
    assert "0.300 ms each, of which 0.025 idle" in told
    assert "   5 TFLOP/s aten::addmm" in told  # 2 * 2000 * 512 * 1000 in 400 us
