"""The native engine: a converted Transformer on the CPU, decoded in one call of the C++ core. Imports no torch.

Searches and scores equal the torch engine's; unsupported requests are refused by name, so that another engine may take
over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.core.errors import ConfigError, EngineRefusal, RunError, explaining_shortage
from transduce.core.processes import usable_cores
from transduce.engines.native import library
from transduce.engines.native.weight_format import verify
from transduce.search import UNNORMALIZED, Hypothesis, LengthPenalty, SearchConfig
from transduce.search.constraints import Automaton, CancelToken, DecodingConstraints, Phrase, check_one_path
from transduce.search.settings import Beam, Greedy, Limits, MinimumBayesRisk, Sample, check_tokens, require
from transduce.text.vocabulary import Symbols

if TYPE_CHECKING:  # numpy is slow to import, and only attention needs it
    import numpy as np
    from numpy.typing import NDArray

KNOWN_LIMITS = ("longest_ratio", "longest_extra", "longest", "shortest", "no_repeat", "forbid")  # that the core holds
_MOST_INCLUDES = 64  # per sentence, since they are bits of an integer


class NativeEngine:
    """A weight file written by `transduce convert`, opened for decoding. Safe to call from many threads at once."""

    def __init__(self, path: Path, source: Symbols, target: Symbols, threads: int = 0, kernels: str = "") -> None:
        """Open `path`; `threads` 0: every usable core; `kernels` "" the best of avx512, avxvnni, avx2 and portable."""
        library.library()  # fails here, not at the weights, if the core is not built
        with explaining_shortage(lambda: f"while opening {path}: free memory, or use a smaller model"):
            verify(path)
            try:
                self.core = library.Core(path, threads or usable_cores(), kernels)
            except library.CoreError as error:
                raise RunError(f"{path}: {error}. Convert the model again") from None
        self.path = path
        self.source = source
        self.target = target

    def check_sizes(self, source: int, target: int) -> None:
        """Refuse tokenizers whose vocabulary sizes differ from the weights'."""
        for side, pieces, rows in (
            ("source", source, self.core.source_vocabulary),
            ("target", target, self.core.target_vocabulary),
        ):
            if pieces != rows:
                raise RunError(
                    f"{self.path}: its weights have {rows:,} {side} pieces, and the {side} tokenizer beside them has"
                    f" {pieces:,}; convert the model again, or copy the whole folder again from where it came"
                )

    def search(
        self, sources: Sequence[Sequence[int]], search: SearchConfig,
        constraints: Sequence[DecodingConstraints], keys: Sequence[int],
    ) -> list[list[Hypothesis]]:  # fmt: skip
        """Hypotheses of each source, best first; none for a cancelled source."""
        if isinstance(search, MinimumBayesRisk):
            search = search.candidates
        options = self._options(search, constraints)
        assert isinstance(search, (Beam, Greedy, Sample))
        lengths = search.limits.lengths([len(tokens) + 1 for tokens in sources], constraints)
        written = self._run(options, sources, lengths, constraints, keys)[0]
        if isinstance(search, Beam):
            return [_ranked(of_sentence, search) for of_sentence in _read(written, self.target.eos, search.penalty)]
        return [_by_score(of_sentence) for of_sentence in _read(written, self.target.eos)]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each target token, the end symbol last."""
        written, _ = self._force(sources, targets, library.NO_LAYER)
        return [hypotheses[0][1] for hypotheses in written]

    @property
    def decoder_layers(self) -> int:
        """How many decoder layers `attend` can read one by one."""
        return self.core.layers

    def attend(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], layer: int | None
    ) -> list[NDArray[np.float32]]:
        """Attention of each target token to each source token (T, S)."""
        import numpy as np

        layers = self.core.layers
        if layer is not None and not -layers <= layer < layers:
            raise ConfigError(f"layer: expected a decoder layer from 0 to {layers - 1} or back from -1, got {layer}")
        chosen = library.EVERY_LAYER if layer is None else layer % layers
        weights = np.frombuffer(self._force(sources, targets, chosen)[1], dtype=np.float32)
        summed = self.core.heads * (layers if layer is None else 1)
        matrices, begin = [], 0
        for source, target in zip(sources, targets, strict=True):
            shape = len(target) + 1, len(source) + 1
            matrix = weights[begin : begin + shape[0] * shape[1]].reshape(shape) / np.float32(summed)
            matrices.append(matrix[:-1, :-1])
            begin += matrix.size
        return matrices

    def _force(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], traced: int
    ) -> tuple[list[_Written], bytes]:
        """Forced decoding of given targets to their end symbol: a search whose prefix is the whole target.

        With a `traced` layer the core computes attention alone, and the log-probabilities say nothing.
        """
        options = self._plain(library.FORCED, Limits())
        options.traced = traced
        constraints = [DecodingConstraints(prefix=(*target, self.target.eos)) for target in targets]
        lengths = [len(constraint.prefix) for constraint in constraints]
        return self._run(options, sources, lengths, constraints, [0] * len(sources))

    def _options(self, search: SearchConfig, constraints: Sequence[DecodingConstraints]) -> library.Options:
        if not isinstance(search, (Beam, Greedy, Sample)):
            raise EngineRefusal(f"native engine: it has no search '{type(search).__name__}'; use engine=torch")
        if isinstance(search, Beam):
            if search.groups > 1 or search.coverage > 0:
                option = "groups" if search.groups > 1 else "coverage"
                raise EngineRefusal(
                    f"native engine: its beam search has no '{option}'; use engine=torch, or leave it out"
                )
            most = max((len(constraint.include) for constraint in constraints), default=0)
            if most > _MOST_INCLUDES:
                raise EngineRefusal(
                    f"native engine: it includes {_MOST_INCLUDES} words at most, not {most}; use engine=torch"
                )
            options = self._plain(library.BEAM, search.limits)
            options.size, options.kept, options.length_penalty = search.size, search.n_best, search.length_penalty
            options.by_power, options.shrinking = search.length_normalization == "power", search.shrinking
            return options
        check_one_path(constraints)
        if isinstance(search, Greedy):
            return self._plain(library.GREEDY, search.limits)
        options = self._plain(library.SAMPLE, search.limits)
        options.samples, options.seed, options.top_k = search.samples, search.seed % 2**64, min(search.top_k, 2**31 - 1)
        options.temperature, options.top_p = search.temperature, search.top_p
        return options

    def _plain(self, kind: int, limits: Limits) -> library.Options:
        if unknown := limits.beyond(KNOWN_LIMITS):
            raise EngineRefusal(f"native engine: it has no limits.{unknown[0]}; use engine=torch")
        vocabulary = self.core.target_vocabulary
        highest = max(limits.forbid, default=-1)
        require(highest < vocabulary, "forbid", highest, f"token numbers below the vocabulary's size ({vocabulary})")
        never = sorted({*self.target.never, *limits.forbid})
        options = library.Options(kind=kind, size=1, kept=1, samples=1, shortest=limits.shortest)
        options.no_repeat, options.traced, options.temperature = min(limits.no_repeat, 2**31 - 1), library.NO_LAYER, 1.0
        options.bos, options.eos, options.top_p = self.target.bos, self.target.eos, 1.0
        options.never_count, options.never = len(never), (ctypes.c_int32 * len(never))(*never)
        return options

    def _run(
        self,
        options: library.Options,
        sources: Sequence[Sequence[int]],
        lengths: Sequence[int],
        constraints: Sequence[DecodingConstraints],
        keys: Sequence[int],
    ) -> tuple[list[_Written], bytes]:
        for name, parts in (("constraints", constraints), ("keys", keys)):
            if len(parts) != len(sources):
                raise ValueError(f"{name}: expected one a sentence, {len(sources)} in all, got {len(parts)}")
        excluded = _Shared([constraint.exclude for constraint in constraints])
        included = _Shared([constraint.include for constraint in constraints])
        for name, phrases in (
            ("prefix", [constraint.prefix for constraint in constraints]),
            ("exclude", list(chain.from_iterable(excluded.parts))),
            ("include", [phrase for include in included.parts for ways in include for phrase in ways]),
        ):
            check_tokens(name, max(chain.from_iterable(phrases), default=-1), self.core.target_vocabulary)
        self._check_lengths(max((len(source) + 1 for source in sources), default=0), max(lengths, default=0))
        sentences = [[*source, self.source.eos] for source in sources]
        arrays = library.Arrays(
            len(sources),
            any(constraint.cancel_token for constraint in constraints),
            *_joined(sentences),
            (ctypes.c_int32 * len(lengths))(*lengths),
            *_joined([constraint.prefix for constraint in constraints]),
            *excluded.arrays(_phrases),
            *included.arrays(_tables),
            (ctypes.c_uint64 * len(keys))(*(key % 2**64 for key in keys)),
            _cells([constraint.cancel_token for constraint in constraints]),
        )
        with explaining_shortage(lambda: _advice(options, sentences)):
            try:
                view = self.core.search(options, arrays)
            except library.CoreError as error:
                raise ValueError(f"native engine: {error}") from None
            try:
                return _copied(view, len(sources))
            finally:
                self.core.release(view)

    def _check_lengths(self, source: int, target: int) -> None:
        for what, length, most in (
            ("source", source, self.core.longest_source),
            ("translation", target, self.core.longest_target),
        ):
            if length > most:
                raise EngineRefusal(
                    f"native engine: a {what} may have up to {length} tokens, and this model's positions end at {most};"
                    " use engine=torch, a smaller limit, or cut the text"
                )


_Written = list[tuple[list[int], list[float], bool, int]]  # per hypothesis: tokens, log-probabilities, complete, number


def _advice(options: library.Options, sentences: Sequence[Sequence[int]]) -> str:
    """Advice on what to lower when memory ran out."""
    several = max(options.size, options.samples)
    beam = f", {several:,} hypotheses for each: lower the beam or the number of samples, or" if several > 1 else ":"
    return (
        f"with {len(sentences):,} texts at once, the longest of {max(map(len, sentences)):,} tokens{beam} give the"
        " translator fewer batch_tokens, or shorter texts"
    )


def _joined(parts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Concatenate sequences of numbers, with the end of each."""
    ends = list(accumulate(map(len, parts)))
    numbers = (ctypes.c_int32 * (ends[-1] if ends else 0))(*chain.from_iterable(parts))
    return numbers, (ctypes.c_int64 * len(ends))(*ends)


class _Shared:
    """Per-sentence options, each distinct object once: words of a request are one object for all its sentences."""

    def __init__(self, options: Sequence[Any]) -> None:
        distinct = {id(part): part for part in options}
        self.parts = list(distinct.values())
        number = {key: index for index, key in enumerate(distinct)}
        self._part_of = [number[id(part)] for part in options]

    def arrays(self, encode: Callable[[Any], Sequence[int]]) -> tuple[Any, Any, Any]:
        """Concatenate the numbers of all parts, with where each sentence's part begins and ends."""
        numbers, ends = _joined([encode(part) for part in self.parts])
        begins = [0, *ends][: len(self.parts)]
        count = len(self._part_of)
        return (
            numbers,
            (ctypes.c_int64 * count)(*(begins[part] for part in self._part_of)),
            (ctypes.c_int64 * count)(*(ends[part] for part in self._part_of)),
        )


def _phrases(exclude: Sequence[Phrase]) -> list[int]:
    """Encode phrases, each preceded by its length."""
    return [number for phrase in exclude for number in (len(phrase), *phrase)]


def _cells(cancel_tokens: Sequence[CancelToken | None]) -> Any:
    """Pointers to the cells that the core checks between steps for cancellation."""
    cell = ctypes.POINTER(ctypes.c_int32)
    return (cell * len(cancel_tokens))(
        *(cell() if token is None else ctypes.pointer(token.cell) for token in cancel_tokens)
    )


def _tables(include: Any) -> list[int]:
    """Encode the automaton as a row of numbers, in the order of search.h."""
    if not include:
        return []
    automaton = Automaton.of(include)
    tables: Iterable[Iterable[int]] = chain(automaton.goto, automaton.complete, automaton.rest)
    sizes = len(automaton.tokens), len(automaton.goto), len(automaton.needed)
    return [*sizes, *automaton.tokens, *map(int, chain.from_iterable(tables)), *automaton.needed]


def _copied(view: library.ResultView, sentences: int) -> tuple[list[_Written], bytes]:
    def copy(pointer: Any, count: int) -> list[Any]:
        return pointer[:count] if count else []  # a slice of a pointer is a list

    tokens, log_probs = copy(view.written, view.tokens), copy(view.log_probs, view.tokens)
    parts = [copy(part, view.hypotheses) for part in (view.lengths, view.complete, view.numbers)]
    ends = list(accumulate(parts[0], initial=0))
    hypotheses = [
        (tokens[begin:end], log_probs[begin:end], bool(complete), number)
        for (begin, end), complete, number in zip(pairwise(ends), *parts[1:], strict=True)
    ]
    ends_of_sentences = list(accumulate(copy(view.counts, sentences), initial=0))
    by_sentence = [hypotheses[begin:end] for begin, end in pairwise(ends_of_sentences)]
    return by_sentence, ctypes.string_at(
        view.weights, view.traced * ctypes.sizeof(ctypes.c_float)
    ) if view.traced else b""


def _read(
    written: list[_Written], eos: int, penalty: LengthPenalty = UNNORMALIZED
) -> list[list[tuple[int, Hypothesis]]]:
    """Pair each hypothesis of each sentence with its number."""
    return [
        [
            (number, Hypothesis.read(tokens, logs, eos, penalty, 0.0, complete))
            for tokens, logs, complete, number in hypotheses
        ]
        for hypotheses in written
    ]


def _by_score(hypotheses: list[tuple[int, Hypothesis]]) -> list[Hypothesis]:
    """Sort by score, ties by number."""
    return [hypothesis for _, hypothesis in sorted(hypotheses, key=lambda pair: (-pair[1].score, pair[0]))]


def _ranked(hypotheses: list[tuple[int, Hypothesis]], beam: Beam) -> list[Hypothesis]:
    """Sort finished ones first, then by score; the core returns paths at the limit only to fill up."""
    distinct: dict[tuple[int, ...], Hypothesis] = {}
    ordered = sorted((hypothesis for _, hypothesis in hypotheses), key=_best_first)
    for hypothesis in ordered:
        distinct.setdefault(hypothesis.tokens, hypothesis)
    return list(distinct.values())[: beam.n_best]


def _best_first(hypothesis: Hypothesis) -> tuple[bool, float]:
    return not hypothesis.finished, -hypothesis.score
