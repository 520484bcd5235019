"""Requests and answers of our own API as pydantic models: they check requests and are the schemas of its document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Word = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"\S")]
Code = Annotated[str, StringConstraints(min_length=2, max_length=20, pattern=r"^[A-Za-z0-9_-]+$")]
Name = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9._-]*$")]

Identifier = Annotated[str, StringConstraints(max_length=100)]


class Strict(BaseModel):
    """A model that allows no other fields and no other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TranslateRequest(Strict):
    """Texts to translate, with one set of options for all."""

    text: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        description="A text, or a list of texts."
    )
    source: Code = Field("auto", description="Language code, or auto to detect it.")
    target: Code = Field(description="Language code.")
    format: Literal["text", "html"] = "text"
    n_best: int = Field(1, ge=1, description="Translations of each text, the best first.")
    beam: int = Field(0, ge=0, le=16, description="Beam size; 0 for the model's own search.")
    alignment: Literal["words", "pieces"] | None = Field(
        None, description="Which source unit each target unit came from, sentence by sentence."
    )
    prefix: str = Field("", description="How the translation must begin.")
    include: list[Word] = Field([], max_length=16, description="Words that must appear.")
    exclude: list[Word] = Field([], max_length=64, description="Words that must not appear.")
    protect: bool = Field(True, description="Keep URLs, placeholders, code and the like as they are.")
    glossary: Identifier | Annotated[list[Identifier], Field(max_length=16)] | dict[str, str] = Field(
        "", description="Glossaries by id, the first preferred; or terms and their translations."
    )
    model: Name = Field("", description="The model to use; empty for the first that knows the languages.")
    stream: bool = Field(False, description="Lines of JSON, a sentence each, as they are done.")


class DictionaryShape(Strict):
    """The terms of one direction; `*` after a translation accepts its inflected forms."""

    source: Code
    target: Code
    entries: dict[str, str] = Field(min_length=1)


class GlossaryRequest(Strict):
    """A glossary to keep."""

    name: str = Field(min_length=1, max_length=1024)
    dictionaries: list[DictionaryShape] = Field(min_length=1)


class PairsRequest(Strict):
    """Texts with given translations."""

    source: Code
    target: Code
    texts: list[str] = Field(min_length=1, fail_fast=True)
    translations: list[str] = Field(min_length=1, fail_fast=True)
    model: Name = ""


class AlignRequest(PairsRequest):
    """Align given translations: where the model looks for each word."""

    unit: Literal["words", "pieces"] = "words"
    layer: int | None = Field(
        None, ge=-100, le=100, description="Decoder layer, -1 the last; null for the mean of all."
    )
    matrix: bool = Field(False, description="The weights of all source units for each target unit too; of one pair.")


class DetectRequest(Strict):
    """A text of unknown language."""

    text: str


class Detection(BaseModel):
    """A language with its confidence, from 0 to 100."""

    language: str
    confidence: float


class AlignmentShape(BaseModel):
    """Units of a sentence and of its translation, and links (source, target, weight), counted from 0."""

    source: list[str]
    target: list[str]
    links: list[tuple[int, int, float]]


class MatrixShape(AlignmentShape):
    """An alignment of a given pair, with `weights[target][source]` where `matrix` was requested."""

    weights: list[list[float]] | None = None


class Alternative(BaseModel):
    """Another translation."""

    text: str
    score: float
    log_prob: float


class SentenceShape(BaseModel):
    """A sentence of a text, its translation, and what follows it there."""

    source: str
    text: str
    space: str


class TranslationShape(BaseModel):
    """The translation of one text: `score` is what the search ranks by, `log_prob` the model's log-probability."""

    text: str
    score: float
    log_prob: float
    finished: bool = Field(description="False where the length limit cut the output.")
    missing_terms: list[str] = Field(description="Target terms of the glossary that could not be placed.")
    confidence: float | None = Field(
        description="Probability that the translation is acceptable; null where the model does not say."
    )
    warnings: list[str] = Field(
        description="What may be wrong: numbers, repeated, long, copied, language or empty (docs/protecting.md)."
    )
    detected: Detection | None
    alternatives: list[Alternative]
    alignment: list[AlignmentShape] | None = Field(description="One a sentence, in the order of `sentences`.")
    before: str = Field(description="What stands before the first sentence: white space.")
    sentences: list[SentenceShape]


class TranslateAnswer(BaseModel):
    """One translation a text, in order."""

    translations: list[TranslationShape]


class DictionaryAnswer(BaseModel):
    """A dictionary that is kept: how many entries it has, and them where one glossary is shown."""

    source: str
    target: str
    count: int
    entries: dict[str, str] | None = None


class GlossaryShape(BaseModel):
    """A glossary that is kept."""

    id: str
    name: str
    created: str
    dictionaries: list[DictionaryAnswer]


class GlossariesAnswer(BaseModel):
    """All glossaries of a key."""

    glossaries: list[GlossaryShape]


class ScoreShape(BaseModel):
    """The model's log-probability of a given translation."""

    log_prob: float
    tokens: int
    per_token: float


class ScoreAnswer(BaseModel):
    """One score a pair."""

    scores: list[ScoreShape]


class AlignAnswer(BaseModel):
    """One alignment a pair."""

    alignments: list[MatrixShape]


class AttentionAnswer(BaseModel):
    """For each pair the attention of every decoder layer, mean over heads: `layers[layer][target][source]`."""

    pairs: list[AttentionShape]


class AttentionShape(BaseModel):
    """Source and target pieces, and a matrix for each layer."""

    source: list[str]
    target: list[str]
    layers: list[list[list[float]]]


class ModelShape(BaseModel):
    """A model that is served."""

    name: str
    pairs: list[tuple[str, str]]


class LanguageShape(BaseModel):
    """A source language and what it can be translated to."""

    code: str
    name: str
    targets: list[str]


class StatusShape(BaseModel):
    """Whether the server is alive, or accepts requests."""

    status: str


class Failure(BaseModel):
    """Why a request was rejected: for people, and for programs; `language` is one that no model here translates."""

    error: str
    code: str
    language: str = ""
