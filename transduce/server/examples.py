"""What a reader may begin with: a sentence that a model can read, and a request for each endpoint made of it."""

from __future__ import annotations

from typing import Any

from transduce.languages import base_of
from transduce.server.models import Models, Served

SENTENCES = {"en": "Cats like to sleep.", "de": "Katzen schlafen gern.", "zh": "猫喜欢睡觉。"}
NUMBERS = ("four thousand two hundred and seventeen", "seven")


def sentence(served: Served) -> str:
    """A sentence in a language the model reads, that it can spell and is not too long for it; else number words."""
    return _known(served)[1]


def requests(models: Models) -> dict[str, dict[str, Any]]:
    """The JSON to send to each path that takes some; a translation is said to be what it is in `SENTENCES`."""
    served = models.served[0]
    language, text = _known(served)
    source, target = next((pair for pair in served.pairs if base_of(pair[0]) == language), served.pairs[0])
    ways = {"source": source, "target": target}
    pairs = {**ways, "texts": [text], "translations": [SENTENCES.get(base_of(target), text)]}
    return {
        "/v1/translate": {"text": text, **ways, "n_best": 2, "alignment": "words"},
        "/v1/score": pairs,
        "/v1/align": {**pairs, "unit": "words"},
        "/v1/attention": pairs,
        "/v1/detect": {"text": text},
        "/translate": {"q": text, "source": "auto", "target": target, "format": "text", "alternatives": 1},
        "/detect": {"q": text},
        "/v2/translate": {"text": [text], "target_lang": target},
        "/v2/languages": {"type": "target"},
        "/v2/usage": {},
    }


def _known(served: Served) -> tuple[str, str]:
    tokenizer = served.translator.tokenizers.source
    read = {base_of(source) for source, _ in served.pairs}
    candidates = [(code, text) for code, text in SENTENCES.items() if code in read]
    for code, text in (*candidates, *(("en", text) for text in NUMBERS)):
        tokens = tokenizer.encode([text])[0]
        if tokenizer.symbols.unk not in tokens and len(tokens) + 1 < served.translator.longest:
            return code, text
    return "", ""
