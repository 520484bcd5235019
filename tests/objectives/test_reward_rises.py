"""After cross-entropy, learning from the reward itself raises it: on a toy, greedy and sampled, held-out sentences."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from transduce.data.batch import Batch, collate
from transduce.metrics.corpus import chrf
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import Objective, ObjectiveContext
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.sequence_level import MinimumRisk, Reinforce, SequenceLevel
from transduce.search.settings import Greedy, Limits, Sample
from transduce.text.vocabulary import Symbols

pytestmark = pytest.mark.slow

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
LETTERS = "abcdefghijkl"
V = 4 + len(LETTERS)
TOOLS = ObjectiveContext(
    SYMBOLS, lambda tokens: "".join(LETTERS[token - 4] for token in tokens if token >= 4), vocabulary=V
)


def reversals(count: int, chooser: random.Random) -> Batch:
    words = [[chooser.randrange(4, V) for _ in range(chooser.randint(3, 7))] for _ in range(count)]
    return collate(words, [word[::-1] for word in words], SYMBOLS, SYMBOLS)


def learn(model: Seq2Seq, objective: Objective, steps: int, rate: float, chooser: random.Random) -> None:
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for step in range(steps):
        torch.manual_seed(step)
        loss = objective(model, reversals(32, chooser), step)
        optimizer.zero_grad()
        torch.autograd.backward(loss.total / loss.count)
        optimizer.step()


@torch.no_grad()
def quality(model: Seq2Seq, search: Greedy | Sample) -> float:
    batch = reversals(200, random.Random(9))
    found = search.build()(model.eval(), model.encode(batch.source, batch.source_mask), SYMBOLS)
    model.train()
    references = [TOOLS.detokenize(row) for row in batch.gold.tolist()]
    return chrf([TOOLS.detokenize(hypothesis.tokens) for (hypothesis, *_) in found], references).value


@pytest.fixture(scope="module")
def pretrained() -> Seq2Seq:
    """A model that reverses words badly still."""
    torch.manual_seed(1)
    encoder, decoder = TransformerEncoder(1, Attention(2), 64), TransformerDecoder(1, Attention(2), 64)
    model = Model(32, 0.0, "all", encoder, decoder).build(V, V, True).train()
    learn(model, CrossEntropy(0.0).build(), 250, 3e-3, random.Random(1))
    return model


@pytest.mark.parametrize(
    "objective",
    [
        Reinforce(samples=6, mixing=0.0),
        Reinforce(samples=6, mixing=0.0, baseline="greedy"),
        MinimumRisk(samples=6, mixing=0.0, sharpness=0.3),
    ],
    ids=["reinforce", "self-critical", "minimum risk"],
)
def test_the_reward_rises(pretrained: Seq2Seq, objective: SequenceLevel) -> None:
    model = copy.deepcopy(pretrained)
    limits = Limits(1.5, 5)
    searches = Greedy(limits), Sample(limits=limits)
    before = [quality(model, search) for search in searches]
    learn(model, objective.build(TOOLS), 80, 1e-3, random.Random(2))
    after = [quality(model, search) for search in searches]
    print(f"chrF, greedy and sampled: {before} -> {after}")
    assert after[0] > before[0] + 2
    assert after[1] > before[1] + 5
