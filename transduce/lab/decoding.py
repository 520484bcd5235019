"""Non-autoregressive against autoregressive decoding: quality, and honest speed, at batch sizes 1 and 32.

The autoregressive decoder uses a KV cache, as in production; a slow baseline would flatter the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transduce.core.errors import ConfigError
from transduce.data.corpus import Corpus
from transduce.evaluation.plot import INK, colours, dress
from transduce.lab.learning import TRANSFORMER, Bench, TrainingExperiment, exact, parameters, stack
from transduce.lab.pace import DecodingPace, decoding_speeds, some_sources
from transduce.lab.report import Claim, LabReport, LabTable
from transduce.lab.tasks import number_words
from transduce.metrics.corpus import chrf
from transduce.search import SearchConfig
from transduce.search.settings import Beam, CTCCollapse, Greedy, MaskPredict
from transduce.translate.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (1, 32)
PARALLEL = [*stack("encoder"), "model.decoder.kind=parallel", *stack("decoder")]
MASKED = [*PARALLEL, "objective=masked_prediction", "objective.label_smoothing=0.0"]
MASKED += ["search={kind='mask_predict',iterations=4}", "validation.search={kind='mask_predict',iterations=1}"]
CTC = [*PARALLEL, "model.decoder.length={kind='upsampled',factor=3}", "objective=parallel_ctc"]
CTC += ["search=ctc", "validation.search=ctc"]
MODELS = {"autoregressive": TRANSFORMER, "mask-predict": MASKED, "CTC": CTC}
FIRST = "autoregressive, greedy"


@dataclass(frozen=True)
class Decoding(TrainingExperiment):
    """Settings of the decoding experiment; parallel decoders are trained `training_factor` times as many steps.

    They learn more slowly.
    """

    steps: int = 250
    training_factor: float = 1.5
    iterations: tuple[int, ...] = (1, 4, 10)
    repeats: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.iterations or min(self.iterations) < 1:
            raise ConfigError(
                f"iterations: expected some numbers of mask-predict's passes, got {list(self.iterations)}"
            )
        if self.training_factor < 1:
            raise ConfigError(f"training_factor: expected 1 or more, got {self.training_factor}")

    def searches(self) -> dict[str, dict[str, Any]]:
        """The searches to translate with, by model."""
        rounds = {f"{n} pass{'es' if n > 1 else ''}": MaskPredict(n, length_candidates=3) for n in self.iterations}
        return {
            "autoregressive": {"greedy": Greedy(), "beam 4": Beam(size=4)},
            "mask-predict": rounds,
            "CTC": {"1 pass": CTCCollapse()},
        }


@dataclass(frozen=True)
class DecodingWay:
    """The measurements of one model with one search."""

    name: str
    parallel: bool
    parameters: int
    chrf: float
    exact: float
    speeds: tuple[DecodingPace, ...]


@dataclass(frozen=True)
class DecodingResult:
    """All measurements; the first is autoregressive and greedy."""

    settings: Decoding
    place: str
    ways: tuple[DecodingWay, ...]

    def faster(self, way: DecodingWay, batch: int) -> float:
        """The speed of a way relative to the first."""
        number = BATCHES.index(batch)
        return self.ways[0].speeds[number].seconds_a_sentence / way.speeds[number].seconds_a_sentence

    def report(self) -> LabReport:
        rows = tuple(
            (
                way.name,
                way.chrf,
                100 * way.exact,
                *(1000 * speed.seconds_a_sentence for speed in way.speeds),
                *(self.faster(way, batch) for batch in BATCHES),
                way.parameters,
            )
            for way in self.ways
        )
        headings = (
            "way",
            "chrF",
            "exact, %",
            *(f"ms a sentence, batch {batch}" for batch in BATCHES),
            *(f"times as fast, batch {batch}" for batch in BATCHES),
            "parameters",
        )
        return LabReport(
            name="decoding",
            title="Decoding: autoregressive or non-autoregressive",
            question="How much faster is non-autoregressive decoding, and what does it cost in quality?",
            setup=(
                f"{self.place} (parallel ones {self.settings.training_factor:g} times as many). Speed is"
                " that of the search, all ways in turns, the least of some tries."
            ),
            tables=(LabTable("decoding", "Quality and speed", headings, rows),),
            findings=tuple(self._findings()),
            draw=self._draw,
            size=(9.0, 4.2),
        )

    def _findings(self) -> list[Claim]:
        first, parallel = self.ways[0], [way for way in self.ways if way.parallel]
        fastest = max(parallel, key=lambda way: self.faster(way, 1))
        best = max(parallel, key=lambda way: way.chrf)
        alone, batched = self.faster(fastest, 1), self.faster(fastest, 32)
        passes = [way for way in parallel if "mask-predict" in way.name]
        found = [
            Claim(f"{fastest.name} is {alone:.1f} times as fast as {first.name} at batch 1.", held=alone > 1),
            Claim(
                f"At batch 32 its advantage is {batched:.1f}: a batch keeps hardware busy without parallel decoding.",
                held=batched < alone,
            ),
            Claim(
                f"The best parallel way, {best.name}, has chrF {best.chrf:.1f} and {100 * best.exact:.0f} % exact;"
                f" {first.name} has {first.chrf:.1f} and {100 * first.exact:.0f} %.",
                held=best.chrf <= first.chrf,
            ),
        ]
        if len(passes) > 1:
            listed = ", ".join(f"{way.name} {way.chrf:.1f}" for way in passes)
            found.append(Claim(f"More passes, better text: chrF {listed}.", held=passes[-1].chrf > passes[0].chrf))
        return found

    def _draw(self, figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for number, (axes, batch) in enumerate(zip(panels, BATCHES, strict=True)):
            for way, colour in zip(self.ways, colours(len(self.ways)), strict=True):
                took = 1000 * way.speeds[number].seconds_a_sentence
                axes.plot([took], [way.chrf], "s" if way.parallel else "o", color=colour, markersize=9, label=way.name)
            axes.set_xscale("log")
            dress(axes, "chrF" if number == 0 else "")
            axes.set_xlabel(f"ms a sentence, batch {batch}", color=INK)
        panels[0].legend(frameon=False, fontsize=8, labelcolor=INK)


def decoding(settings: Decoding | None = None) -> DecodingResult:
    """Train the three models and translate with every search."""
    settings = settings or Decoding()
    with settings.bench(number_words(6000, 200, settings.seed)) as bench:
        longer = round(settings.steps * settings.training_factor)
        opened = {
            name: bench.train(name, *words, steps=settings.steps if words is TRANSFORMER else longer).open()
            for name, words in MODELS.items()
        }
        ways = {
            f"{name}, {search}": (opened[name], how)
            for name, searches in settings.searches().items()
            for search, how in searches.items()
        }
        sources = some_sources(Corpus.open(bench.corpus), 32)
        speeds = decoding_speeds(ways, sources, BATCHES, settings.repeats, bench.device)
        found = [_way(name, *ways[name], bench, tuple(speeds[name, batch] for batch in BATCHES)) for name in ways]
        return DecodingResult(settings, bench.place, tuple(found))


def _way(
    name: str, translator: Translator, search: SearchConfig, bench: Bench, speeds: tuple[DecodingPace, ...]
) -> DecodingWay:
    sources, references = bench.held_out()
    with_search = Translator(translator.engine, translator.tokenizers, search)
    texts = with_search(sources)
    quality = chrf(texts, references).value
    return DecodingWay(
        name, not name.startswith("autoregressive"), parameters(with_search), quality, exact(texts, references), speeds
    )
