"""Our side of the training benchmarks: the pairs through our own preparation, batching and `transduce train`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from worker import Job
from workload import PaddedBatch, Pairs, Sizes, word

EPOCHS = 3  # of the real loop; the first warms up
ROOT = Path(__file__).parents[1]


def settings_of(sizes: Sizes, tokens: int, bucket: int) -> list[str]:
    """Our preset `base` at these sizes."""
    sides = [
        setting
        for side in ("encoder", "decoder")
        for setting in (
            f"model.{side}.layers={sizes.layers}",
            f"model.{side}.attention.heads={sizes.heads}",
            f"model.{side}.d_ff={sizes.d_ff}",
        )
    ]
    return [
        f"model.d_model={sizes.d_model}",
        f"model.dropout={sizes.dropout}",
        *sides,
        f"objective.label_smoothing={sizes.smoothing}",
        f"data.tokens={tokens}",
        f"data.bucket={bucket}",
    ]


def prepare_corpus(pairs: Pairs, sizes: Sizes, folder: Path) -> Path:
    """Run `transduce prepare` on the pairs as text, with a tokenizer that has each of their words."""
    import sentencepiece

    from transduce.data.formats.parallel import ParallelText
    from transduce.data.prepare.run import Prepare, prepare
    from transduce.text.train_tokenizer import GivenTokenizer

    source, target = pairs.write(folder)
    model = folder / "words"
    sentencepiece.SentencePieceTrainer.train(
        # Falling counts, since the vocabulary is sorted by them.
        sentence_iterator=(" ".join([word(token)] * 2) for token in range(4, sizes.vocabulary)),
        model_prefix=str(model),
        model_type="word",
        vocab_size=sizes.vocabulary,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    text = ParallelText(source=str(source), target=str(target))
    corpus = prepare(
        Prepare(
            output=str(folder / "corpus"), train=(text,), tokenizer=GivenTokenizer(shared=f"{model}.model"), workers=1
        )
    )
    return corpus.folder


def our_batches(corpus: Path, tokens: int, bucket: int, shapes: int = 0) -> tuple[list[PaddedBatch], tuple[int, int]]:
    """The first epoch of the training loop, and the packed capacity if shapes are few."""
    from transduce.data.batching import Batches
    from transduce.data.corpus import Corpus

    opened = Corpus.open(corpus)
    stream = Batches(opened.split("train"), opened.tokenizers, tokens, bucket, seed=1, shapes=shapes)
    plan = stream.plan(0)
    made = (stream.make(plan, 0, number) for number in range(len(plan)))
    padded = [PaddedBatch(batch.source.numpy(), batch.target.numpy()) for batch in made]
    return padded, stream.few.capacity if shapes else (0, 0)


def run_loop(corpus: Path, folder: Path, job: Job, steps: int, threads: str, precision: str) -> float:
    """Target tokens a second that `transduce train` reports after its first epoch."""
    settings = [
        *job.settings,
        f"data.folder={corpus}",
        f"training.steps={EPOCHS * steps}",
        f"training.report_every={steps}",
        "training.save_every=1000000",
        f"training.device={job.device}",
        f"training.precision={precision}",
        f"training.threads={threads}",
        "training.average=0",
    ]
    command = [sys.executable, "-m", "transduce", "train", "base", *settings, "--output", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"transduce train failed:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]
    reports = [line["tokens_per_second"] for line in lines if line["kind"] == "train"]
    return statistics.median(reports[1:])
