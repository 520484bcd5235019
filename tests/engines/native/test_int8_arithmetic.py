"""int8 as a whole: log-probabilities against the same arithmetic written again in numpy, for the paper's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from both_engines import SMALL, Pair, needs_core, opened, sources
from model_variants import SYMBOLS, V
from numpy.typing import NDArray

from transduce.model.positions import sinusoids

pytestmark = needs_core
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return opened(SMALL, tmp_path_factory.mktemp("int8"), quantize=True)


def whole(rows: Array, axis_scale: Array) -> Array:
    return np.rint(rows / axis_scale).clip(-127, 127)


def half(values: Array) -> Array:
    """Kept in the upper 16 bits of a float."""
    return torch.from_numpy(values).bfloat16().double().numpy()


class Simulation:
    """A post-norm Transformer with softmax attention; linear maps by integers, the rest in float64."""

    def __init__(self, weights: dict[str, Array], heads: int) -> None:
        self.weights, self.heads = weights, heads

    def multiply(self, weight: Array, x: Array) -> Array:
        weight_scale = np.maximum(np.abs(weight).max(1, keepdims=True), 1e-12) / 127
        scale = np.maximum(np.abs(x).max(1, keepdims=True), 1e-10) / 127
        return (whole(x, scale) @ whole(weight, weight_scale).T) * scale * weight_scale.T

    def linear(self, name: str, x: Array, factor: float = 1.0) -> Array:
        weight, bias = self.weights[f"{name}.weight"] * factor, self.weights[f"{name}.bias"] * factor
        return self.multiply(weight, x) + bias

    def norm(self, name: str, x: Array) -> Array:
        normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return normed * self.weights[f"{name}.norm.weight"] + self.weights[f"{name}.norm.bias"]

    def attend(self, name: str, x: Array, memory: Array, mask: Array, kept: bool) -> Array:
        width = x.shape[1] // self.heads
        query = self.linear(f"{name}.query", x, width**-0.5)
        key, value = self.linear(f"{name}.key", memory), self.linear(f"{name}.value", memory)
        if kept:
            key, value = half(key), half(value)
        outs = []
        for head in range(self.heads):
            own = slice(head * width, (head + 1) * width)
            scores = query[:, own] @ key[:, own].T + mask
            weights = np.exp(scores - scores.max(1, keepdims=True))
            outs.append(weights / weights.sum(1, keepdims=True) @ value[:, own])
        return self.linear(f"{name}.output", np.concatenate(outs, axis=1))

    def embed(self, side: str, tokens: list[int]) -> Array:
        table = self.weights[f"{side}_embedding.weight"][tokens]
        scale = np.maximum(np.abs(table).max(1, keepdims=True), 1e-12) / 127
        width = table.shape[1]
        return whole(table, scale) * scale * np.sqrt(width) + sinusoids(len(tokens), width).double().numpy()

    def feed_forward(self, name: str, x: Array) -> Array:
        inner = np.maximum(self.linear(f"{name}.feed_forward.inner", x), 0)
        return self.norm(f"{name}.around_feed_forward", x + self.linear(f"{name}.feed_forward.outer", inner))

    def log_probs(self, source: list[int], target: list[int]) -> Array:
        x = self.embed("source", source)
        for layer in range(2):
            name = f"encoder.layers.{layer}"
            looked = self.attend(f"{name}.attention", x, x, np.zeros((1, 1)), kept=False)
            x = self.feed_forward(name, self.norm(f"{name}.around_attention", x + looked))
        y = self.embed("target", target[:-1])
        causal = np.triu(np.full((len(y), len(y)), -np.inf), 1)
        for layer in range(2):
            name = f"decoder.layers.{layer}"
            y = self.norm(f"{name}.around_attention", y + self.attend(f"{name}.attention", y, y, causal, kept=True))
            looked = self.attend(f"{name}.cross", y, x, np.zeros((1, 1)), kept=True)
            y = self.feed_forward(name, self.norm(f"{name}.around_cross", y + looked))
        logits = self.multiply(self.weights["output_embedding.weight"], y)
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        return logits[np.arange(len(y)), target[1:]]


def test_log_probabilities_are_those_of_the_same_whole_numbers(pair: Pair) -> None:
    weights = {name: tensor.double().numpy() for name, tensor in pair.torch.model.state_dict().items()}
    simulation = Simulation(weights, heads=2)
    texts, targets = sources(20, V), sources(20, V, seed=2)
    native, exact, distances = pair.native.score(texts, targets), pair.torch.score(texts, targets), []
    for text, target, own, unrounded in zip(texts, targets, native, exact, strict=True):
        expected = simulation.log_probs([*text, SYMBOLS.eos], [SYMBOLS.bos, *target, SYMBOLS.eos])
        # A number just between two whole ones may fall to either: seldom, and by one step.
        np.testing.assert_allclose(own, expected, atol=0.05)
        distances.append((np.abs(own - expected).mean(), np.abs(np.array(own) - unrounded).mean()))
    simulated, from_floats = np.mean(distances, axis=0)
    assert simulated < 1e-3
    assert simulated < from_floats / 10  # so that rounding itself was seen


def test_what_is_quantized_is_near_what_was_trained(pair: Pair, tmp_path: Path) -> None:
    texts, targets = sources(20, V), sources(20, V, seed=2)
    for own, expected in zip(pair.native.score(texts, targets), pair.torch.score(texts, targets), strict=True):
        np.testing.assert_allclose(own, expected, atol=0.5)
