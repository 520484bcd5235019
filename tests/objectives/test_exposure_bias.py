"""A task made to show exposure bias, and that scheduled sampling and noise are remedies for it.

Targets are chains: a token nearly always has the same successor. The source holds the target itself, so that one can
read every token off it; but where the chain jumps the source has a blank, and there a model must guess. Trained on
right answers alone it learns the easier of the two, to look at the token before; after a wrong guess it goes on from
its own mistake, though the source says otherwise.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.data.symbols import Symbols
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.base import Tools
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.inputs import InputNoise, InputsChoice, Linear, ScheduledSampling, TeacherForcing
from transduce.search.limits import Limits
from transduce.search.settings import Greedy

pytestmark = pytest.mark.slow

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
FIRST, CHAIN, LENGTH, JUMPS = 4, 12, 10, 0.12
BLANK = FIRST + CHAIN
V = BLANK + 1
STEPS = 450
REMEDIES: dict[str, InputsChoice] = {
    "scheduled sampling": ScheduledSampling(Linear(0.0, 0.75, STEPS // 2), temperature=1.0),
    "noise": InputNoise(replace=0.2),
}


def chains(count: int, generator: torch.Generator) -> tuple[Batch, Tensor, Tensor]:
    """A batch, its targets (count, LENGTH) and where they jump."""
    jumps = torch.rand(count, LENGTH, generator=generator) < JUMPS
    jumps[:, 0] = False
    anywhere = torch.randint(CHAIN, (count, LENGTH), generator=generator)
    links = [anywhere[:, 0]]
    for place in range(1, LENGTH):
        links.append(torch.where(jumps[:, place], anywhere[:, place], (5 * links[-1] + 3) % CHAIN))
    target = torch.stack(links, dim=1) + FIRST
    source = target.masked_fill(jumps, BLANK)
    return collate(source.tolist(), target.tolist(), SYMBOLS, SYMBOLS), target, jumps


def trained(inputs: InputsChoice, seed: int) -> Seq2Seq:
    torch.manual_seed(seed)
    model = (
        Model(32, 0.0, "all", TransformerEncoder(1, Attention(2), 64), TransformerDecoder(1, Attention(2), 64))
        .build(V, V, True)
        .train()
    )
    objective = CrossEntropy(0.0, inputs).build(Tools(SYMBOLS, vocabulary=V))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(100 + seed)
    for step in range(STEPS):
        loss = objective(model, chains(48, generator)[0], step)
        optimizer.zero_grad()
        torch.autograd.backward(loss.total / loss.count)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracies(model: Seq2Seq) -> dict[str, float]:
    """The share right of what the source tells: reading right answers, after own mistakes, after forced ones."""
    batch, target, jumps = chains(300, torch.Generator().manual_seed(7))
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
        "right answers": forced(batch.inputs)[~jumps].float().mean().item(),
        "own mistakes": free[mistaken & ~jumps].float().mean().item(),
        "forced mistakes": forced(wrong)[after & ~jumps].float().mean().item(),
    }


@cache
def plain(seed: int) -> dict[str, float]:
    return accuracies(trained(TeacherForcing(), seed))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", REMEDIES)
def test_accuracy_after_mistakes_rises(name: str, seed: int) -> None:
    before, after = plain(seed), accuracies(trained(REMEDIES[name], seed))
    print(f"seed {seed}: right answers {before}, {name} {after}")
    assert min(before["right answers"], after["right answers"]) > 0.97  # neither is short of training
    assert before["own mistakes"] < 0.6
    assert after["own mistakes"] > before["own mistakes"] + 0.3
    assert after["forced mistakes"] > before["forced mistakes"] + 0.2
