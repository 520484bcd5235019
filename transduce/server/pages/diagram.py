"""Figure 1 of the paper as SVG: blocks that can be clicked, on the left the encoder, on the right the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

WIDE, LEFT, RIGHT = 150, 70, 330
# Where each block stands: its key, its lines of words, how far from the top, its kind (for its colour).
ENCODER = (
    ("encoder-norm-2", ("Add & Norm",), 270, "norm"),
    ("encoder-feed-forward", ("Feed", "Forward"), 305, "feed"),
    ("encoder-norm-1", ("Add & Norm",), 390, "norm"),
    ("encoder-attention", ("Multi-Head", "Attention"), 425, "attention"),
)
DECODER = (
    ("softmax", ("Softmax",), 50, "soft"),
    ("linear", ("Linear",), 95, "line"),
    ("decoder-norm-3", ("Add & Norm",), 150, "norm"),
    ("decoder-feed-forward", ("Feed", "Forward"), 185, "feed"),
    ("decoder-norm-2", ("Add & Norm",), 270, "norm"),
    ("decoder-cross", ("Multi-Head", "Attention"), 305, "attention"),
    ("decoder-norm-1", ("Add & Norm",), 390, "norm"),
    ("decoder-attention", ("Masked Multi-Head", "Attention"), 425, "attention"),
)
LINE = 20


def diagram(words: Mapping[str, str]) -> str:
    """The whole figure; each block a button with `data-block`."""
    blocks = "".join(_block(LEFT, *one) for one in ENCODER) + "".join(_block(RIGHT, *one) for one in DECODER)
    for x, side, name in ((LEFT, "input", ("Input", "Embedding")), (RIGHT, "output", ("Output", "Embedding"))):
        blocks += _block(x, side, name, 580, "embed") + _circle(x, f"{side}-positions")
    labels = (
        _label(LEFT + WIDE // 2, 660, words["inputs"])
        + _label(RIGHT + WIDE // 2, 660, words["outputs"])
        + _label(RIGHT + WIDE // 2, 22, words["probabilities"])
        + _label(LEFT - 44, 378, "N×")
        + _label(RIGHT + WIDE + 44, 318, "N×")
    )
    return (
        f'<svg viewBox="0 0 560 680" class="diagram" role="group" aria-label="{escape(words["figure"])}">'
        f"{_stacks()}{_arrows()}{blocks}{labels}</svg>"
    )


def _block(x: int, key: str, lines: tuple[str, ...], y: int, kind: str) -> str:
    height = LINE * len(lines) + 10
    middle = x + WIDE // 2
    text = " ".join(
        f'<tspan x="{middle}" y="{y + 20 + LINE * number}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    name = escape(" ".join(lines))
    return (
        f'<g class="block {kind}" role="button" tabindex="0" data-block="{key}" aria-label="{name}"'
        f' aria-pressed="false"><rect x="{x}" y="{y}" width="{WIDE}" height="{height}" rx="8"/><text>{text}</text></g>'
    )


def _circle(x: int, key: str) -> str:
    """The sum with the positions: a circle with a wave beside the line."""
    left = x == LEFT
    middle, wave = x + WIDE // 2, (x - 20 if left else x + WIDE + 20)
    return (
        f'<g class="block wave" role="button" tabindex="0" data-block="{key}" aria-label="Positional Encoding"'
        f' aria-pressed="false"><path class="plain" d="M{wave},535H{middle}"/>'
        f'<circle cx="{wave}" cy="535" r="20"/><path class="sine" d="M{wave - 13},535c4,-16 9,-16 13,0s9,16 13,0"/>'
        f'<circle cx="{middle}" cy="535" r="11"/><path class="plain" d="M{middle - 6},535h12M{middle},529v12"/></g>'
    )


def _label(x: int, y: int, text: str) -> str:
    return f'<text class="label" x="{x}" y="{y}">{escape(text)}</text>'


def _stacks() -> str:
    return (
        f'<rect class="stack" x="{LEFT - 24}" y="252" width="{WIDE + 48}" height="252" rx="18"/>'
        f'<rect class="stack" x="{RIGHT - 24}" y="132" width="{WIDE + 48}" height="372" rx="18"/>'
    )


def _arrows() -> str:
    """The way up on both sides, the way across, and around every block the residual."""
    left, right = LEFT + WIDE // 2, RIGHT + WIDE // 2
    ways = [
        f"M{left},645V630", f"M{left},580V546", f"M{left},524V475", f"M{left},390V355",
        f"M{left},270V236H{left + 115}V330H{RIGHT}",
        f"M{right},645V630", f"M{right},580V546", f"M{right},524V475", f"M{right},390V355", f"M{right},270V235",
        f"M{right},150V125", f"M{right},95V80", f"M{right},50V30",
    ]  # fmt: skip
    around = [
        (left, LEFT - 14, 512, 405), (left, LEFT - 14, 372, 285),
        (right, RIGHT + WIDE + 14, 512, 405), (right, RIGHT + WIDE + 14, 372, 285),
        (right, RIGHT + WIDE + 14, 252, 165),
    ]  # fmt: skip
    for middle, aside, low, high in around:
        edge = LEFT if aside < middle else RIGHT + WIDE
        ways.append(f"M{middle},{low}H{aside}V{high}H{edge}")
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path d="M0,0 8,4 0,8z"/></marker></defs>'
    )
    return marker + "".join(f'<path class="way" marker-end="url(#tip)" d="{way}"/>' for way in ways)
