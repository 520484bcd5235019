"""Full-width punctuation of Chinese and Japanese, put back where a tokenizer's normalization made it narrow.

NFKC, which sentencepiece applies unless told otherwise, writes `你好，世界？` as `你好,世界?`: right for a vocabulary,
wrong on a page. What stands before a mark decides, never what follows, so that text that grows by words only grows.
"""

from __future__ import annotations

import re

NARROW, WIDE = ",?!:;", "，？！：；"
_WIDENED = str.maketrans(NARROW, WIDE)
_LETTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Han characters; Korean has narrow marks
_BEFORE = (
    rf"(?<=[{_LETTERS}」』》】])",
    rf"(?<=[{_LETTERS}。][”’\")])",  # a quotation or a bracket in such text has ended
    rf"(?<=[{_LETTERS}。][{NARROW}][”’\")])",
)
_MARKS = re.compile(rf"(?:{'|'.join(_BEFORE)})[{NARROW}]+")


def widened(text: str) -> str:
    """The text with full-width marks after Chinese and Japanese; others stay: of `他7:30来,好吗?` the colon."""
    return _MARKS.sub(lambda found: found[0].translate(_WIDENED), text)
