"""Chinese in one script: traditional characters to simplified ones, by OpenCC (`pip install 'transduce[chinese]'`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from transduce.errors import UserError

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_BETWEEN = re.compile(r"(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]) (?=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])")


@cache
def converter() -> Callable[[str], str]:
    """Traditional to simplified, phrase by phrase; simplified text stays as it is."""
    try:
        import opencc
    except ImportError:
        raise UserError(
            "writing Chinese in simplified characters needs the package opencc: pip install 'transduce[chinese]'"
            " (or set simplified = [] to leave Chinese as it is)"
        ) from None
    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


def simplify(text: str) -> str:
    """The text in simplified characters. Labels such as cmn_Hans are not asked: some of them are wrong."""
    return converter()(text)


def close_up(text: str) -> str:
    """Without the spaces between Chinese characters, which some corpora put there and some do not."""
    return _BETWEEN.sub("", text)
