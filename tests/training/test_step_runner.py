"""Forward and backward passes, eager and replayed as a CUDA graph (on a machine with a GPU)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
import torch
import toys

from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.norms import BatchNorm
from transduce.model.positions import Rotary
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy, RDrop, Smoothed
from transduce.objectives.inputs import InputNoise, ScheduledSampling
from transduce.objectives.terms import ZLoss
from transduce.text.vocabulary import Symbols
from transduce.training.optimizer import Adam, update
from transduce.training.settings import Training
from transduce.training.step_runner import _SECOND, EagerRunner, GraphedRunner, add_gradients, seed_pass

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 19
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_every_pass_has_a_seed_of_its_own_which_stays() -> None:
    """A run that goes on draws what it would have drawn."""

    def seed(*numbers: int) -> int:
        seed_pass(*numbers)
        return torch.initial_seed()

    every = [seed(*numbers) for numbers in itertools.product(range(9), range(9), range(3), range(3))]
    assert len({*every}) == len(every)
    halves = [{seed(1, 2, 0, half * _SECOND + piece) for piece in range(500)} for half in range(2)]
    assert len(halves[0] | halves[1]) == 1000
    assert seed(1, 2, 3, 0) == (1_000_003 + 2) * 1_009 + 3
    assert seed(1, 2, 3, 4) == ((1_000_003 + 2) * 1_009 + 3 + 4 * 0x9E3779B97F4A7C15) % 2**63


def build(dropout: float = 0.2) -> Seq2Seq:
    torch.manual_seed(3)
    stacks = {"attention": Attention(2), "d_ff": 24, "positions": Rotary(), "norm": BatchNorm()}
    encoder, decoder = TransformerEncoder(2, **stacks), TransformerDecoder(2, **stacks)  # type: ignore[arg-type]
    return Model(16, dropout, "all", encoder, decoder).build(V, V, shared=True).train()


def batches(count: int) -> list[Batch]:
    """Three shapes in turn."""
    made = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        length = 3 + 2 * (number % 3)
        lines = [torch.randint(4, V, (length,), generator=generator).tolist() for _ in range(4)]
        made.append(collate(lines, [line[::-1] for line in lines], SYMBOLS, SYMBOLS))
    return made


def test_a_pass_adds_gradients_and_gives_a_loss_without_history() -> None:
    model, (batch, *_) = build(), batches(1)
    run = EagerRunner(ObjectiveStep(model, CrossEntropy().build()), torch.device("cpu"), bf16=False)
    torch.manual_seed(1)
    first = run(batch, 0)
    assert not first.total.requires_grad
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    torch.manual_seed(1)
    assert torch.equal(run(batch, 0).total, first.total)
    again = [p.grad for p in model.parameters() if p.grad is not None]
    for once, twice in zip(gradients, again, strict=True):
        torch.testing.assert_close(2 * once, twice)


def test_in_half_precision_the_weights_stay_whole() -> None:
    model, (batch, *_) = build(dropout=0.0), batches(1)
    whole = EagerRunner(ObjectiveStep(model, CrossEntropy().build()), torch.device("cpu"), bf16=False)(batch, 0)
    half = EagerRunner(ObjectiveStep(model, CrossEntropy().build()), torch.device("cpu"), bf16=True)(batch, 0)
    assert not torch.equal(half.total, whole.total)
    torch.testing.assert_close(half.total, whole.total, rtol=0.02, atol=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "on_gpu", "on_cpu"), [("auto", True, False), ("bf16", True, True), ("fp32", False, False)]
)
def test_where_products_are_narrow(precision: Literal["auto", "bf16", "fp32"], on_gpu: bool, on_cpu: bool) -> None:
    training = Training(precision=precision)
    assert (training.narrow("cuda"), training.narrow("cpu")) == (on_gpu, on_cpu)


def test_memory_that_ends_while_recording_is_no_reason_to_record_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def full(*_: object, **__: object) -> Iterator[None]:
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", full)
    said: list[str] = []
    run = GraphedRunner(ObjectiveStep(build(), CrossEntropy().build()), torch.device("cpu"), False, said.append)
    run.graphs.able = True
    (batch,) = batches(1)
    run(batch, 0)
    with pytest.raises(torch.OutOfMemoryError):  # for Halving, which makes such batches smaller
        run(batch, 1)
    assert run.graphs.able
    assert not said


@pytest.mark.parametrize(
    ("objective", "steady"),
    [
        (CrossEntropy(), True),
        (RDrop(), True),
        (CrossEntropy(terms=(ZLoss(),)), False),
        (RDrop(terms=(ZLoss(),)), False),
        (CrossEntropy(inputs=ScheduledSampling()), False),
        (CrossEntropy(inputs=InputNoise()), False),
    ],
)
def test_only_objectives_that_do_the_same_at_every_step_are_replayed(objective: Smoothed, steady: bool) -> None:
    assert objective.steady is steady


@GPU
@pytest.mark.parametrize("objective", [CrossEntropy(0.1), RDrop(0.1, 2.0)], ids=["cross_entropy", "r_drop"])
def test_replayed_is_as_written_to_the_bit(objective: Smoothed) -> None:
    device, said = torch.device("cuda"), []
    results = []
    for graphs in (False, True):
        model = build().to(device)
        step = ObjectiveStep(model, objective.build())
        run = GraphedRunner(step, device, True, said.append) if graphs else EagerRunner(step, device, True)
        optimizer = Adam().build(model.parameters())
        losses = []
        for number, batch in enumerate(batches(15)):
            optimizer.zero_grad(set_to_none=run.drops_gradients)
            torch.manual_seed(number)
            loss = run(batch, number)
            losses.append(loss.total.clone())
            update(optimizer, 1e-3, loss.count, clip=0.0)
        assert not graphs or len(run.recorded) == 3  # type: ignore[attr-defined]
        results.append((torch.stack(losses), {name: t.clone() for name, t in model.weights().items()}))
    assert not said
    (written, left), (replayed, right) = results
    torch.testing.assert_close(replayed, written, rtol=1e-5, atol=1e-5)
    for name in left:
        torch.testing.assert_close(right[name], left[name], rtol=1e-4, atol=1e-5)


@GPU
def test_a_whole_run_is_the_same_with_graphs_and_without(tmp_path: Path) -> None:
    corpus = toys.corpus(tmp_path / "corpus", toys.copies(300), toys.copies(20, seed=2))
    settings = ("training.device=cuda", "training.steps=60", "objective=r_drop")
    for name in ("true", "false"):
        toys.run(corpus, tmp_path / name, *settings, f"training.graphs={name}")
    curves = [[entry["loss"] for entry in toys.reports(tmp_path / name)] for name in ("true", "false")]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


def test_gradients_added_at_once_are_those_of_backward() -> None:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    unused = torch.nn.Parameter(torch.ones(2))
    parameters = [*layers.parameters(), unused]
    found = []
    for way in (lambda total: total.backward(), lambda total: add_gradients(total, parameters)):
        for parameter in parameters:
            parameter.grad = None
        for seed in (1, 2):
            torch.manual_seed(seed)
            way(layers(torch.randn(6, 4)).square().sum())
        found.append([parameter.grad for parameter in parameters])
    assert found[0][-1] is found[1][-1] is None
    assert all(torch.equal(a, b) for a, b in zip(found[0][:-1], found[1][:-1], strict=True))
