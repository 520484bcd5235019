"""The only path from text to text: cut what is too long, tokenize, batch, decode, detokenize, join.

The command line, validation during training and the tests all translate through this class. It imports no torch;
what runs the model is an `Engine`.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, cast, overload

from transduce.core.errors import ConfigError, DataError
from transduce.engines import Engine, Scored, Source, Translation
from transduce.search import Hypothesis, Reranker, SearchConfig
from transduce.search.constraints import (
    UNCONSTRAINED,
    CancelToken,
    DecodingConstraints,
    cancelled_rows,
    constraints_of_words,
)
from transduce.search.settings import STEPWISE, Beam, Greedy, Limits, check_search, checked_prefix, require, require_few
from transduce.text.alignment import AlignedPart, Alignment, Grouped, Unit, attend_all, group_text, group_tokens, join
from transduce.text.protect import own_patterns, protected_spans
from transduce.text.segment import TextPiece, group_by_length, split_long
from transduce.text.tokenizer import Tokenizers
from transduce.translate.confidence import Confidence
from transduce.translate.glossaries import GlossaryLike, glossaries_of, keep_terms
from transduce.translate.options import (
    TranslateOptions,
    Words,
    check_all_used,
    check_unit,
    groups,
    lowercase_shouting,
    part_of,
    restore_case,
    texts_of,
)
from transduce.translate.safeguards import SEVERAL, Decode, Safeguards, together, writable_marks

if TYPE_CHECKING:  # numpy comes with it, and translating text can do without
    from transduce.data.readers import Reading


@dataclass(frozen=True)
class _Job:
    """One part of one text on its way through the engine."""

    text: int
    part: TextPiece
    tokens: Source
    constraints: DecodingConstraints


@dataclass(frozen=True)
class _Found:
    """The result of a job: hypotheses, best first, and their alignments if requested."""

    part: TextPiece
    tokens: Source
    hypotheses: Sequence[Hypothesis]
    blocks: Sequence[AlignedPart] = ()


class Translator:
    """Translate texts: `translator("Guten Morgen")` gives text, `translator.translate([...], beam=4)` `Translation`s.

    `search` is a search config used when a call names none. Sources of more than `longest` tokens are cut at sentence
    ends (or the best places there are), translated in parts and joined again. `batch_tokens` bounds a batch;
    `search_tokens`, if given, the tokens handed to an engine that batches itself. `decoder` is the config of
    the model's decoder: searches that do not fit it are refused. With a `reading` texts are paths of recordings or
    pictures, or their samples, pixels or frames as arrays; long recordings are cut where they are quiet. `protect`
    keeps spans such as URLs where a call does not say otherwise. `confidence` says how sure each translation is.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizers: Tokenizers,
        search: SearchConfig,
        longest: int = 256,
        batch_tokens: int = 4096,
        decoder: Any = None,
        search_tokens: int = 0,
        reading: Reading | None = None,
        protect: bool = False,
        confidence: Confidence | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizers = tokenizers
        self.search = search
        self.longest = longest
        self.batch_tokens = batch_tokens
        self.decoder = decoder
        self.search_tokens = search_tokens
        self.window = 8000 if search_tokens else 1000  # texts that `stream` runs at once
        self.reading = reading
        self.protect = protect
        self.confidence = confidence

    @overload
    def __call__(self, text: str, **options: Any) -> str: ...
    @overload
    def __call__(self, text: Sequence[str], **options: Any) -> list[str]: ...
    def __call__(self, text: str | Sequence[str], **options: Any) -> str | list[str]:
        """The best translation of a text, or of each of several; takes the options of `translate`."""
        if isinstance(text, (str, PathLike)):
            return self.translate([text], **options)[0].text
        return [translation.text for translation in self.translate(text, **options)]

    def translate(
        self, texts: Sequence[str], *, beam: int = 0, n_best: int = 1, search: SearchConfig | None = None,
        to: str | Sequence[str] = "", prefixes: str | Sequence[str] = "", include: Words = (), exclude: Words = (),
        align: Unit | None = None, dense: bool = True, cancel_tokens: Sequence[CancelToken] = (),
        protect: bool | None = None, patterns: Sequence[str] = (), source: str | Sequence[str] = "",
        glossary: GlossaryLike | Sequence[GlossaryLike] | None = None,
    ) -> list[Translation]:  # fmt: skip
        """Translate texts: one Translation a text, in order, each a single line; a blank text gives an empty one.

        `n_best` requests that many of the model's own search, `beam` a beam search of that size, which finds as many at
        most; `search` replaces it.
        `to` puts the tag `<2to>` (of imported models `>>to<<`) before the source, for models trained with such tags
        (one language, or one a text).
        `prefixes` force how translations begin (one for all, or one a text). `include` are words, or runs of words,
        that must appear as written, by beam search; `exclude` words that must not (one list for all, or one a text).
        `align` gives each its `alignment` with the source, in "words" or "pieces", by a second pass of the model;
        without `dense` it has links and their strengths alone, and no matrix of weights.
        `cancel_tokens`, one a text, let another thread end the work on a text between two steps: what comes is not
        `finished`. `protect` keeps URLs, placeholders, code and other spans that are no language letter for letter;
        None: as the translator was made. `patterns` are regular expressions of further spans to keep.
        `source` is the language code of the texts, if known (one, or one a text): their numbers are read by its rules.
        `glossary` has terms that must be translated so: a `Glossary`, the path of its file, {term: translation}, or
        several of these, the first preferred. Terms that could not be placed are `missing_terms` of the translation.
        """
        options = TranslateOptions(
            beam, n_best, search, to, prefixes, include, exclude, align, dense, cancel_tokens, protect,
            patterns, source, glossary=glossaries_of(glossary),
        )  # fmt: skip
        return list(self.run(texts, options))

    def stream(
        self, texts: Iterable[str], *, beam: int = 0, n_best: int = 1, search: SearchConfig | None = None,
        to: str | Sequence[str] = "", prefixes: str | Sequence[str] = "", include: Words = (), exclude: Words = (),
        align: Unit | None = None, dense: bool = True, cancel_tokens: Sequence[CancelToken] = (),
        protect: bool | None = None, patterns: Sequence[str] = (), source: str | Sequence[str] = "",
        glossary: GlossaryLike | Sequence[GlossaryLike] | None = None, window: int = 0,
    ) -> Iterator[Translation]:  # fmt: skip
        """Translate lazily in constant memory, `window` texts at once; 0: 1,000, or 8,000 if the engine batches."""
        options = TranslateOptions(
            beam, n_best, search, to, prefixes, include, exclude, align, dense, cancel_tokens, protect,
            patterns, source, glossary=glossaries_of(glossary),
        )  # fmt: skip
        return self.run(texts, options, window)

    def run(self, texts: Iterable[str], options: TranslateOptions, window: int = 0) -> Iterator[Translation]:
        """Translate lazily like `stream`, with its options in one value."""
        read = texts_of("texts", texts, "use translator(text), or [text]", files=self.reading is not None)
        search = self.choose_search(options.beam, options.n_best, options.search)
        options.check()
        if options.protect is None or self.reading is not None:
            options = replace(options, protect=self.protect and self.reading is None)
        begun = 0
        for group in groups(read, window or self.window):
            of_group = options.of_texts(begun, len(group))
            if options.glossary or options.terms:
                yield from keep_terms(group, search, of_group, self._guarded, self.align)
            else:
                yield from self._guarded(group, search, of_group)
            begun += len(group)
        options.check_all_used(begun)

    def score(self, sources: Sequence[str], targets: Sequence[str], to: str | Sequence[str] = "") -> list[Scored]:
        """Score each given translation under the model. Nothing is cut: pairs are read whole."""
        tags = self._pair_tags("score", sources, targets, to)
        source_tokens = [self._source(source, tag) for source, tag in zip(sources, tags, strict=True)]
        target_tokens = self.tokenizers.target.encode(targets)
        lengths = [max(len(s), len(t)) + 1 for s, t in zip(source_tokens, target_tokens, strict=True)]
        found: list[Scored | None] = [None] * len(sources)
        for batch in group_by_length(lengths, self.batch_tokens):
            logs = self.engine.score([source_tokens[i] for i in batch], [target_tokens[i] for i in batch])
            for i, log_probs in zip(batch, logs, strict=True):
                found[i] = Scored(sum(log_probs), len(log_probs))
        return [scored for scored in found if scored is not None]

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        to: str | Sequence[str] = "",
        unit: Unit = "words",
        layer: int | None = None,
        dense: bool = True,
    ) -> list[Alignment]:
        """Align each given translation: which source words the model looks at for each word. Pairs are read whole.

        `unit`: words between white space, or subword "pieces". `layer`: the decoder layer to read, from 0 or from -1
        backwards; None for the mean of all. Without `dense` there are links alone, and no matrix of weights.
        """
        check_unit("unit", unit, "words or pieces")
        tags = self._pair_tags("align", sources, targets, to)
        pairs = [
            (self._grouped(source, unit), group_text(self.tokenizers.target, target, unit))
            for source, target in zip(sources, targets, strict=True)
        ]
        found = attend_all(self.engine, pairs, tags, layer, self.batch_tokens)
        return [join([block], dense=dense) for block in found]

    def _pair_tags(
        self, what: str, sources: Sequence[str], targets: Sequence[str], to: str | Sequence[str]
    ) -> list[tuple[int, ...]]:
        """The tag of each source; raise DataError unless there are as many targets."""
        read = [*texts_of(f"{what}: sources", sources, "give [source] and [target]", files=self.reading is not None)]
        if len(read) != len([*texts_of(f"{what}: targets", targets, "give [source] and [target]")]):
            raise DataError(
                f"{what}: {len(sources)} sources and {len(targets)} targets were given; give as many of each"
            )
        tags = [self._tag(language) for language in part_of("to", to, 0, len(sources))]
        check_all_used("to", to, len(sources))
        return tags

    def _source(self, text: str, tag: tuple[int, ...] = ()) -> Source:
        """A whole text as the model reads it: its tag and tokens, or its frames."""
        if self.reading is not None:
            return self.reading.reader.read(text)
        return tag + tuple(self.tokenizers.source.encode([text])[0])

    def _grouped(self, text: str, unit: Unit, source: Source | None = None) -> Grouped:
        """A source grouped into units to align; for files, positions of the memory, named by their time or place."""
        if self.reading is None:
            return group_text(self.tokenizers.source, text, unit, source)
        frames = self._source(text) if source is None else source
        units = self.reading.units(frames)
        return Grouped(frames, units, tuple(range(len(units))))

    def _tag(self, language: str) -> tuple[int, ...]:
        """The token `<2de>` (or `>>de<<`) for "de", none for ""."""
        if language and self.reading is not None:
            raise DataError(f"to: {language!r}: this model reads {self.reading.reader.kind}, which take no tag")
        return (self.tokenizers.source.tag(language),) if language else ()

    def choose_search(self, beam: int = 0, n_best: int = 1, search: SearchConfig | None = None) -> SearchConfig:
        """The given search, else the model's own for `n_best`, or a beam search of size `beam`; it must fit."""
        chosen = self._asked_for(beam, n_best, search)
        if self.decoder is not None:
            check_search(chosen, self.decoder)
        return chosen

    def _asked_for(self, beam: int, n_best: int, search: SearchConfig | None) -> SearchConfig:
        """Choose the search; for `n_best` above 1, a search for one translation becomes a beam search.

        It keeps the limits of the search that it replaces.
        """
        if isinstance(search, str):
            raise ConfigError(f"search: expected one such as transduce.search.settings.Beam(size=5), got {search!r}")
        if not beam and n_best == 1:
            return self.search if search is None else search
        require_few(beam=beam, n_best=n_best)
        require(beam >= 0, "beam", beam, "a size of at least 1, or 0 for the model's own search")
        expected = f"at most the beam's size ({beam}), for no others are searched"
        require(n_best <= (beam or n_best), "n_best", n_best, f"{expected} (a larger beam, or none, finds more)")
        if search is not None:
            raise ConfigError("search: give a search, or beam and n_best, not both; a search has its own size")
        if not beam and hasattr(self.search, "with_n_best"):
            several: SearchConfig = self.search.with_n_best(n_best)
            return several
        base = self.search if isinstance(self.search, Beam) else Beam(limits=getattr(self.search, "limits", Limits()))
        single = replace(base, size=beam or base.size, n_best=1)
        return single if n_best == 1 else single.with_n_best(n_best)

    def find(
        self, sources: Sequence[Source], search: SearchConfig, constraints: Sequence[DecodingConstraints] = ()
    ) -> list[list[Hypothesis]]:
        """Decode sources of tokens or frames to hypotheses, in order; `search` is a search config. Nothing is cut."""
        choice = cast("Reranker", search) if hasattr(search, "choose") else None
        budget = self.search_tokens or self.batch_tokens
        if choice:  # candidates are rows of the batch: no more of them than a usual beam makes of it
            budget = self.batch_tokens // max(1, choice.hypotheses // 4)
        constraints = constraints or [UNCONSTRAINED] * len(sources)
        done: list[list[Hypothesis]] = [[] for _ in sources]
        for batch in group_by_length([len(tokens) + 1 for tokens in sources], budget):
            members, limits = [sources[i] for i in batch], [constraints[i] for i in batch]
            found = self.engine.search(members, search, limits, [draw_key(tokens) for tokens in members])
            for i, hypotheses in zip(batch, found, strict=True):
                done[i] = self._chosen(hypotheses, choice) if choice else hypotheses
        return done

    def _chosen(self, hypotheses: Sequence[Hypothesis], search: Reranker) -> list[Hypothesis]:
        """The hypotheses that a reranking search picks by their texts, with the score that it picks them by."""
        picked = search.choose([self._text(hypothesis) for hypothesis in hypotheses]) if hypotheses else []
        return [replace(hypotheses[index], score=score) for index, score in picked]

    def _constraints(self, options: TranslateOptions) -> list[DecodingConstraints]:
        """The constraints of each text, in tokens; words shared by many texts are tokenized once."""
        target = self.tokenizers.target
        spelt: dict[tuple[tuple[str, ...], tuple[str, ...]], DecodingConstraints] = {((), ()): UNCONSTRAINED}
        found = []
        for start, *words in zip(options.prefixes, options.include, options.exclude, strict=True):
            wanted, struck = map(tuple, words)
            if (wanted, struck) not in spelt:
                spelt[wanted, struck] = constraints_of_words(target, wanted, struck)
            prefix = checked_prefix(target.encode([start])[0], self.longest) if start else ()
            found.append(replace(spelt[wanted, struck], prefix=prefix))
        if options.cancel_tokens:
            return [replace(limits, cancel_token=one) for limits, one in zip(found, options.cancel_tokens, strict=True)]
        return found

    def _guarded(self, texts: Sequence[str], search: SearchConfig, options: TranslateOptions) -> list[Translation]:
        """Translate the texts of one window and keep their spans; the options have one value per text."""
        if not options.protect:
            return self._translate(texts, search, options)
        own = own_patterns(options.patterns, "patterns")
        spans = [protected_spans(text, own) for text in texts]
        steps = together(
            [
                self._safeguards(number, own, search, options).translate(text, spans[number], options.prefixes[number])
                for number, text in enumerate(texts)
            ]
        )
        try:
            decodes = next(steps)
            while True:
                decodes = steps.send(self._decoded(decodes, search, options))
        except StopIteration as end:  # at once, where no text has anything to translate
            return cast("list[Translation]", end.value)

    def _safeguards(
        self, number: int, own: tuple[re.Pattern[str], ...], search: SearchConfig, options: TranslateOptions
    ) -> Safeguards:
        """The safeguards of one text."""
        tag, source = self._tag(options.to[number]), options.source[number]
        held = getattr(self.decoder, "offers", STEPWISE) == STEPWISE
        return Safeguards(
            number,
            marks=self._marks,
            beam=isinstance(search, Beam),
            bound=bool(options.include[number] or options.prefixes[number]),
            aligned=options.align is not None,
            fits=lambda part: len(self._source(part, tag)) < self.longest,
            own=own,
            source=source,
            target=options.to[number],
            held=held,
            repeating=held and isinstance(search, (Beam, Greedy)),
            ranking=isinstance(search, Beam)
            and search.n_best == 1
            and options.align is None
            and bool(options.to[number] and source and self.tokenizers.source.has_tag(source)),
        )

    @cached_property
    def _marks(self) -> tuple[tuple[str, ...], ...]:
        """Marks for spans that both vocabularies can write."""
        both = (self.tokenizers.source, self.tokenizers.target)

        def written(mark: str) -> bool:
            if not mark[0].isalnum():
                return all(tokenizer.has_piece(mark) for tokenizer in both)
            return all(tokenizer.symbols.unk not in tokenizer.spelling(mark) for tokenizer in both)

        return writable_marks(written)

    def _decoded(self, decodes: Sequence[Decode], search: SearchConfig, options: TranslateOptions) -> list[Translation]:
        """Translate what safeguards request, in a batch of each kind; what needs a beam search gets one."""
        kinds: dict[tuple[SearchConfig, Unit | None], list[int]] = {}
        for i, decode in enumerate(decodes):
            held = decode.n_best > 1 or (decode.include and not isinstance(search, Beam))
            by = self._asked_for(SEVERAL, decode.n_best, None) if held else search
            if decode.no_repeat and isinstance(by, Beam):
                by = replace(by, limits=replace(by.limits, no_repeat=3))
            kinds.setdefault((by, decode.align), []).append(i)
        made: dict[int, Translation] = {}
        for (by, align), chosen in kinds.items():
            members = [decodes[i] for i in chosen]
            own = options.of_decodes(members)
            found = self._translate([one.text for one in members], by, replace(own, align=align or own.align))
            made.update(zip(chosen, found, strict=True))
        return [made[i] for i in range(len(decodes))]

    def _translate(self, texts: Sequence[str], search: SearchConfig, options: TranslateOptions) -> list[Translation]:
        """Translate texts as they are; the options have one value per text."""
        constraints, align = self._constraints(options), options.align
        tags, loud = [*map(self._tag, options.to)], [False] * len(texts)
        if self.reading is None:
            own_tags, texts = self._cut_tags(texts)
            tags = [tag + written for tag, written in zip(tags, own_tags, strict=True)]
            texts, loud = lowercase_shouting(texts, constraints, self.tokenizers.source)
        jobs = self._all_jobs(texts, tags, constraints, options.tokens)
        done = self.find([job.tokens for job in jobs], search, [job.constraints for job in jobs])
        blocks = self._blocks(jobs, done, tags, align) if align else [[] for _ in jobs]
        results: list[list[_Found]] = [[] for _ in texts]
        for job, hypotheses, aligned in zip(jobs, done, blocks, strict=True):
            results[job.text].append(_Found(job.part, job.tokens, hypotheses, aligned))
        left = cancelled_rows(constraints)
        made = [
            self._joined(parts, options, number) if parts else _nothing(options, finished=number not in left)
            for number, parts in enumerate(results)
        ]
        return [restore_case(result) if shouted else result for result, shouted in zip(made, loud, strict=True)]

    def _blocks(
        self, jobs: Sequence[_Job], done: Sequence[list[Hypothesis]], tags: Sequence[tuple[int, ...]], align: Unit
    ) -> list[list[AlignedPart]]:
        """The alignment of every hypothesis of every job; of the best alone where a text has several jobs."""
        target = self.tokenizers.target
        parts, pairs, own_tags = Counter(job.text for job in jobs), [], []
        wanted = [found[:1] if parts[job.text] > 1 else found for job, found in zip(jobs, done, strict=True)]
        for job, hypotheses in zip(jobs, wanted, strict=True):
            source = job.tokens[len(tags[job.text]) :] if self.reading is None else job.tokens
            read = self._grouped(job.part.text, align, source)
            pairs += [(read, group_tokens(target, best.tokens, self._text(best), align)) for best in hypotheses]
            own_tags += [tags[job.text]] * len(hypotheses)
        blocks = iter(attend_all(self.engine, pairs, own_tags, None, self.batch_tokens))
        return [[next(blocks) for _ in hypotheses] for hypotheses in wanted]

    def _cut_tags(self, texts: Sequence[str]) -> tuple[list[tuple[int, ...]], list[str]]:
        """Separate the tags that texts begin with, so that every part of a text has its tag."""
        cut = [self.tokenizers.source.cut_tag(text) for text in texts]
        return [tag for tag, _ in cut], [text for _, text in cut]

    def _all_jobs(
        self,
        texts: Sequence[str],
        tags: Sequence[tuple[int, ...]],
        constraints: Sequence[DecodingConstraints],
        tokens: Mapping[str, Sequence[int]],
    ) -> list[_Job]:
        jobs: list[_Job] = []
        for number, (text, tag, limits) in enumerate(zip(texts, tags, constraints, strict=True)):
            if limits.cancel_token is None or not limits.cancel_token.cancelled:
                cut = self._cut_text(text, tag, tokens.get(text)) if self.reading is None else self._cut_file(text)
                jobs += self._jobs(number, text, cut, limits)
        return jobs

    def _jobs(
        self, number: int, text: str, cut: Sequence[tuple[TextPiece, Source]], constraints: DecodingConstraints
    ) -> list[_Job]:
        """The jobs of the parts of one text."""
        if constraints.include and len(cut) > 1:
            raise DataError(
                f"include: the text {text[:40]!r}... is longer than the model reads at once, and it is unknown which of"
                f" its {len(cut)} parts the words belong to; give the parts as texts of their own"
            )
        later = replace(constraints, prefix=()) if constraints.prefix else constraints
        return [_Job(number, part, source, later if i else constraints) for i, (part, source) in enumerate(cut)]

    def _cut_text(self, text: str, tag: tuple[int, ...], known: Sequence[int] | None) -> list[tuple[TextPiece, Source]]:
        """The parts of a text that the model reads one by one, with their tokens; those of the whole may be known."""
        if not text.strip():
            return []
        if known is not None and len(tag) + len(known) < self.longest:
            return [(TextPiece(text, ""), (*tag, *known))]
        tokens = lru_cache(1)(lambda part: self._source(part, tag))  # once for a text that fits as it is
        parts = split_long(text, lambda part: len(tokens(part)) < self.longest)
        return [(part, tokens(part.text)) for part in parts if part.text.strip()]

    def _cut_file(self, source: str) -> list[tuple[TextPiece, Source]]:
        """The parts of a file, or of its content, with their frames."""
        if self.reading is None or (isinstance(source, str) and not source.strip()):
            return []
        return [(TextPiece("", " "), frames) for frames in self.reading.parts(source, self.longest)]

    def _joined(self, parts: list[_Found], options: TranslateOptions, number: int) -> Translation:
        to = options.to[number]
        every = [[self._translation(found, hypothesis, to) for hypothesis in found.hypotheses] for found in parts]
        if not all(every):
            return Translation("", finished=False)  # the request was cancelled
        if len(parts) == 1:
            if parts[0].blocks:
                aligned = zip(every[0], parts[0].blocks, strict=True)
                every[0] = [replace(made, alignment=join([block], dense=options.dense)) for made, block in aligned]
            return replace(every[0][0], alternatives=tuple(every[0][1:]))
        bests = [translations[0] for translations in every]
        text = "".join(best.text + found.part.space for best, found in zip(bests, parts, strict=True))
        blocks = [found.blocks[0] for found in parts if found.blocks]
        words = options.align == "words"
        cut = [False, *(words and not found.part.space for found in parts[:-1])]  # where a word continues in the next
        return Translation.joined(bests, _one_line(text).rstrip(), join(blocks, cut) if blocks else None)

    def _translation(self, found: _Found, hypothesis: Hypothesis, to: str) -> Translation:
        pieces, logs = tuple(self.tokenizers.target.pieces(hypothesis.tokens)), hypothesis.token_log_probs
        text, score, log_prob = self._text(hypothesis), hypothesis.score, hypothesis.log_prob
        made = Translation(text, score, log_prob, pieces, hypothesis.finished, token_log_probs=logs)
        if self.confidence is None or self.reading is not None:
            return made
        return replace(made, confidence=self.confidence(found.part.text, found.tokens, made, hypothesis.tokens, to))

    def _text(self, hypothesis: Hypothesis) -> str:
        return _one_line(self.tokenizers.target.decode(hypothesis.tokens))


def _nothing(options: TranslateOptions, finished: bool) -> Translation:
    """The translation of a text without words, or of one cancelled before it began."""
    return Translation("", finished=finished, alignment=Alignment() if options.align else None)


def _one_line(text: str) -> str:
    """Replace newlines, from between parts or spelt by byte pieces, by spaces: one line in, one line out."""
    return text.replace("\n", " ")


def draw_key(source: Source) -> int:
    """The seed of a sentence's random draws: its tokens or frames alone, so that no other row matters."""
    numbers = array("q", source) if isinstance(source, (tuple, list)) else source
    digest = hashlib.blake2b(numbers.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
