"""What the decoder reads: schedules by hand, own predictions by a loop, noise by counting; and where gradients go."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.data.batch import Batch, collate
from transduce.experiment import Config
from transduce.model.attention import Attention
from transduce.model.contract import DecoderState, Memory
from transduce.model.seq2seq import Model, Seq2Seq
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ObjectiveContext
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.objectives.inputs import (
    Constant,
    Exponential,
    InputNoise,
    InputsChoice,
    InverseSigmoid,
    Linear,
    ScheduledSampling,
    TeacherForcing,
)
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 11
TOOLS = ObjectiveContext(SYMBOLS, vocabulary=V)
ALWAYS = ScheduledSampling(Constant(1.0))


class Says:
    """Answers every input with the same logits (T, V), and counts how often it is asked."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.calls = logits, 0

    def encode(self, source: Tensor, mask: Tensor, trace: dict[str, Tensor] | None = None) -> Memory:
        return Memory((), mask)

    def start(self, memory: Memory) -> DecoderState:
        return DecoderState(None, None, 0)

    def advance(
        self, tokens: Tensor, state: DecoderState, trace: dict[str, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        self.calls += 1
        return self.logits.expand(len(tokens), -1, -1)[:, : tokens.shape[1]], state


def batch() -> Batch:
    return collate([[4, 5], [6], [7]], [[7, 8, 9], [10], []], SYMBOLS, SYMBOLS, target_length=6)


def wide(rows: int = 4000, length: int = 5) -> Batch:
    """Many rows of token 4, for counting."""
    return collate([[4]] * rows, [[4] * length] * rows, SYMBOLS, SYMBOLS, target_length=length + 3)


def read(inputs: InputsChoice, pairs: Batch, logits: Tensor | None = None, step: int = 0) -> Tensor:
    model = Says(torch.zeros(pairs.inputs.shape[1], V) if logits is None else logits)
    return inputs.build(TOOLS)(model, pairs, model.encode(pairs.source, pairs.source_mask), step)


def build(dropout: float = 0.0) -> Seq2Seq:
    torch.manual_seed(5)
    encoder, decoder = TransformerEncoder(1, Attention(2), 24), TransformerDecoder(1, Attention(2), 24)
    return Model(16, dropout, "all", encoder, decoder).build(V, V, True).train()


# -- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(0.0, 0.5, 100), {0: 0.0, 50: 0.25, 100: 0.5, 10_000: 0.5}),
        (Linear(0.4, 0.1, 10), {0: 0.4, 5: 0.25, 10: 0.1, 11: 0.1}),
        (Exponential(0.0, 0.5, 100), {0: 0.0, 50: 0.45, 100: 0.495, 200: 0.49995}),
        (InverseSigmoid(0.0, 1.0, 100), {0: 1 / (1 + math.e**5), 50: 0.5, 100: 1 / (1 + math.e**-5), 10**6: 1.0}),
        (Constant(0.3), {0: 0.3, 10**6: 0.3}),
    ],
)
def test_schedules_by_hand(schedule: Linear | Constant, expected: dict[int, float]) -> None:
    for step, probability in expected.items():
        assert schedule.at(step) == pytest.approx(probability, abs=1e-9), step


def test_the_exponential_schedule_is_bengio_s() -> None:
    """The share of right answers is k^i, k being the hundredth's root."""
    schedule, k = Exponential(0.0, 1.0, 500), 0.01 ** (1 / 500)
    assert [1 - schedule.at(i) for i in (1, 7, 300)] == pytest.approx([k**i for i in (1, 7, 300)])


def test_the_inverse_sigmoid_is_bengio_s_where_one_number_gives_both_middle_and_slope() -> None:
    k = math.e**5
    schedule = InverseSigmoid(0.0, 1.0, round(10 * k))
    for i in (0, 300, 742, 1200):
        assert 1 - schedule.at(i) == pytest.approx(k / (k + math.exp(i / k)), abs=2e-3)


# -- the model's own predictions -------------------------------------------------------------------------------------


def test_every_input_may_be_the_prediction_of_the_place_before() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, pairs = 3 * torch.randn(6, V, generator=generator), batch()
    logits[0, SYMBOLS.eos] = logits[1, SYMBOLS.pad] = 50.0  # a search could not have gone on from these
    found = read(ALWAYS, pairs, logits)
    for row, inputs in enumerate(pairs.inputs.tolist()):
        for place, token in enumerate(inputs):
            if place == 0 or not pairs.target_mask[row, place]:
                assert found[row, place] == token
            else:
                scores = logits[place - 1].tolist()
                assert found[row, place] == max(range(4, V), key=scores.__getitem__)


def test_at_probability_0_nothing_is_predicted() -> None:
    model, pairs = Says(torch.zeros(6, V)), batch()
    inputs = ScheduledSampling(Linear(0.0, 0.5, 10)).build(TOOLS)
    memory = model.encode(pairs.source, pairs.source_mask)
    assert torch.equal(inputs(model, pairs, memory, 0), pairs.inputs)
    assert model.calls == 0
    inputs(model, pairs, memory, 1)
    assert model.calls == 1


def test_the_share_of_predictions_follows_the_step() -> None:
    logits, pairs = torch.zeros(8, V), wide()
    logits[:, 9] = 5.0
    inputs = ScheduledSampling(Linear(0.2, 0.8, 10))
    for step, share in ((0, 0.2), (5, 0.5), (10, 0.8)):
        torch.manual_seed(step)
        found = read(inputs, pairs, logits, step)[:, 1:6]  # the end symbol is never read for a loss, but is no padding
        assert (found == 9).float().mean().item() == pytest.approx(share, abs=4 * 0.5 / math.sqrt(found.numel()))
        assert ((found == 9) | (found == 4)).all()


def test_temperature_draws_from_the_distribution() -> None:
    torch.manual_seed(3)
    logits, pairs = torch.randn(8, V), wide()
    for temperature in (1.0, 2.5):
        found = read(ScheduledSampling(Constant(1.0), temperature), pairs, logits)[:, 2]
        allowed = logits[1].index_fill(0, torch.tensor([0, 1, 2, 3]), -torch.inf)
        expected = (allowed / temperature).softmax(0)
        counted = found.bincount(minlength=V) / len(found)
        assert (counted - expected).abs().max() < 4 * 0.5 / math.sqrt(len(found))


def test_the_loss_is_cross_entropy_s_after_these_inputs_and_the_first_pass_gets_no_gradient() -> None:
    model, pairs = build(), batch()
    loss = CrossEntropy(0.1, ALWAYS).build(TOOLS)(model, pairs, 0)
    loss.total.backward()  # type: ignore[no-untyped-call]
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    with torch.no_grad():
        memory = model.encode(pairs.source, pairs.source_mask)
        inputs = ALWAYS.build(TOOLS)(model, pairs, memory, 0)
    assert not torch.equal(inputs, pairs.inputs)
    logits, _ = model.advance(inputs, model.start(model.encode(pairs.source, pairs.source_mask)))
    gold = pairs.gold.masked_fill(~pairs.target_mask, -100)
    expected = F.cross_entropy(logits.flatten(0, 1), gold.flatten(), reduction="sum", label_smoothing=0.1)
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.total, expected)
    assert loss.count == pairs.target_mask.sum()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("inputs", [ScheduledSampling(Constant(0.5), 1.0), InputNoise(0.3, 0.2)])
def test_draws_come_from_the_global_generator(inputs: InputsChoice) -> None:
    model, objective, totals = build(), CrossEntropy(0.1, inputs).build(TOOLS), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        totals.append(objective(model, batch(), 0).total.item())
    assert totals[0] == totals[1] != totals[2]


def test_under_autocast_every_weight_learns() -> None:
    """Weights cast in the pass without gradient must not stand in the one with it."""
    model = build()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = CrossEntropy(0.1, ALWAYS).build(TOOLS)(model, batch(), 0)
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(
        weight.grad is not None and weight.grad.any() for weight in model.decoder.parameters() if weight.dim() > 1
    )


def test_targets_of_nothing_but_the_end() -> None:
    empty = collate([[4]], [[]], SYMBOLS, SYMBOLS)
    for inputs in (TeacherForcing(), ALWAYS, InputNoise(0.5, 0.5)):
        assert read(inputs, empty).tolist() == [[SYMBOLS.bos]]


# -- noise -----------------------------------------------------------------------------------------------------------


def test_noise_in_the_shares_requested_and_nowhere_else() -> None:
    torch.manual_seed(1)
    pairs = wide()
    found = read(InputNoise(replace=0.3, drop=0.2), pairs)
    assert torch.equal(found[:, 0], pairs.inputs[:, 0])
    assert torch.equal(found[:, 6:], pairs.inputs[:, 6:])
    inside = found[:, 1:6].flatten()
    error = 4 * 0.5 / math.sqrt(len(inside))
    assert (inside == SYMBOLS.unk).float().mean().item() == pytest.approx(0.2, abs=error)
    # a random token is the right one once in seven
    assert (inside == 4).float().mean().item() == pytest.approx(0.5 + 0.3 / 7, abs=error)
    for token in range(5, V):
        assert (inside == token).float().mean().item() == pytest.approx(0.3 / 7, abs=error)
    assert not torch.isin(inside, torch.tensor([SYMBOLS.pad, SYMBOLS.bos, SYMBOLS.eos])).any()


def test_all_can_be_dropped() -> None:
    pairs = batch()
    found = read(InputNoise(replace=0.0, drop=1.0), pairs)
    changed = found != pairs.inputs
    changeable = pairs.target_mask.clone()
    changeable[:, 0] = False
    assert torch.equal(changed, changeable)
    assert (found[changed] == SYMBOLS.unk).all()
    assert InputNoise(replace=0.0, drop=1.0).build()  # needs no vocabulary


def test_replacing_needs_the_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"ObjectiveContext\(vocabulary="):
        InputNoise(replace=0.1).build()


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_read_and_written() -> None:
    override = "objective.inputs={kind='scheduled_sampling',temperature=1,schedule={kind='exponential',end=0.4}}"
    config = configs.load(Config, None, [override])
    expected = ScheduledSampling(Exponential(0.0, 0.4, 10_000), 1.0)
    assert config.objective == CrossEntropy(inputs=expected)
    assert "exponential" in configs.dump(config)
    assert configs.load(Config, None, ["objective.inputs=input_noise"]).objective == CrossEntropy(inputs=InputNoise())
    assert Config().objective == CrossEntropy(inputs=TeacherForcing())


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("{kind='input_noise',replace=1.5}", "replace: expected a probability from 0 to 1, got 1.5"),
        ("{kind='input_noise',replace=0.6,drop=0.5}", "drop: expected at most 1 together with replace, got 0.5 + 0.6"),
        ("{kind='scheduled_sampling',temperature=-1}", "temperature: expected 0 (the most probable token) or more"),
        ("{kind='scheduled_sampling',schedule.steps=0}", "schedule.steps: expected at least 1 update, got 0"),
        ("{kind='scheduled_sampling',schedule.end=2}", "schedule.end: expected a probability from 0 to 1, got 2.0"),
        (
            "{kind='scheduled_sampling',schedule={kind='constant',probability=-1}}",
            "schedule.probability: expected a probability from 0 to 1, got -1.0",
        ),
        ("{kind='scheduled_sampling',schedule=cubic}", "schedule.kind: 'cubic' is not one of linear, exponential"),
    ],
)
def test_settings_that_cannot_be(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        configs.load(Config, None, [f"objective.inputs={override}".replace("=cubic", "='cubic'")])
    assert f"objective.inputs.{expected}" in str(error.value)
