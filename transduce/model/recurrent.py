"""Recurrent encoders and decoders, with attention and without: machine translation before the Transformer.

A fixed vector (Sutskever et al. 2014; Cho et al. 2014), attention before the cell (Bahdanau et al. 2015) or after it
(Luong et al. 2015). h_t = f(U x_t + W h_{t-1}): word t waits for word t - 1, in training too.
Shapes: B batch, S source length, T target length, D d_model, L layers, H heads, K = D / H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from transduce.core.bounds import LAYERS, Bounds, check_bounds
from transduce.core.errors import ConfigError
from transduce.kernels.packing import PADDED, PaddedLayout
from transduce.model.attention import Attention, AttentionMask, Trace
from transduce.model.contract import DecoderState, Memory
from transduce.model.encoder_decoder import AttentionConfig, TopDecoder
from transduce.model.layers import Dropout
from transduce.model.scores import Additive, Bilinear, Score, ScoreConfig

Cell = Literal["lstm", "gru", "elman"]
CELLS: dict[Cell, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "elman": nn.RNN}
Summary = Literal["ends", "last", "mean"]
Carried = tuple[Tensor, ...]  # the recurrent state: hidden state, and an LSTM's cell state


class Recurrence(nn.Module):
    """One recurrent layer over a sequence: one call of torch's kernel, whatever the length."""

    def __init__(self, cell: Cell, inputs: int, width: int) -> None:
        super().__init__()
        # torch's cells: each gate has two biases, and the GRU applies its reset after the product (Cho et al.: before).
        self.cells = CELLS[cell](inputs, width, batch_first=True)
        self.pair = cell == "lstm"

    def stacked(self) -> dict[Tensor, int]:
        """The gates' matrices: torch stacks those that read the input, and those that read the state, in one each."""
        return {
            matrix: matrix.size(0) // self.cells.hidden_size for matrix in self.cells.parameters() if matrix.dim() == 2
        }

    def forward(self, x: Tensor, carried: Carried | None = None) -> tuple[Tensor, Carried]:
        """Read x (B, T, inputs) after `carried` (each (B, width), None for zeros): states (B, T, width), and the last.

        Runs in the weights' precision even under bf16: errors accumulate along a sentence, and torch's autocast would
        run cuDNN's cells in fp16.
        """
        self.cells.train(
            torch.is_grad_enabled()
        )  # cuDNN gives gradients only in training mode; there is no dropout here
        precision = next(self.cells.parameters()).dtype
        with torch.autocast(x.device.type, enabled=False):
            before = tuple(
                tensor.to(precision).unsqueeze(0).contiguous() for tensor in carried or ()
            )  # torch wants layers first
            out, after = self.cells(x.to(precision), (before if self.pair else before[0]) if before else None)
        return out, tuple(tensor.squeeze(0) for tensor in (after if self.pair else (after,)))


def reversal(mask: Tensor) -> Tensor:
    """Indices (B, S) that reverse the real part of each row of mask (B, S) and leave its padding; self-inverse."""
    position = torch.arange(mask.size(1), device=mask.device)
    length = mask.sum(1, keepdim=True)
    return torch.where(position < length, length - 1 - position, position)


# -- the encoder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecurrentEncoder:
    """Config of a recurrent encoder; bidirectional ones (Schuster and Paliwal 1997) have half the width each way."""

    kind: ClassVar[str] = "recurrent"
    layers: Annotated[int, Bounds(1, LAYERS)] = 2
    cell: Cell = "lstm"
    directions: Literal[2, 1] = 2

    def __post_init__(self) -> None:
        check_bounds(self)

    def check_width(self, d_model: int) -> None:
        if d_model % self.directions:
            raise ConfigError(f"directions: 2 share d_model = {d_model}, which is odd; make it even, or directions = 1")

    def build(self, d_model: int, dropout: float) -> RecurrentEncoderStack:
        return RecurrentEncoderStack(self, d_model, dropout)


class RecurrentEncoderStack(nn.Module):
    """A stack of recurrent layers: source vectors in, the memory of every layer out."""

    def __init__(self, config: RecurrentEncoder, d_model: int, dropout: float) -> None:
        super().__init__()
        config.check_width(d_model)
        width = d_model // config.directions

        def layers() -> nn.ModuleList:
            return nn.ModuleList(Recurrence(config.cell, d_model, width) for _ in range(config.layers))

        self.forwards = layers()
        self.backwards = layers() if config.directions == 2 else None
        self.dropout = Dropout(dropout)  # on the input of each layer, never along time (Zaremba et al. 2014)

    def forward(self, x: Tensor, mask: Tensor, trace: Trace | None = None, layout: PaddedLayout = PADDED) -> Memory:
        """Encode x (B, S, D), mask (B, S) True at real tokens, padding last: it follows real tokens either way."""
        reversed_positions = reversal(mask).unsqueeze(-1)  # (B, S, 1)
        outputs: list[Tensor] = []
        for number, layer in enumerate(self.forwards):
            x = self.dropout(x)
            out, _ = layer(x)
            if self.backwards is not None:
                back, _ = self.backwards[number](x.gather(1, reversed_positions.expand_as(x)))
                out = torch.cat((out, back.gather(1, reversed_positions.expand_as(back))), dim=-1)  # (B, S, D)
            x = out
            outputs.append(x)
            if trace is not None:
                trace[f"encoder.{number}.out"] = x
        return Memory(tuple(outputs), mask)


# -- the decoder's choices --------------------------------------------------------------------------------------------


class RecurrentAttentionConfig(AttentionConfig, Protocol):
    """Config of the attention of a recurrent decoder to the source."""

    @property
    def heads(self) -> int:
        """Number of attention heads; 0 for none."""
        ...

    def decoder(self, config: RecurrentDecoder, d_model: int, dropout: float) -> RecurrentStack:
        """Build the decoder stack with this attention."""
        ...


@dataclass(frozen=True)
class Luong(Attention):
    """Attention after the cells: queries from s_t, and out = tanh(W [c_t; s_t]); parallel over words in training.

    Without input feeding, which would make training sequential. Scores compare projected states, as everywhere here;
    Luong's "dot" and "general" (our `bilinear`) project neither side.
    """

    heads: int = 1
    score: Bilinear | Score | ScoreConfig = Bilinear()

    def decoder(self, config: RecurrentDecoder, d_model: int, dropout: float) -> RecurrentStack:
        return LuongStack(config, self.build(d_model), d_model, dropout)


@dataclass(frozen=True)
class Bahdanau(Attention):
    """Attention before the cells: queries from s_{t-1} of the top layer, and the first layer reads [y; c_t].

    Training is sequential over words. The output is tanh(W [s_t; c_t; y]), where they have maxout.
    """

    heads: int = 1
    score: Additive | Score | ScoreConfig = Additive()

    def decoder(self, config: RecurrentDecoder, d_model: int, dropout: float) -> RecurrentStack:
        return BahdanauStack(config, self.build(d_model), d_model, dropout)


@dataclass(frozen=True)
class FixedVector:
    """No attention: the source summary is the first state (Sutskever), or also read beside every word (Cho)."""

    heads: ClassVar[int] = 0
    every_step: bool = False

    def check_width(self, d_model: int) -> None:
        """Accept any width."""

    def decoder(self, config: RecurrentDecoder, d_model: int, dropout: float) -> RecurrentStack:
        return FixedVectorStack(config, self.every_step, d_model, dropout)


RecurrentAttention = Luong | Bahdanau | FixedVector


@dataclass(frozen=True)
class RecurrentDecoder(TopDecoder):
    """Config of a recurrent decoder, on the top of any encoder.

    `summary` is the vector that the first state is computed from: the first and the last real position of the source
    (so a bidirectional encoder's last forward and last backward state are both in it), the last alone, or the mean of
    all.
    """

    kind: ClassVar[str] = "recurrent"
    layers: Annotated[int, Bounds(1, LAYERS)] = 2
    cell: Cell = "lstm"
    attention: RecurrentAttention | RecurrentAttentionConfig = Luong()
    summary: Summary = "ends"

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def cross_heads(self) -> tuple[int, ...]:
        """The number of cross-attention heads in each layer: only the last has any."""
        return (0,) * (self.layers - 1) + (self.attention.heads,)

    def build(self, d_model: int, dropout: float, encoder_layers: int) -> RecurrentStack:
        return self.attention.decoder(self, d_model, dropout)


# -- the decoder ------------------------------------------------------------------------------------------------------


def summarise(memory: Memory, summary: Summary) -> Tensor:
    """Summarise the source in a vector (B, D), or (B, 2 D) for both ends."""
    states = memory.layers[-1]
    real = memory.mask.unsqueeze(-1)  # (B, S, 1)
    if summary == "mean":
        return (states * real).sum(1) / real.sum(1).clamp(min=1)
    last_position = (memory.mask.sum(1) - 1).clamp(min=0).view(-1, 1, 1)
    last = states.gather(1, last_position.expand(-1, 1, states.size(2))).squeeze(1)  # (B, D)
    return last if summary == "last" else torch.cat((states[:, 0], last), dim=-1)


class RecurrentStack(nn.Module):
    """Base of recurrent decoders: cells that start from a summary of the source; subclasses add attention."""

    def __init__(self, config: RecurrentDecoder, fed: int, d_model: int, dropout: float) -> None:
        """Build the layers; the first reads `fed` numbers beside each word."""
        super().__init__()
        config.check_width(d_model)
        self.summary = config.summary
        self.layers = nn.ModuleList(
            Recurrence(config.cell, d_model + (0 if number else fed), d_model) for number in range(config.layers)
        )
        self.parts = 2 if config.cell == "lstm" else 1
        # tanh of a learned map (Bahdanau, appendix A.2.2), for every layer and for an LSTM's cell state alike.
        width = d_model * (2 if config.summary == "ends" else 1)
        self.bridge = nn.Linear(width, self.parts * config.layers * d_model)
        self.dropout = Dropout(dropout)

    def stacked(self) -> dict[Tensor, int]:
        """The map to the first states, which stacks one map per layer."""
        return {self.bridge.weight: self.parts * len(self.layers)}

    def first(self, memory: Memory) -> Carried:
        """The initial recurrent state: one or two tensors (B, L, D)."""
        initial: Tensor = torch.tanh(self.bridge(summarise(memory, self.summary)))
        return initial.view(initial.size(0), self.parts, len(self.layers), -1).unbind(1)

    def run(self, x: Tensor, carried: Carried) -> tuple[list[Tensor], Carried]:
        """Run all layers over x (B, T, D + fed) after `carried`: each layer's states (B, T, D), and the new state."""
        outputs: list[Tensor] = []
        after: list[Carried] = []
        for number, layer in enumerate(self._recurrences()):
            x = x if number == 0 else self.dropout(x)
            x, state = layer(x, tuple(tensor[:, number] for tensor in carried))
            outputs.append(x)
            after.append(state)
        return outputs, tuple(torch.stack(tensors, dim=1) for tensors in zip(*after, strict=True))

    def traced(self, outputs: list[Tensor], trace: Trace | None) -> Tensor:
        """Return the last layer's output, which predicts the next word; a trace records all."""
        if trace is not None:
            trace |= {f"decoder.{number}.out": x for number, x in enumerate(outputs)}
        return self.dropout(outputs[-1])  # type: ignore[no-any-return]

    def _recurrences(self) -> Iterator[Recurrence]:
        return (cast("Recurrence", layer) for layer in self.layers)


class FixedVectorStack(RecurrentStack):
    """A decoder that sees only the source summary."""

    def __init__(self, config: RecurrentDecoder, every_step: bool, d_model: int, dropout: float) -> None:
        fed = d_model * (2 if config.summary == "ends" else 1) if every_step else 0
        super().__init__(config, fed, d_model, dropout)
        self.every_step = every_step

    def start(self, memory: Memory) -> DecoderState:
        return DecoderState(summarise(memory, self.summary) if self.every_step else None, self.first(memory), 0)

    def forward(
        self, x: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D) after `state`; padding comes last, so no mask is needed."""
        x = self.dropout(x)
        if self.every_step:
            x = torch.cat((x, state.static.unsqueeze(1).expand(-1, x.size(1), -1)), dim=-1)
        outputs, carried = self.run(x, state.cache)
        return self.traced(outputs, trace), replace(state, cache=carried, length=state.length + x.size(1))


@dataclass(frozen=True)
class RecurrentSource:
    """Keys and values (B, G, S, K) of the encoder's top, and its mask (B, 1, 1, S)."""

    key: Tensor
    value: Tensor
    mask: Tensor


class AttentionStack(RecurrentStack):
    """Base of decoders with one cross-attention, traced as the last layer's."""

    def __init__(
        self, config: RecurrentDecoder, attention: nn.Module, fed: int, joined: int, d_model: int, dropout: float
    ) -> None:
        """Build the layers; the predicting vector is made of `joined` vectors (B, T, D)."""
        super().__init__(config, fed, d_model, dropout)
        self.attention = attention
        self.join = nn.Linear(joined * d_model, d_model)
        self.name = f"decoder.{config.layers - 1}.cross"

    def start(self, memory: Memory) -> DecoderState:
        key, value = self.attention.project_kv(memory.layers[-1])  # type: ignore[operator]
        return DecoderState(RecurrentSource(key, value, memory.mask[:, None, None, :]), self.first(memory), 0)

    def attend(self, x: Tensor, source: RecurrentSource, trace: Trace | None) -> Tensor:
        """Attend from x (B, T, D) to the source: the context (B, T, D)."""
        context: Tensor = self.attention(
            x, source.key, source.value, AttentionMask(source.mask, trace=trace, name=self.name)
        )
        return context

    def joined(self, *parts: Tensor) -> Tensor:
        return torch.tanh(self.join(torch.cat(parts, dim=-1)))


class LuongStack(AttentionStack):
    """Luong's decoder: all cells, then attention from their states."""

    def __init__(self, config: RecurrentDecoder, attention: nn.Module, d_model: int, dropout: float) -> None:
        super().__init__(config, attention, 0, 2, d_model, dropout)

    def forward(
        self, x: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D) after `state`; padding comes last, so no mask is needed."""
        outputs, carried = self.run(self.dropout(x), state.cache)
        outputs[-1] = self.joined(self.attend(outputs[-1], state.static, trace), outputs[-1])
        return self.traced(outputs, trace), replace(state, cache=carried, length=state.length + x.size(1))


class BahdanauStack(AttentionStack):
    """Bahdanau's decoder, word by word: attention from the last state, then the cells."""

    def __init__(self, config: RecurrentDecoder, attention: nn.Module, d_model: int, dropout: float) -> None:
        super().__init__(config, attention, d_model, 3, d_model, dropout)

    def forward(
        self, x: Tensor, state: DecoderState, trace: Trace | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, DecoderState]:
        """Read x (B, t, D) after `state`; padding comes last, so no mask is needed."""
        x, carried = self.dropout(x), state.cache
        steps: list[list[Tensor]] = []
        contexts: list[Tensor] = []
        weights: list[Tensor] = []
        for word in torch.split(x, 1, dim=1):  # (B, 1, D)
            step_trace = None if trace is None else Trace()
            contexts.append(self.attend(carried[0][:, -1:], state.static, step_trace))
            outputs, carried = self.run(torch.cat((word, contexts[-1]), dim=-1), carried)
            steps.append(outputs)
            weights.extend((step_trace or {}).values())
        outputs = [torch.cat(layer, dim=1) for layer in zip(*steps, strict=True)]
        outputs[-1] = self.joined(outputs[-1], torch.cat(contexts, dim=1), x)
        if trace is not None:
            trace[self.name] = torch.cat(weights, dim=2)  # (B, H, t, S)
        return self.traced(outputs, trace), replace(state, cache=carried, length=state.length + x.size(1))
