"""What the contract tests of both kinds of decoder share: parts, their combinations, random models and sentences."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from transduce.data.batch import Batch, collate, pad_sources
from transduce.model.attention import Attention
from transduce.model.blocks import Activation, Residual
from transduce.model.contract import CacheShape, StaticDecoderState
from transduce.model.norms import BatchNormOverTokens, Norm
from transduce.model.positions import Learned, Positions
from transduce.model.scores import Score, Weights
from transduce.model.seq2seq import Model, Seq2Seq, Tying
from transduce.model.transformer import TransformerDecoder, TransformerEncoder, Wiring
from transduce.text.vocabulary import Symbols

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
V = 13
D = 16
CACHE = CacheShape(sentences=3, paths=2, source=8, length=6)


def choices(union: Any) -> list[Any]:
    """One value of each kind of a union, with its defaults (learned positions as long as these tests need)."""
    return [Learned(longest=40) if kind is Learned else kind() for kind in get_args(union)]


# What a Transformer can be made of. Two heads of 8 everywhere; grouped heads share one.
PARTS: dict[str, list[Any]] = {
    "score": choices(Score),
    "weights": choices(Weights),
    "key_heads": [0, 1],
    "key_width": [0, 4],
    "query_key_norm": [False, True],
    "positions": choices(Positions),
    "norm": choices(Norm),
    "residual": choices(Residual),
    "activation": list(get_args(Activation)),
    "wiring": choices(Wiring),
    "tie": list(get_args(Tying)),
    "window": [0, 2],
}


def covering(parts: Mapping[str, Sequence[Any]], strength: int, seed: int = 1) -> Iterator[dict[str, int]]:
    """Picks, by number, until every combination of `strength` parts has occurred together: a covering array.

    The full product has over a hundred thousand members. Faults come from few parts meeting; all threes do meet here.
    """
    chooser = random.Random(seed)
    names = list(parts)
    missing = {
        tuple(zip(group, numbers, strict=True))
        for group in itertools.combinations(names, strength)
        for numbers in itertools.product(*(range(len(parts[name])) for name in group))
    }
    while missing:
        wanted = min(missing)
        tries = [{name: chooser.randrange(len(parts[name])) for name in names} | dict(wanted) for _ in range(20)]
        covered = [set(itertools.combinations(pick.items(), strength)) & missing for pick in tries]
        best = max(range(len(tries)), key=lambda i: len(covered[i]))
        missing -= covered[best]
        yield tries[best]


def transformer(pick: Mapping[str, int]) -> Model:
    """The Transformer made of the chosen parts, the same on both sides."""
    part = {name: PARTS[name][number] for name, number in pick.items()}
    attention = Attention(2, *(part[name] for name in ("key_heads", "key_width", "score", "weights", "query_key_norm")))
    shared = {name: part[name] for name in ("positions", "norm", "residual", "activation", "window")}
    return Model(
        d_model=D,
        dropout=0.0,
        tie=part["tie"],
        encoder=TransformerEncoder(2, attention, 24, **shared),
        decoder=TransformerDecoder(2, attention, 24, **shared, wiring=part["wiring"]),
    )


def randomised(config: Model) -> Any:
    """A model whose every weight is random: fresh biases and norms are 0 and 1, which would hide faults.

    In float64, where a law holds to the last digits or is broken.
    """
    torch.manual_seed(7)
    built = config.build(V, V, shared=True).eval().double()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter.add_(torch.randn_like(parameter) / 4)
        for name, buffer in built.named_buffers():
            if "running" in name:
                buffer.add_(torch.rand_like(buffer))
        if isinstance(built, Seq2Seq):
            settle_batch_norms(built)
    return built


def settle_batch_norms(model: Seq2Seq) -> None:
    """Move running statistics to those of a batch, as training does: far from them logits grow to 10^5 and more."""
    norms = [module for module in model.modules() if isinstance(module, BatchNormOverTokens)]
    if not norms:
        return
    batch, momentum = ragged(), norms[0].momentum
    for norm in norms:
        norm.momentum = 0.9
    model.train().advance(batch.target, model.start(model.encode(batch.source, batch.source_mask)))
    for norm in norms:
        norm.momentum = momentum
    model.eval()


def ragged(seed: int = 1) -> Batch:
    """Five pairs of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def sentence(length: int) -> list[int]:
        return torch.randint(4, V, (length,), generator=generator).tolist()

    sources, targets = [sentence(n) for n in (6, 1, 9, 4, 0)], [sentence(n) for n in (4, 8, 1, 6, 2)]
    return collate(sources, targets, SYMBOLS, SYMBOLS)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-8, rtol=1e-8)


def sentences(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in lengths]


def prefill(model: Any, state: StaticDecoderState, slots: list[int], sources: list[list[int]]) -> None:
    tokens, mask = pad_sources(sources, SYMBOLS)
    device = state.position.device
    model.prefill(state, torch.tensor(slots, device=device), tokens.to(device), mask.to(device))
