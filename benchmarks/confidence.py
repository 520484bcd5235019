"""Fit the confidence of a model on some sets, and measure it on others: news, which it has not seen.

    python benchmarks/confidence.py DATA                       # AUROC and calibration of the shipped model on news
    python benchmarks/confidence.py DATA --write FOLDER        # and store what was fitted, as FOLDER/confidence.json

DATA holds Europarl and MLQE-PE (general/), the Tatoeba Challenge's tests and wmt-news, as xz files of aligned lines. It
is fitted on the first three. On news, AUROC is for the lowest fifth of each direction by sentence chrF; the calibration
error is for the fitted bound of each direction. Exits with code 1 if one of the bars is missed.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import transduce
from transduce.metrics.sentence import sentence_scorer
from transduce.translate.confidence import Estimator
from transduce.workflows.pipeline.confidence import (
    HeldOut,
    auroc,
    fit,
    measure,
    observe,
    reliability_table,
)

AUROC, ERROR = 0.85, 0.05  # bars
TATOEBA = {"de": "deu-eng.test", "fr": "eng-fra.test", "es": "eng-spa.test", "zh": "eng-zho.test"}
NEWS = {"de": ("newstest2014.en-de",), "fr": ("newstest2014.en-fr",), "zh": ("newstest2017.zh-en",)}
MORE_NEWS = {"de": ("newstest2013.en-de",), "fr": ("newstest2013.en-fr",), "zh": ("newstest2018.zh-en",)}


def read(path: Path) -> list[str]:
    r"""The lines of a file, cut at \n alone."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


def both_ways(language: str, english: list[str], other: list[str], most: int) -> Iterator[HeldOut]:
    yield HeldOut.spread(f"en-{language}", language, english, other, most)
    yield HeldOut.spread(f"{language}-en", "en", other, english, most)


def fitting(data: Path, most: int) -> list[HeldOut]:
    """Parliament, encyclopedia and short everyday sentences."""
    texts = []
    for name in ("europarl", "mlqe-pe"):
        for path in sorted((data / "general" / name).glob("train.en-*.en.xz")):
            language = path.name.split(".")[1].removeprefix("en-")
            other = path.with_name(path.name.replace(".en.xz", f".{language}.xz"))
            texts += both_ways(language, read(path), read(other), most)
    for language, name in TATOEBA.items():
        english, other = (read(data / "tatoeba-challenge" / f"{name}.{code}.xz") for code in ("en", language))
        if language == "zh":  # simplified Mandarin alone
            codes = read(data / "tatoeba-challenge" / f"{name}.langs.xz")
            kept = [number for number, line in enumerate(codes) if "cmn_Hans" in line]
            english, other = [english[n] for n in kept], [other[n] for n in kept]
        texts += both_ways(language, english, other, most)
    names = [next((data / "tatoeba-pt-en").glob(f"*test*.{code}.xz")) for code in ("en", "pt")]
    return [*texts, *both_ways("pt", *map(read, names), most)]


def news(data: Path, most: int, sets: dict[str, tuple[str, ...]]) -> list[HeldOut]:
    return [
        text
        for language, names in sets.items()
        for name in names
        for text in both_ways(
            language, *(read(data / "wmt-news" / f"{name}.{code}.xz") for code in ("en", language)), most
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, help="default: the shipped one")
    parser.add_argument("--most", type=int, default=250, help="sentences of a set and direction to fit on")
    parser.add_argument("--sentences", type=int, default=300, help="news sentences of a direction")
    parser.add_argument("--other-news", action="store_true", help="measure on newstest2013 and 2018 instead")
    parser.add_argument("--write", type=Path, help="folder to write confidence.json to")
    options = parser.parse_args()
    translator = transduce.load(options.model, engine="native")
    model = fit(observe(translator, fitting(options.data, options.most), beam=4))
    figures = model.figures
    print(
        f"fitted on {figures.sentences:,} translations; left out: AUROC {figures.auroc:.3f}, error {figures.error:.3f}"
    )
    translator.confidence = Estimator(model, translator.tokenizers)
    confidence, acceptable, lowest, members = [], [], [], {}
    for text in news(options.data, options.sentences, MORE_NEWS if options.other_news else NEWS):
        made = translator.translate(text.sources, beam=4, to=text.target)
        chrf = sentence_scorer("chrf")([one.text for one in made], text.references)
        sure = np.array([one.confidence or 0.0 for one in made])
        good, fifth = chrf >= model.bounds[text.direction], chrf > np.quantile(chrf, 0.2)
        members[text.direction] = np.arange(len(made)) + sum(map(len, confidence))
        error = measure(sure, good, {"": np.arange(len(made))}).error
        print(
            f"{text.direction}: AUROC of the lowest fifth {auroc(sure, fifth):.3f}, calibration error {error:.3f};"
            f" confidence {sure.mean():.2f}, acceptable {good.mean():.2f} (chrF of {model.bounds[text.direction]:.1f})"
        )
        confidence.append(sure)
        acceptable.append(good)
        lowest.append(fifth)
    sure, good = np.concatenate(confidence), np.concatenate(acceptable)
    found = replace(measure(sure, good, members), auroc=measure(sure, np.concatenate(lowest), members).auroc)
    print(f"all: AUROC {found.auroc:.3f} (bar {AUROC}), calibration error {found.error:.3f} (bar {ERROR})")
    print("\n".join(reliability_table(found)))
    if options.write:
        model.write(options.write)
    sys.exit(found.auroc < AUROC or found.error > ERROR)


if __name__ == "__main__":
    main()
