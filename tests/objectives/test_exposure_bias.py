"""A task made to show exposure bias, and that scheduled sampling and noise are remedies for it.

Targets are chains: a token nearly always has the same successor. The source holds the target itself, so that one can
read most tokens off it; but where the chain jumps the source has a blank, and there a model must guess. There are
blanks elsewhere too, where the token before tells all. Trained on right answers alone a model learns to look at that
one everywhere; after a wrong guess it goes on from its own mistake, though the source says otherwise.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ObjectiveContext
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.inputs import InputNoise, InputsChoice, Linear, ScheduledSampling, TeacherForcing
from transduce.search.settings import Greedy, Limits
from transduce.text.vocabulary import Symbols

pytestmark = pytest.mark.slow

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
FIRST, CHAIN, LENGTH, JUMPS, HIDDEN = 4, 12, 10, 0.12, 0.4
BLANK = FIRST + CHAIN
V = BLANK + 1
STEPS, BATCH, SEEDS = 450, 48, (1, 2, 3)
REMEDIES: dict[str, InputsChoice] = {
    "scheduled sampling": ScheduledSampling(Linear(0.0, 0.75, STEPS // 4), temperature=1.0),
    "noise": InputNoise(replace=0.3),
}


def chains(count: int, generator: torch.Generator) -> tuple[Batch, Tensor, Tensor]:
    """A batch, its targets (count, LENGTH) and where the source is blank."""
    jumps = torch.rand(count, LENGTH, generator=generator) < JUMPS
    jumps[:, 0] = False
    anywhere = torch.randint(CHAIN, (count, LENGTH), generator=generator)
    links = [anywhere[:, 0]]
    for place in range(1, LENGTH):
        links.append(torch.where(jumps[:, place], anywhere[:, place], (5 * links[-1] + 3) % CHAIN))
    target = torch.stack(links, dim=1) + FIRST
    blank = jumps | (torch.rand(count, LENGTH, generator=generator) < HIDDEN)
    source = target.masked_fill(blank, BLANK)
    return collate(source.tolist(), target.tolist(), SYMBOLS, SYMBOLS), target, blank


def trained(inputs: InputsChoice, seed: int) -> Seq2Seq:
    torch.manual_seed(seed)
    model = (
        Model(32, 0.0, "all", TransformerEncoder(1, Attention(2), 64), TransformerDecoder(1, Attention(2), 64))
        .build(V, V, True)
        .train()
    )
    objective = CrossEntropy(0.0, inputs).build(ObjectiveContext(SYMBOLS, vocabulary=V))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(100 + seed)
    for step in range(STEPS):
        loss = objective(model, chains(BATCH, generator)[0], step)
        optimizer.zero_grad()
        torch.autograd.backward(loss.total / loss.count)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracies(model: Seq2Seq) -> dict[str, float]:
    """The share right of what the source tells: reading right answers, after own mistakes, after forced ones."""
    batch, target, blank = chains(300, torch.Generator().manual_seed(7))
    memory = model.encode(batch.source, batch.source_mask)

    def forced(inputs: Tensor) -> Tensor:
        return model.advance(inputs, model.start(memory))[0].argmax(-1)[:, :LENGTH] == target

    found = Greedy(Limits(1.0, 0, shortest=LENGTH - 1)).build()(model, memory, SYMBOLS)
    free = torch.tensor([[*hypothesis.tokens, 0][:LENGTH] for (hypothesis, *_) in found]) == target
    mistaken = (~free).cumsum(1).roll(1, 1) > 0
    mistaken[:, 0] = False
    wrong = batch.inputs.clone()
    wrong[:, 1:] = torch.randint(FIRST, BLANK, wrong[:, 1:].shape, generator=torch.Generator().manual_seed(8))
    after = torch.arange(LENGTH) > 0
    return {
        "right answers": forced(batch.inputs)[~blank].float().mean().item(),
        "own mistakes": free[mistaken & ~blank].float().mean().item(),
        "forced mistakes": forced(wrong)[after & ~blank].float().mean().item(),
    }


@cache
def plain(seed: int) -> dict[str, float]:
    return accuracies(trained(TeacherForcing(), seed))


@pytest.mark.parametrize("name", REMEDIES)
def test_accuracy_after_mistakes_rises(name: str) -> None:
    """On the mean of the seeds: which of its two ways a model comes to prefer is partly chance."""
    before = [plain(seed) for seed in SEEDS]
    after = [accuracies(trained(REMEDIES[name], seed)) for seed in SEEDS]
    print(f"right answers {before}, {name} {after}")

    def mean(found: list[dict[str, float]], what: str) -> float:
        return sum(one[what] for one in found) / len(found)

    assert min(one["right answers"] for one in (*before, *after)) > 0.97  # none is short of training
    assert mean(before, "own mistakes") < 0.6
    assert mean(after, "own mistakes") > mean(before, "own mistakes") + 0.3
    assert mean(after, "forced mistakes") > mean(before, "forced mistakes") + 0.2
