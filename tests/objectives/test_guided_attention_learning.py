"""Guided attention does what it is for: on made text, the alignment error rate of cross-attention falls.

Text is translated by a dictionary, word for word, into another order; the links are known because the text is made.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from transduce.data.batch import Batch, collate
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.terms import GuidedAlignment, GuidedAttention, Term
from transduce.text.vocabulary import Symbols

pytestmark = pytest.mark.slow

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1)
WORDS = 20
V = 4 + 2 * WORDS  # source words, then their translations
PAIRS = 32  # a step


@dataclass(frozen=True)
class Made:
    """Sentence pairs, and for each target token the source place it translates."""

    sources: list[list[int]]
    targets: list[list[int]]
    origins: list[list[int]]

    def batch(self) -> Batch:
        batch = collate(self.sources, self.targets, SYMBOLS, SYMBOLS)
        links = torch.zeros(*batch.gold.shape, batch.source.size(1))
        for row, origins in enumerate(self.origins):
            links[row, torch.arange(len(origins)), torch.tensor(origins)] = 1.0
        return replace(batch, alignment=links)


def made(count: int, seed: int, reordered: bool) -> Made:
    """Sentences of 4 to 9 words. Reordered: each pair of neighbours changes places, as adjectives and nouns do."""
    chooser, sources, targets, origins = random.Random(seed), [], [], []
    for _ in range(count):
        source = [chooser.randrange(4, 4 + WORDS) for _ in range(chooser.randint(4, 9))]
        order = [place ^ 1 if place ^ 1 < len(source) else place for place in range(len(source))]
        order = order if reordered else list(range(len(source)))
        sources.append(source)
        targets.append([source[place] + WORDS for place in order])
        origins.append(order)
    return Made(sources, targets, origins)


def train(terms: tuple[Term, ...], reordered: bool, steps: int) -> tuple[Seq2Seq, float]:
    """A tiny Transformer after a few hundred steps, and its last loss a token."""
    torch.manual_seed(1)
    stacks = TransformerEncoder(2, Attention(4), 64), TransformerDecoder(2, Attention(4), 64)
    model = Model(32, 0.0, "all", *stacks).build(V, V, True).train()
    objective = CrossEntropy(0.1, terms=terms).build()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        loss = objective(model, made(PAIRS, step, reordered).batch(), step)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval(), (loss.metrics["nll"] / loss.count).item()


@torch.no_grad()
def error_rates(model: Seq2Seq, reordered: bool) -> Tensor:
    """Alignment error rate of every decoder layer and head (layers, H) on new text.

    Each target word is linked to the word its head looks at most. One link a word on either side of the measure, all of
    them sure: AER = 1 - 2 |A and S| / (|A| + |S|) is the share of wrong links.
    """
    text = made(100, 10_000, reordered)
    batch, trace = text.batch(), {}
    memory = model.encode(batch.source, batch.source_mask)
    model.advance(batch.inputs, model.start(memory), trace)
    assert batch.alignment is not None
    linked = batch.alignment.any(-1)  # (B, T)
    rates = []
    for layer in range(2):
        found = trace[f"decoder.{layer}.cross"].argmax(-1)  # (B, H, T)
        wrong = found != batch.alignment.argmax(-1).unsqueeze(1)
        rates.append(wrong.transpose(1, 2)[linked].float().mean(0))  # (H)
    return torch.stack(rates)


def test_alignments_are_learned_when_they_are_given() -> None:
    """One head of the layer below the top, as Garg et al. (2019) do it, on text whose neighbours change places."""
    free, plain = train((), reordered=True, steps=250)
    guided, loss = train((GuidedAlignment(weight=1.0),), reordered=True, steps=250)
    before, after = error_rates(free, True), error_rates(guided, True)
    print(f"AER of the head: {before[0, 0]:.3f} unguided, {after[0, 0]:.3f} guided; all unguided: {before.tolist()}")
    print(f"loss a token: {plain:.3f} unguided, {loss:.3f} guided")
    assert after[0, 0] < 0.2
    assert after[0, 0] < before.min() - 0.2  # also better than the best of all heads that nobody guided
    assert loss < plain + 0.05


def test_the_diagonal_is_learned_where_the_text_is_monotonic() -> None:
    free, plain = train((), reordered=False, steps=180)
    guided, loss = train((GuidedAttention(weight=1.0),), reordered=False, steps=180)
    before, after = error_rates(free, False)[1], error_rates(guided, False)[1]
    print(f"AER of the top layer's heads: {before.mean():.3f} unguided, {after.mean():.3f} guided")
    print(f"loss a token: {plain:.3f} unguided, {loss:.3f} guided (either may be ahead after so few steps)")
    assert after.mean() < 0.2
    assert after.mean() < before.mean() / 2
