"""The drivers of decoding behind one interface, for the laws of test_decoding_laws.py.

"table" and "short table" are the eager search over a Markov chain; "eager", "static" and "native" decode one random
Transformer, whose log-probabilities after every prefix are worked out beforehand, in double precision and without any
search.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from both_engines import assert_same, needs_core
from markov_model import EOS, SYMBOLS, Markov, markov, memory
from markov_model import V as WORDS_END
from torch import Tensor

from transduce.data.batch import pad_sources
from transduce.engines.native import engine as native
from transduce.engines.native import weight_file
from transduce.engines.native.engine import NativeEngine
from transduce.engines.native.lowering import lower
from transduce.engines.torch.engine import TorchEngine
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.search import Hypothesis
from transduce.search.constraints import UNCONSTRAINED, DecodingConstraints
from transduce.search.settings import Beam, Greedy, Limits, Sample
from transduce.search.static_search import KNOWN_LIMITS

DRIVERS = ["table", "short table", "eager", "static", pytest.param("native", marks=needs_core)]
V = 84  # of the Transformer: a static beam has at most half as many paths
DEPTH = 5  # the longest prefix after which log-probabilities are worked out beforehand
WORDS = range(2, WORDS_END)  # what may be written besides the end symbol
PREFIXES = list(itertools.product(WORDS, repeat=DEPTH))
SEARCHES = [Greedy, Sample, Beam]
CPU = torch.device("cpu")


def source_length(number: int) -> int:
    """The length of a sentence's source, its end symbol included."""
    return 2 + number % 4


@dataclass
class Table:
    """Log-probabilities of the first tokens after every prefix, (5,) each, by sentence and prefix."""

    after: list[dict[tuple[int, ...], list[float]]] = field(default_factory=list)

    def log_probs(self, number: int, tokens: tuple[int, ...]) -> list[float]:
        return [self.after[number][tokens[:place]][token] for place, token in enumerate(tokens)]


@dataclass
class Driver:
    """A way to decode sentences, which are known by number, and what its model gives each translation."""

    name: str
    model: Any  # log_probs(sentence, tokens): those of Table or Markov
    sentences: int
    engine: Any = None
    sources: list[list[int]] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether numbers are bit-identical in any batch, which torch's matrix products do not promise."""
        return self.name.endswith("table") or self.name == "native"

    @property
    def wide(self) -> tuple[int, int]:
        """Paths of a beam that has all translations up to a length, and that length."""
        return (400, 5) if self.name.endswith("table") else (40, 3)

    def first(self, count: int) -> range:
        return range(min(count, self.sentences))

    def limits(self, longest: int = 512, **settings: Any) -> Limits:
        """Limits under which only `WORDS` and the end symbol are written."""
        others = () if self.name.endswith("table") else tuple(range(WORDS_END, V))
        return Limits(longest=longest, **settings | {"forbid": (*settings.get("forbid", ()), *others)})

    def search(
        self, numbers: Sequence[int], search: Any, constraints: Sequence[DecodingConstraints] = ()
    ) -> list[list[Hypothesis]]:
        """Hypotheses of these sentences, best first; a sentence's number is the key of its draws."""
        keys, constraints = list(numbers), constraints or [UNCONSTRAINED] * len(numbers)
        if self.name.endswith("table"):
            lengths = [source_length(number) for number in keys]
            source = memory(keys, lengths, width=9 if len(keys) == 1 else None)
            return search.build()(self.model, source, SYMBOLS, constraints, keys=keys)  # type: ignore[no-any-return]
        if self.name == "native" and (left := search.limits.beyond(native.KNOWN_LIMITS)):
            pytest.skip(f"the native engine refuses {left[0]}")
        texts = [self.sources[number] for number in keys]
        if self.name == "static":
            forbidden = {*search.limits.forbid}
            with torch.inference_mode():
                found = self.engine.cache_pool.search(texts, search, constraints, keys)
            eager = EOS in forbidden or forbidden >= {*WORDS} or bool(search.limits.beyond(KNOWN_LIMITS))
            assert (found is None) == eager, "what the eager search does instead"
            if found is not None:
                return found  # type: ignore[no-any-return]
        return self.engine.search(texts, search, constraints, keys)  # type: ignore[no-any-return]

    def assert_same(self, found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
        """Compare bit for bit where this driver promises it."""
        if self.exact:
            assert found == expected
        else:
            assert_same(found, expected)


def driver_of(name: str, folder: Path, equals: bool = False) -> Driver:
    """With `equals` every token is as probable as every other, always."""
    if name.endswith("table"):
        model = markov(25, seed=12) if name == "short table" else markov(60, seed=13)
        model.tables[..., EOS] += name == "short table"
        return Driver(name, Markov(torch.zeros_like(model.tables)) if equals else model, len(model.tables))
    config, model, sources, table = transformer(equals)
    if name == "native":
        path = folder / "model.native"
        weight_file.write(path, lower(config, model, quantize=False))
        return Driver(name, table, len(sources), NativeEngine(path, SYMBOLS, SYMBOLS, 2), sources)
    engine = TorchEngine(deepcopy(model), SYMBOLS, SYMBOLS, CPU, graphs="on" if name == "static" else "off")
    if name == "static":
        assert engine.cache_pool
        engine.cache_pool.places = 300  # too few for all sentences at once: slots are taken over
    return Driver(name, table, len(sources), engine, sources)


@cache
@torch.no_grad()
def transformer(equals: bool) -> tuple[Model, Any, list[list[int]], Table]:
    """A random Transformer whose translations differ and end at many lengths, and what it gives them."""
    generator = torch.Generator().manual_seed(2)
    stacks: Any = {"layers": 2, "attention": Attention(2), "d_ff": 24}
    config = Model(16, 0.0, "none", TransformerEncoder(**stacks), TransformerDecoder(**stacks), output_bias=True)
    model: Any = config.build(V, V, shared=True).eval()
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise / 4)
    lengths = [source_length(number) - 1 for number in range(12)]
    sources = [torch.randint(WORDS_END, V, (length,), generator=generator).tolist() for length in lengths]
    # Words and the end are as probable as each other on average, and others are rare: the history decides.
    model.output_bias.zero_()
    spread, mean = torch.std_mean(torch.cat([logits_after(model, source) for source in sources]), dim=(0, 1))
    usual = slice(EOS, WORDS_END)
    factor = 2 / spread[usual]
    model.output_embedding.weight[usual] *= factor[:, None]
    model.output_bias[usual] = 8 - mean[usual] * factor
    if equals:
        model.output_embedding.weight.zero_()
        model.output_bias.zero_()
    model.double()
    table = Table([probabilities_after(model, source) for source in sources])
    return config, model.float(), sources, table


def logits_after(model: Any, source: list[int]) -> Tensor:
    """After the start of each longest prefix and each of its tokens: (prefixes, DEPTH + 1, V)."""
    tokens, mask = pad_sources([source] * len(PREFIXES), SYMBOLS)
    begun = torch.tensor([(SYMBOLS.bos, *prefix) for prefix in PREFIXES])
    logits: Tensor = model.advance(begun, model.start(model.encode(tokens, mask)))[0]
    return logits


def probabilities_after(model: Any, source: list[int]) -> dict[tuple[int, ...], list[float]]:
    rows = logits_after(model, source).log_softmax(-1)[..., :WORDS_END].tolist()
    return {
        prefix[:length]: row[length] for prefix, row in zip(PREFIXES, rows, strict=True) for length in range(DEPTH + 1)
    }
