"""The only path from text to text: cut what is too long, tokenize, batch, search, detokenize, join.

The command line, validation during training and the tests all translate through this class. It imports no torch;
what runs the model is an `Engine`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast, overload

import numpy as np

from transduce.data.grouping import group_by_length
from transduce.data.segment import Part, split_long
from transduce.data.tokenizer import Tokenizers
from transduce.errors import ConfigError, DataError
from transduce.search.hypothesis import Hypothesis
from transduce.search.wishes import NOTHING, Wishes, spell

T = TypeVar("T")
Words = Sequence[str] | Sequence[Sequence[str]]  # one list for all texts, or one a text


class Engine(Protocol):
    """Runs a model over token sequences (without bos and eos)."""

    def search(
        self, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes], keys: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Hypotheses of each source, best first, by the given search config."""
        ...

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each target token, the end symbol last."""
        ...


@dataclass(frozen=True)
class Translation:
    """What became of one text.

    `score` is what the search ranks by and `log_prob` the model's log-probability (sums over the parts of a long text);
    `tokens` are the subword pieces; `finished` is False where the length limit cut the output (or left no room for all
    that was to be included). `alternatives` holds the other hypotheses when more than one was asked for (of a text that
    was not cut into parts).
    """

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: tuple[str, ...] = ()
    finished: bool = True
    parts: int = 1
    alternatives: tuple[Translation, ...] = ()


@dataclass(frozen=True)
class Scored:
    """A given translation under the model: log-probability of all its tokens with the end symbol, and their number."""

    log_prob: float
    tokens: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens


@dataclass(frozen=True)
class _Job:
    """One part of one text on its way through the engine."""

    text: int
    part: Part
    tokens: tuple[int, ...]
    wishes: Wishes


class Translator:
    """`translator("Guten Morgen")` gives text; `translator.translate([...], beam=4)` gives `Translation`s.

    `search` is a search config used when a call names none. Sources of more than `longest` tokens are cut at sentence
    ends (or the best places there are), translated in parts and joined again. `batch_tokens` bounds a batch.
    """

    def __init__(
        self, engine: Engine, tokenizers: Tokenizers, search: Any, longest: int = 256, batch_tokens: int = 4096
    ) -> None:
        self.engine = engine
        self.tokenizers = tokenizers
        self.search = search
        self.longest = longest
        self.batch_tokens = batch_tokens

    @overload
    def __call__(self, text: str, **options: Any) -> str: ...
    @overload
    def __call__(self, text: Sequence[str], **options: Any) -> list[str]: ...
    def __call__(self, text: str | Sequence[str], **options: Any) -> str | list[str]:
        """The best translation of a text, or of each of several; takes the options of `translate`."""
        if isinstance(text, str):
            return self.translate([text], **options)[0].text
        return [translation.text for translation in self.translate(text, **options)]

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int = 0,
        n_best: int = 1,
        search: Any = None,
        to: str | Sequence[str] = "",
        prefixes: str | Sequence[str] = "",
        include: Words = (),
        exclude: Words = (),
    ) -> list[Translation]:
        """One Translation a text, in order, each a single line. A blank text gives an empty one.

        `beam` and `n_best` change the model's own search to a beam search of that size; `search` replaces it. `to`
        puts the tag `<2to>` before the source, for models trained with such tags (one language, or one a text).
        `prefixes` force how translations begin (one for all, or one a text). `include` are words, or runs of words,
        that must appear as written, by beam search; `exclude` words that must not (one list for all, or one a text).
        """
        stream = self.stream(
            texts,
            beam=beam,
            n_best=n_best,
            search=search,
            to=to,
            prefixes=prefixes,
            include=include,
            exclude=exclude,
        )
        return list(stream)

    def stream(
        self,
        texts: Iterable[str],
        *,
        beam: int = 0,
        n_best: int = 1,
        search: Any = None,
        to: str | Sequence[str] = "",
        prefixes: str | Sequence[str] = "",
        include: Words = (),
        exclude: Words = (),
        window: int = 1000,
    ) -> Iterator[Translation]:
        """The same as `translate`, over any number of texts in flat memory: `window` of them are run at once."""
        if isinstance(texts, str):
            raise DataError("texts: one text was given where a list is expected; use translator(text), or [text]")
        chosen = self.choose_search(beam, n_best, search)
        begun = 0
        for group in _groups(texts, window):
            starts = _part_of("prefixes", prefixes, begun, len(group))
            languages = _part_of("to", to, begun, len(group))
            wanted = _words_of("include", include, begun, len(group))
            unwanted = _words_of("exclude", exclude, begun, len(group))
            wishes = self._wishes(starts, wanted, unwanted)
            yield from self._translate(group, chosen, [self._tag(language) for language in languages], wishes)
            begun += len(group)
        for name, given in (("prefixes", prefixes), ("to", to)):
            _check_all_used(name, given, begun)
        for name, words in (("include", include), ("exclude", exclude)):
            if not _for_all(name, words):
                _check_all_used(name, words, begun)

    def score(self, sources: Sequence[str], targets: Sequence[str], to: str | Sequence[str] = "") -> list[Scored]:
        """How probable the model finds each given translation. Nothing is cut: pairs are read whole."""
        if len(sources) != len(targets):
            raise DataError(
                f"score: {len(sources)} sources and {len(targets)} targets were given; give as many of each"
            )
        tags = [self._tag(language) for language in _part_of("to", to, 0, len(sources))]
        _check_all_used("to", to, len(sources))
        encoded = self.tokenizers.source.encode(sources)
        source_tokens = [[*tag, *tokens] for tag, tokens in zip(tags, encoded, strict=True)]
        target_tokens = self.tokenizers.target.encode(targets)
        lengths = [max(len(s), len(t)) + 1 for s, t in zip(source_tokens, target_tokens, strict=True)]
        found: list[Scored | None] = [None] * len(sources)
        for batch in group_by_length(lengths, self.batch_tokens):
            logs = self.engine.score([source_tokens[i] for i in batch], [target_tokens[i] for i in batch])
            for i, log_probs in zip(batch, logs, strict=True):
                found[i] = Scored(sum(log_probs), len(log_probs))
        return [scored for scored in found if scored is not None]

    def _tag(self, language: str) -> tuple[int, ...]:
        """The token `<2de>` for "de" (or for "<2de>"), none for ""."""
        if not language:
            return ()
        return (self.tokenizers.source.token(language if language.startswith("<") else f"<2{language}>"),)

    def choose_search(self, beam: int = 0, n_best: int = 1, search: Any = None) -> Any:
        """The search given, else the model's own, else a beam search of the size asked for with the same limits."""
        if not beam and n_best == 1:
            return self.search if search is None else search
        if beam < 0:
            raise ConfigError(f"beam: expected a size of at least 1, or 0 for the model's own search, got {beam}")
        if search is not None:
            raise ConfigError("search: give a search, or beam and n_best, not both; a search has its own size")
        from transduce.search.beam import Beam  # torch comes with it: only when asked for
        from transduce.search.constraints import Limits

        own = self.search if isinstance(self.search, Beam) else Beam(limits=getattr(self.search, "limits", Limits()))
        return replace(own, size=max(beam or own.size, n_best), n_best=n_best)

    def find(
        self, sources: Sequence[Sequence[int]], search: Any, wishes: Sequence[Wishes] = ()
    ) -> list[list[Hypothesis]]:
        """Hypotheses of sources that are tokens already, in order; `search` is a search config. Nothing is cut."""
        done: list[list[Hypothesis]] = [[] for _ in sources]
        for batch in group_by_length([len(tokens) + 1 for tokens in sources], self.batch_tokens):
            members, asked = [sources[i] for i in batch], [wishes[i] if wishes else NOTHING for i in batch]
            found = self.engine.search(members, search, asked, [_key(tokens) for tokens in members])
            for i, hypotheses in zip(batch, found, strict=True):
                done[i] = hypotheses
        return done

    def _wishes(
        self, starts: Sequence[str], include: Sequence[Sequence[str]], exclude: Sequence[Sequence[str]]
    ) -> list[Wishes]:
        """What is asked of each text, in tokens; words that many texts share are spelt once."""
        target = self.tokenizers.target
        spelt: dict[tuple[tuple[str, ...], tuple[str, ...]], Wishes] = {((), ()): NOTHING}
        found = []
        for start, *words in zip(starts, include, exclude, strict=True):
            wanted, unwanted = (tuple(own) for own in words)
            if (wanted, unwanted) not in spelt:
                spelt[wanted, unwanted] = spell(target, wanted, unwanted)
            prefix = tuple(target.encode([start])[0]) if start else ()
            found.append(replace(spelt[wanted, unwanted], prefix=prefix))
        return found

    def _translate(
        self, texts: Sequence[str], search: Any, tags: Sequence[tuple[int, ...]], wishes: Sequence[Wishes]
    ) -> list[Translation]:
        jobs = [
            job for number, text in enumerate(texts) for job in self._jobs(number, text, tags[number], wishes[number])
        ]
        done = self.find([job.tokens for job in jobs], search, [job.wishes for job in jobs])
        results: list[list[tuple[Part, list[Hypothesis]]]] = [[] for _ in texts]
        for job, hypotheses in zip(jobs, done, strict=True):
            results[job.text].append((job.part, hypotheses))
        return [self._joined(parts) for parts in results]

    def _jobs(self, number: int, text: str, tag: tuple[int, ...], wishes: Wishes) -> list[_Job]:
        if not text.strip():
            return []

        def encode(part: str) -> tuple[int, ...]:
            return tag + tuple(self.tokenizers.source.encode([part])[0])

        parts = [part for part in split_long(text, lambda part: len(encode(part)) < self.longest) if part.text.strip()]
        if wishes.include and len(parts) > 1:
            raise DataError(
                f"include: the text {text[:40]!r}... is longer than the model reads at once, and nobody knows which of"
                f" its {len(parts)} parts the words belong to; give the parts as texts of their own"
            )
        later = replace(wishes, prefix=())
        return [_Job(number, part, encode(part.text), later if i else wishes) for i, part in enumerate(parts)]

    def _joined(self, parts: list[tuple[Part, list[Hypothesis]]]) -> Translation:
        if not parts:
            return Translation("")
        if len(parts) == 1:
            first, *others = (self._translation(hypothesis) for hypothesis in parts[0][1])
            return replace(first, alternatives=tuple(others))
        bests = [self._translation(hypotheses[0]) for _, hypotheses in parts]
        text = "".join(best.text + part.space for best, (part, _) in zip(bests, parts, strict=True))
        return Translation(
            text=_one_line(text).rstrip(),
            score=sum(best.score for best in bests),
            log_prob=sum(best.log_prob for best in bests),
            tokens=tuple(piece for best in bests for piece in best.tokens),
            finished=all(best.finished for best in bests),
            parts=len(parts),
        )

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        target = self.tokenizers.target
        text = _one_line(target.decode(hypothesis.tokens))
        pieces = tuple(target.pieces(hypothesis.tokens))
        return Translation(text, hypothesis.score, hypothesis.log_prob, pieces, hypothesis.finished)


def _one_line(text: str) -> str:
    """One line in, one line out: a newline, from between parts or spelt by byte pieces, becomes a space."""
    return text.replace("\n", " ")


def _groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _part_of(name: str, given: str | Sequence[str], begin: int, count: int) -> Sequence[str]:
    """The values for `count` texts from the `begin`-th on; one word serves all."""
    return [given] * count if isinstance(given, str) else _cut(name, given, begin, count)


def _cut(name: str, given: Sequence[T], begin: int, count: int) -> Sequence[T]:
    if len(given) < begin + count:
        raise DataError(f"{name}: {len(given)} were given for at least {begin + count} texts; give one a text")
    return given[begin : begin + count]


def _words_of(name: str, given: Words, begin: int, count: int) -> Sequence[Sequence[str]]:
    """The words for `count` texts from the `begin`-th on; one list of words serves all."""
    if _for_all(name, given):
        return [cast("Sequence[str]", given)] * count
    return _cut(name, given, begin, count)


def _for_all(name: str, given: Words) -> bool:
    """Whether these are words for all texts, not a list of words a text."""
    if isinstance(given, str):
        raise DataError(f"{name}: one word was given where a list is expected; use [{given!r}]")
    strings = [isinstance(one, str) for one in given]
    if any(strings) and not all(strings):
        raise DataError(
            f"{name}: words and lists of words are mixed; give one list of words, or a list of words a text"
        )
    return all(strings)


def _check_all_used(name: str, given: str | Sequence[object], count: int) -> None:
    if not isinstance(given, str) and len(given) > count:
        raise DataError(f"{name}: {len(given)} were given for only {count} texts; give one a text")


def _key(tokens: Sequence[int]) -> int:
    """What random draws for this sentence follow from: its tokens alone, so that no neighbour matters."""
    digest = hashlib.blake2b(np.array(tokens, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
