"""Terms beside cross-entropy: z-loss, CTC and length by independent sums; weights, steps, reports, configs."""

from __future__ import annotations

import itertools
import math
import tomllib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from term_models import SYMBOLS, TERMS, Said, V, aligned, build, said
from torch import Tensor
from torch.nn import functional as F

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.data.batch import collate
from transduce.experiment import Config
from transduce.model.seq2seq import CTCHead, LengthHead, Model
from transduce.objectives import NO_CONTEXT, Objective, ObjectiveContext, forward
from transduce.objectives.cross_entropy import CrossEntropy, RDrop
from transduce.objectives.terms import CTC, Distillation, GuidedAttention, Length, Term, ZLoss

TOOLS = ObjectiveContext(teacher=lambda folder: build(seed=9).requires_grad_(False).eval())
SOURCES, TARGETS = [[4, 5, 6, 7, 8], [9], [10, 11]], [[5, 5, 6, 7], [], [8, 9, 10, 11, 12]]


def objective(*terms: Term) -> Objective:
    return CrossEntropy(0.1, terms=terms).build(TOOLS)


def test_every_term_is_tried() -> None:
    assert {type(term) for term in TERMS.values()} == set(get_args(Term))


# -- each by itself ----------------------------------------------------------------------------------------------------


def test_z_loss_by_hand() -> None:
    batch = collate([[4]], [[5]], SYMBOLS, SYMBOLS, target_length=3)  # one token, the end symbol, padding
    logits = torch.full((1, 3, 3), 1e4)
    logits[0, :2] = torch.tensor([[0.0, math.log(2.0), math.log(3.0)], [1.0, 1.0, 1.0]])
    passed = forward(Said(logits), batch)
    expected = math.log(1 + 2 + 3) ** 2 + (1 + math.log(3)) ** 2
    assert ZLoss().build(NO_CONTEXT)(passed).item() == pytest.approx(expected, rel=1e-6)


def ways(frames: int, classes: int) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Every sequence of classes a frame, by what is read from it: repeats merged, then the last class left out."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for path in itertools.product(range(classes), repeat=frames):
        read = tuple(token for token, _ in itertools.groupby(path) if token != classes - 1)
        found.setdefault(read, []).append(path)
    return found


@pytest.mark.parametrize("target", [[], [4], [4, 5], [5, 5], [4, 5, 4]])
def test_ctc_is_the_sum_over_all_ways(target: list[int]) -> None:
    """Two source places (a word and the end symbol) of two frames each: 7^4 ways over six tokens and the blank."""
    batch = collate([[4]], [target], SYMBOLS, SYMBOLS, source_length=5, target_length=6)
    logits = 2 * torch.randn(1, 10, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = CTC().build(NO_CONTEXT)(said(batch, ctc=logits))
    log_probs = logits[0].log_softmax(-1)
    scores = [
        sum(log_probs[frame, token].item() for frame, token in enumerate(path)) for path in ways(4, 7)[(*target,)]
    ]
    expected = -math.log(sum(map(math.exp, scores)))
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_all_targets_of_ctc_together_have_probability_one() -> None:
    """Whatever the targets, if each of them is requested."""
    logits = torch.randn(1, 6, 7, generator=torch.Generator().manual_seed(2))
    total = 0.0
    for target in ways(4, 7):
        batch = collate([[4]], [target], SYMBOLS, SYMBOLS, source_length=3)
        total += math.exp(-CTC().build(NO_CONTEXT)(said(batch, ctc=logits)).item())
    assert total == pytest.approx(1.0, rel=1e-4)


def test_ctc_is_torch_s_sentence_by_sentence() -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    passed = forward(model, batch)
    expected = torch.zeros(())
    for source, target in zip(SOURCES, TARGETS, strict=True):
        alone = collate([source], [target], SYMBOLS, SYMBOLS)
        memory = model.encode(alone.source, alone.source_mask)
        log_probs = model.heads["ctc"](memory)[0].log_softmax(-1)
        frames, tokens = torch.tensor(3 * len(source) + 3), torch.tensor(len(target))
        expected = expected + F.ctc_loss(
            log_probs, torch.tensor(target, dtype=torch.long), frames, tokens, V, reduction="sum"
        )
    assert CTC().build(NO_CONTEXT)(passed).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_target_with_too_few_frames_adds_nothing_to_ctc() -> None:
    batch = collate([[4], [5]], [[4, 5, 4, 5, 4], [4]], SYMBOLS, SYMBOLS)
    logits = torch.randn(2, 4, 7, requires_grad=True)
    found = CTC().build(NO_CONTEXT)(said(batch, ctc=logits))
    only = CTC().build(NO_CONTEXT)(said(collate([[5]], [[4]], SYMBOLS, SYMBOLS), ctc=logits[1:]))
    assert found.item() == pytest.approx(only.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient[0].any()
    assert gradient[1].isfinite().all()


def test_length_by_hand() -> None:
    """Two tokens, none, and more than the last class can say."""
    batch = collate([[4], [4], [4]], [[5, 6], [], [5] * 9], SYMBOLS, SYMBOLS)
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    p = logits.double().softmax(-1).tolist()
    expected = -math.log(p[0][2]) - math.log(p[1][0]) - math.log(p[2][4])
    assert Length().build(NO_CONTEXT)(said(batch, length=logits)).item() == pytest.approx(expected, rel=1e-6)


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TERMS)
def test_the_weighted_sum_is_added_and_the_plain_one_reported(name: str) -> None:
    batch, model, term = aligned(SOURCES, TARGETS), build(), TERMS[name]
    plain, loss = objective()(model, batch, 0), objective(term)(model, batch, 0)
    added = term.build(TOOLS)(forward(model, batch, {}))
    assert added.abs() > 0.01
    assert loss.total.item() == pytest.approx(plain.total.item() + 0.7 * added.item(), rel=1e-5)
    assert loss.count == plain.count
    assert loss.metrics.keys() == {"nll", name}
    assert loss.metrics[name].item() == pytest.approx(added.item(), rel=1e-5)
    assert not loss.metrics[name].requires_grad
    assert torch.equal(loss.metrics["nll"], plain.metrics["nll"])


@pytest.mark.parametrize("name", TERMS)
def test_padding_changes_neither_sum_nor_gradient(name: str) -> None:
    found = []
    for longer in (0, 12):
        model = build()
        passed = forward(model, aligned(SOURCES, TARGETS, longer, longer), {})
        total = TERMS[name].build(TOOLS)(passed)
        gradients = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        found.append([total.detach(), *(gradient for gradient in gradients if gradient is not None)])
    assert len(found[0]) == len(found[1]) > 5
    for tight, loose in zip(*found, strict=True):
        torch.testing.assert_close(loose, tight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TERMS)
def test_a_batch_is_the_sum_of_its_sentences(name: str) -> None:
    model, term = build(), TERMS[name].build(TOOLS)
    whole = term(forward(model, aligned(SOURCES, TARGETS), {}))
    single = [aligned([source], [target]) for source, target in zip(SOURCES, TARGETS, strict=True)]
    assert whole.item() == pytest.approx(sum(term(forward(model, one, {})).item() for one in single), rel=1e-5)


@pytest.mark.parametrize("name", TERMS)
def test_a_term_ends_after_its_last_step(name: str) -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    ending = objective(replace(TERMS[name], until=3))
    plain = objective()(model, batch, 0)
    assert [name in ending(model, batch, step).metrics for step in range(5)] == [True, True, True, False, False]
    assert torch.equal(ending(model, batch, 3).total, plain.total)


@pytest.mark.parametrize("name", TERMS)
def test_half_precision_models_are_summed_in_single_precision(name: str) -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(TERMS[name])(model, batch, 0)
    assert loss.total.dtype == loss.metrics[name].dtype == torch.float32
    loss.total.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", TERMS)
def test_r_drop_has_terms_too(name: str) -> None:
    """Without dropout both passes are one, so that R-Drop is cross-entropy, terms and all."""
    batch, model = aligned(SOURCES, TARGETS), build()
    once = objective(TERMS[name])(model, batch, 0)
    twice = RDrop(0.1, alpha=3.0, terms=(TERMS[name],)).build(TOOLS)(model, batch, 0)
    assert twice.total.item() == pytest.approx(once.total.item(), rel=1e-5)
    assert twice.metrics.keys() == once.metrics.keys()
    assert twice.metrics[name].item() == pytest.approx(once.metrics[name].item(), rel=1e-5)


def test_a_trace_is_made_only_while_a_term_wants_one() -> None:
    asked: list[bool] = []

    class Watched(Said):
        def states(self, tokens, state, trace=None, mask=None):  # type: ignore[no-untyped-def]
            asked.append(trace is not None)
            return super().states(tokens, state, trace, mask)

    batch = aligned(SOURCES, TARGETS)
    shape = (3, 2, batch.gold.size(1), batch.source.size(1))
    model = Watched(torch.zeros(*batch.gold.shape, V), {"decoder.0.cross": torch.ones(shape)})
    objective(ZLoss())(model, batch, 0)
    guided = objective(ZLoss(), GuidedAttention(until=2))
    for step in range(4):
        guided(model, batch, step)
    assert asked == [False, True, True, False, False]


def test_the_weight_of_cross_entropy_itself() -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    plain, half = objective()(model, batch, 0), CrossEntropy(0.1, weight=0.5).build()(model, batch, 0)
    assert half.total.item() == pytest.approx(0.5 * plain.total.item(), rel=1e-6)
    assert torch.equal(half.metrics["nll"], plain.metrics["nll"])
    none = CrossEntropy(0.1, weight=0.0, terms=(ZLoss(1.0),)).build()(model, batch, 0)
    assert torch.equal(none.total.detach(), none.metrics["z_loss"])


def test_two_terms_of_one_kind_are_reported_apart() -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    loss = objective(GuidedAttention(layer=0), GuidedAttention(layer=1))(model, batch, 0)
    assert loss.metrics.keys() == {"nll", "guided_attention", "guided_attention_1"}
    assert loss.metrics["guided_attention"] != loss.metrics["guided_attention_1"]


# -- configs -----------------------------------------------------------------------------------------------------------

HEADS = "model.heads=['ctc', {kind='length', longest=50}]"


def test_every_term_is_written_and_read_back() -> None:
    objective = CrossEntropy(0.1, terms=tuple(TERMS.values()))
    given = Config(model=Model(heads=(CTCHead(4), LengthHead(50))), objective=objective)
    text = configs.dump(given)
    assert text.count("[[objective.terms]]") == len(TERMS)
    assert configs.parse(Config, tomllib.loads(text)) == given


def test_terms_from_the_command_line() -> None:
    terms = "objective.terms=[{kind='ctc'}, {kind='length', weight=0.2}, 'z_loss']"
    read = configs.load(Config, None, [HEADS, terms])
    assert read.objective.terms == (CTC(0.3), Length(0.2), ZLoss(1e-4))
    assert read.model.heads == (CTCHead(2), LengthHead(50))
    one = configs.load(Config, None, ["objective.kind=r_drop", "objective.terms.kind=z_loss", "objective.alpha=1.0"])
    assert one.objective == RDrop(alpha=1.0, terms=(ZLoss(),))


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (
            "'ctc'",
            "objective.terms[0].kind: this term trains a head that the model has not; set model.heads=['ctc']",
        ),
        ("['z_loss', 'length']", "objective.terms[1].kind: this term trains a head that the model has not"),
        ("[{kind='z_loss', weight=-1}]", "objective.terms[0].weight: expected 0 or more, got -1.0"),
        ("[{kind='z_loss', until=-1}]", "objective.terms[0].until: expected a step, or 0 for all of them, got -1"),
        ("[{kind='guided_attention', width=0}]", "objective.terms[0].width: expected a number above 0, got 0.0"),
        ("[{kind='guided_attention', heads=[-1]}]", "objective.terms[0].heads: expected numbers from 0, got [-1]"),
        (
            "[{kind='guided_alignment', layer=6}]",
            "objective.terms[0].layer: expected a decoder layer from 0 to 5, or from -6 to -1 counted from the top,"
            " got 6",
        ),
        ("'distillation'", "objective.terms.teacher: expected the run folder of a trained model, such as runs/teacher"),
        (
            "[{kind='distillation', teacher='runs/a', temperature=0}]",
            "objective.terms[0].temperature: expected a number above 0, got 0.0",
        ),
        ("'attention'", "objective.terms.kind: 'attention' is not one of guided_attention, guided_alignment, ctc"),
    ],
)
def test_what_is_refused_when_the_config_is_read(terms: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, [f"objective.terms={terms}"])
    assert expected in str(caught.value)


RECURRENT = ["model.decoder.kind=recurrent", "model.decoder.layers=3"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [*RECURRENT, "model.decoder.attention=fixed_vector", "objective.terms=guided_attention"],
            "objective.terms[0].layer: guided attention needs a layer that attends to the source, and layer -1 of"
            " model.decoder does not; choose a decoder that does, or leave the term out",
        ),
        (
            [*RECURRENT, "objective.terms=guided_alignment"],
            "objective.terms[0].layer: guided attention needs a layer that attends to the source, and layer -2 of"
            " model.decoder does not; choose layer 2, or leave the term out",
        ),
        (
            [*RECURRENT, "objective.terms=[{kind='guided_attention', heads=[1]}]"],
            "objective.terms[0].heads: expected numbers from 0 to 0 in this layer, got [1]",
        ),
        (
            ["objective={kind='r_drop', terms=[{kind='guided_alignment', heads=[0, 8]}]}"],
            "objective.terms[0].heads: expected numbers from 0 to 7 in this layer, got [0, 8]",
        ),
        (
            ["objective={kind='minimum_risk', cross_entropy={terms=[{kind='guided_attention', heads=[9]}]}}"],
            "objective.cross_entropy.terms[0].heads: expected numbers from 0 to 7 in this layer, got [9]",
        ),
    ],
)
def test_attention_that_is_not_there_is_refused_when_the_config_is_read(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, overrides)
    assert expected in str(caught.value)


def test_of_a_decoder_that_does_not_say_where_it_looks_the_run_will_tell() -> None:
    model: Any = SimpleNamespace(decoder=SimpleNamespace(layers=2))  # a class of the user's own
    GuidedAttention(heads=(99,)).check(model)


def test_a_negative_weight_of_the_cross_entropy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight: expected 0 or more, got -0\.5"):
        CrossEntropy(weight=-0.5)


def test_a_teacher_is_a_tool() -> None:
    with pytest.raises(ValueError, match="an objective with a teacher is built with ObjectiveContext"):
        CrossEntropy(terms=(Distillation(teacher="runs/a"),)).build()


def gradient_of(total: Tensor, model: torch.nn.Module) -> Tensor:
    gradients = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def test_a_weight_of_0_leaves_the_gradient_as_it_was() -> None:
    batch, model = aligned(SOURCES, TARGETS), build()
    plain = gradient_of(objective()(model, batch, 0).total, model)
    idle = gradient_of(objective(ZLoss(0.0))(model, batch, 0).total, model)
    torch.testing.assert_close(idle, plain)
