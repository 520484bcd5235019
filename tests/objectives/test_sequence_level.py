"""REINFORCE and minimum risk against the exact expectation, on a vocabulary small enough to list every translation.

The oracle steps the model one token at a time, renormalises by hand over what may be written, takes rewards from
sacreBLEU and sums over all translations; the objectives sample, and score in one pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import Objective, ObjectiveContext
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.sequence_level import MinimumRisk, Reinforce, SequenceLevel
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, unk=3, never=(0, 1, 3))
V, LONGEST = 6, 3
WORDS = {4: "ab", 5: "ca"}
TARGETS = [[4, 5], [5], [5, 5, 4, 4]]
SOURCES = [[4, 4, 5], [5, 4], [4]]


def spell(tokens: Sequence[int]) -> str:
    return " ".join(WORDS[token] for token in tokens if token in WORDS)


TOOLS = ObjectiveContext(SYMBOLS, spell)
# Every translation as it is written: with the end symbol, or cut at the limit.
ALL = [(*words, 2) for length in range(LONGEST) for words in itertools.product((4, 5), repeat=length)]
ALL += itertools.product((4, 5), repeat=LONGEST)


def batch(copies: int = 1) -> Batch:
    return collate(SOURCES * copies, TARGETS * copies, SYMBOLS, SYMBOLS)


def build(dropout: float = 0.0) -> Seq2Seq:
    torch.manual_seed(4)
    encoder, decoder = TransformerEncoder(1, Attention(1), 8), TransformerDecoder(1, Attention(1), 8)
    return Model(8, dropout, "none", encoder, decoder).build(V, V, True).train()


def short(objective: SequenceLevel) -> Objective:
    """Nothing longer than LONGEST, no cross-entropy."""
    return replace(objective, longest_ratio=0.0, longest_extra=LONGEST, mixing=0.0).build(TOOLS)


def gradient(model: Seq2Seq, total: Tensor) -> Tensor:
    model.zero_grad()
    torch.autograd.backward(total)
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def listed(model: Seq2Seq, sentence: int) -> tuple[Tensor, Tensor]:
    """The log-probability, with gradient, and the reward of each of ALL."""
    tokens, log_probs = torch.tensor([SOURCES[sentence] + [2]]), []
    for written in ALL:
        state = model.start(model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        total, before = torch.zeros(()), 1
        for token in written:
            logits, state = model.advance(torch.tensor([[before]]), state)
            exponents = logits[0, 0].exp()
            total = total + (exponents[token] / (exponents[2] + exponents[4] + exponents[5])).log()
            before = token
        log_probs.append(total)
    reference = spell(TARGETS[sentence])
    rewards = [CHRF().sentence_score(spell(written), [reference]).score / 100 for written in ALL]
    return torch.stack(log_probs), torch.tensor(rewards)


def expected(model: Seq2Seq, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The exact loss of the batch: sentences weigh as their references' tokens."""
    return sum(  # type: ignore[return-value]
        (len(target) + 1) * loss(*listed(model, number)) for number, target in enumerate(TARGETS)
    )


def minus_reward(log_probs: Tensor, rewards: Tensor) -> Tensor:
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)  # nothing is missing
    return -(log_probs.exp() * rewards).sum()


# -- minimum risk ----------------------------------------------------------------------------------------------------


def test_minimum_risk_over_all_translations_is_the_exact_expectation() -> None:
    model = build()
    objective = short(MinimumRisk(samples=2000, sharpness=1.0, with_reference=False))
    torch.manual_seed(1)
    loss = objective(model, batch(), 0)
    found = gradient(model, loss.total)
    exact = expected(model, lambda log_probs, rewards: 1 + minus_reward(log_probs, rewards))
    assert min(listed(model, sentence)[0].exp().min().item() for sentence in range(3)) > 3e-3  # so all were drawn
    torch.testing.assert_close(loss.total, exact, atol=1e-5, rtol=1e-5)
    assert found.abs().max() > 0.05
    torch.testing.assert_close(found, gradient(model, exact), atol=1e-5, rtol=1e-5)
    assert loss.count == 3 + 2 + 5


@pytest.mark.parametrize("sharpness", [0.005, 0.4])
def test_minimum_risk_sharpens_and_takes_the_reference_in(sharpness: float) -> None:
    """The third reference is longer than what is sampled: one candidate more, whose reward is 1."""
    model = build()
    torch.manual_seed(1)
    loss = short(MinimumRisk(samples=2000, sharpness=sharpness))(model, batch(), 0)
    found = gradient(model, loss.total)
    far = SOURCES[2] + [2]
    reference = torch.tensor([[1, *TARGETS[2]]])
    state = model.start(model.encode(torch.tensor([far]), torch.ones(1, len(far), dtype=torch.bool)))
    logits = model.advance(reference, state)[0][0, :, [2, 4, 5]]
    extra = sum(logits[i].log_softmax(0)[{2: 0, 4: 1, 5: 2}[token]] for i, token in enumerate([*TARGETS[2], 2]))
    assert isinstance(extra, Tensor)

    def risk(log_probs: Tensor, rewards: Tensor) -> Tensor:
        if 1.0 not in rewards:
            log_probs, rewards = torch.cat((log_probs, extra[None])), torch.cat((rewards, torch.ones(1)))
        powers = log_probs.exp() ** sharpness
        return (powers * (1 - rewards)).sum() / powers.sum()

    exact = expected(model, risk)
    torch.testing.assert_close(loss.total, exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, gradient(model, exact), atol=1e-5, rtol=1e-4)


def test_a_reference_that_no_search_could_write_does_no_harm() -> None:
    model = build()
    unknown = collate([[4, 5]], [[3, 4]], SYMBOLS, SYMBOLS)
    loss = short(MinimumRisk(samples=4))(model, unknown, 0)
    assert loss.total.isfinite()
    assert gradient(model, loss.total).isfinite().all()


# -- REINFORCE -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("baseline", "samples"), [("others", 2), ("greedy", 1), ("none", 1)])
def test_reinforce_is_unbiased(baseline: Literal["others", "greedy", "none"], samples: int) -> None:
    """The mean of many sampled gradients, along twenty directions, against the exact one: z-values."""
    model, rounds, copies = build(), 25, 40
    exact = gradient(model, expected(model, minus_reward))
    objective, pairs = short(Reinforce(samples=samples, baseline=baseline)), batch(copies)
    sampled = []
    for seed in range(rounds):
        torch.manual_seed(seed)
        sampled.append(gradient(model, objective(model, pairs, 0).total) / copies)
    directions = torch.randn(len(exact), 20, generator=torch.Generator().manual_seed(1))
    directions[:, 0] = exact
    found, wanted = torch.stack(sampled) @ directions, exact @ directions
    error = found.std(0) / rounds**0.5
    z = (found.mean(0) - wanted) / error
    print(f"{baseline}: z {z.abs().max():.2f} at most, gradient itself {wanted[0] / error[0]:.0f} errors long")
    assert z.abs().max() < 4
    assert z.square().mean() < 2.5
    assert wanted[0] / error[0] > 15  # a gradient too short by a quarter would be seen


def test_baselines_make_it_less_noisy() -> None:
    model, noise = build(), {}
    for baseline in ("others", "none"):
        objective, found = short(Reinforce(samples=4, baseline=baseline)), []  # type: ignore[arg-type]
        for seed in range(30):
            torch.manual_seed(seed)
            found.append(gradient(model, objective(model, batch(), 0).total))
        noise[baseline] = torch.stack(found).var(0).sum().item()
    assert noise["others"] < 0.75 * noise["none"]


def test_bleu_can_be_the_reward() -> None:
    model = build()
    rewards = []
    for reward in ("bleu", "chrf"):
        torch.manual_seed(1)
        objective = short(Reinforce(reward=reward))  # type: ignore[arg-type]
        rewards.append((objective(model, batch(), 0).metrics["reward"] / 10).item())
    assert 0 < rewards[0] < rewards[1] < 1


# -- what both share -------------------------------------------------------------------------------------------------

BOTH: list[SequenceLevel] = [Reinforce(samples=3), MinimumRisk(samples=3)]


@pytest.mark.parametrize("objective", BOTH)
def test_draws_come_from_the_global_generator(objective: SequenceLevel) -> None:
    model, totals = build(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        totals.append(short(objective)(model, batch(2), 0).metrics["reward"].item())
    assert totals[0] == totals[1] != totals[2]


@pytest.mark.parametrize("objective", BOTH)
def test_the_reward_reported_is_the_mean_of_what_was_drawn(objective: SequenceLevel) -> None:
    model = build()
    many = short(replace(objective, samples=2000))
    torch.manual_seed(1)
    loss = many(model, batch(), 0)
    assert loss.metrics["reward"].item() == pytest.approx(-expected(model, minus_reward).item(), rel=0.03)
    assert not loss.metrics["reward"].requires_grad


@pytest.mark.parametrize("objective", BOTH)
def test_cross_entropy_is_mixed_in(objective: SequenceLevel) -> None:
    model, losses = build(), []
    for mixing in (0.0, 0.5):
        torch.manual_seed(1)
        losses.append(
            replace(objective, mixing=mixing, cross_entropy=CrossEntropy(0.2)).build(TOOLS)(model, batch(), 0)
        )
    plain = CrossEntropy(0.2).build()(model, batch(), 0)
    torch.testing.assert_close(losses[1].total, losses[0].total + 0.5 * plain.total)
    assert losses[0].count == losses[1].count == plain.count
    assert set(losses[0].metrics) == {"reward"}
    assert losses[1].metrics == {"reward": losses[0].metrics["reward"], **plain.metrics}


@pytest.mark.parametrize("objective", BOTH)
def test_dropout_touches_cross_entropy_alone(objective: SequenceLevel) -> None:
    dropping, steady = build(dropout=0.5), build()
    totals = []
    for model in (dropping, steady):
        torch.manual_seed(1)
        totals.append(short(objective)(model, batch(), 0).total)
    assert torch.equal(*totals)
    assert dropping.training
    fluent = replace(objective, mixing=1.0).build(TOOLS)
    torch.manual_seed(1)
    first = fluent(dropping, batch(), 0).total
    torch.manual_seed(1)
    assert not torch.equal(first, fluent(steady, batch(), 0).total)


@pytest.mark.parametrize("objective", BOTH)
def test_under_autocast_every_weight_learns(objective: SequenceLevel) -> None:
    """Weights cast while a search ran without gradient must not stand in the pass with it."""
    model = build()
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = short(objective)(model, batch(3), 0)
    assert loss.total.dtype == torch.float32
    gradient(model, loss.total)
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters() if weight.dim() > 1)


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (Reinforce, {"samples": 0}, "samples: expected at least 1 translation a sentence, got 0"),
        (
            Reinforce,
            {"samples": 1},
            "samples: a baseline of the other samples needs at least 2; or set baseline=greedy",
        ),
        (Reinforce, {"mixing": -0.1}, "mixing: expected the weight of cross-entropy, 0 or more, got -0.1"),
        (Reinforce, {"longest_extra": -1}, "longest_extra: expected an integer from 0 to 4,096, got -1"),
        (MinimumRisk, {"longest_ratio": float("nan")}, "longest_ratio: expected a number from 0 to 100, got nan"),
        (MinimumRisk, {"sharpness": 0.0}, "sharpness: expected a number above 0, got 0.0"),
    ],
)
def test_settings_that_cannot_be(kind: type[SequenceLevel], settings: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**settings)  # type: ignore[arg-type]
    assert str(error.value) == text


def test_terms_beside_its_cross_entropy_are_checked_too() -> None:
    with pytest.raises(ConfigError) as error:
        configs.load(Config, None, ["objective={kind='reinforce',cross_entropy={terms=[{kind='ctc'}]}}"])
    assert "objective.cross_entropy.terms[0].kind: this term trains a head that the model has not" in str(error.value)
