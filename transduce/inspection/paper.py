"""Figure 1 of "Attention Is All You Need" in words and formulas: what each block of the diagram is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """A kind of block: its name and what it does, by language; the formula; the paper's section."""

    title: dict[str, str]
    about: dict[str, str]
    formula: str
    section: str


def _sub(base: str, below: str) -> str:
    return f"<msub>{base}{below}</msub>"


def _sup(base: str, above: str) -> str:
    return f"<msup>{base}{above}</msup>"


def _row(*parts: str) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def _in(*parts: str) -> str:
    """Wrap in brackets, tall ones around fractions."""
    tall = "" if any("<mfrac" in part for part in parts) else ' stretchy="false"'
    return _row(f"<mo{tall}>(</mo>", *parts, f"<mo{tall}>)</mo>")


def _i(name: str) -> str:
    return f"<mi>{name}</mi>"


def _n(number: str) -> str:
    return f"<mn>{number}</mn>"


def _o(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def _word(text: str) -> str:
    return f'<mi mathvariant="normal">{text}</mi>'


def _math(*lines: str) -> str:
    return "".join(f'<math display="block">{_row(line)}</math>' for line in lines)


_X, _Q, _K, _V, _D = _i("x"), _i("Q"), _i("K"), _i("V"), _sub(_i("d"), _word("model"))
_ANGLE = f"<mfrac>{_i('pos')}{_sup(_n('10000'), _row(_n('2'), _i('i'), _o('/'), _D))}</mfrac>"
_SCORES = f"<mfrac>{_row(_Q, _sup(_K, _i('T')))}<msqrt>{_sub(_i('d'), _i('k'))}</msqrt></mfrac>"
_EQUATION_1 = _row(
    _word("Attention"), _in(_Q, _o(","), _K, _o(","), _V), _o("="), _word("softmax"),
    _in(_SCORES), _V,
)  # fmt: skip
_HEADS = _row(
    _word("MultiHead"), _in(_Q, _o(","), _K, _o(","), _V), _o("="), _word("Concat"),
    _in(_sub(_word("head"), _n("1")), _o(","), _o("…"), _o(","), _sub(_word("head"), _i("h"))), _sup(_i("W"), _i("O")),
)  # fmt: skip

EMBEDDING = Explanation(
    {"en": "Embedding", "zh": "词嵌入"},
    {
        "en": "A vector for each token, looked up in a table that is learned, times √d_model. The output uses the same"
        " table.",
        "zh": "每个词元查表得到一个学习到的向量，再乘以 √d_model。输出层用同一张表。",
    },
    _math(_row(_X, _o("="), _sub(_i("E"), _word("token")), f"<msqrt>{_D}</msqrt>")),
    "3.4",
)
POSITIONS = Explanation(
    {"en": "Positional encoding", "zh": "位置编码"},
    {
        "en": "Attention by itself does not know the order of words. Waves of many lengths are added, so that each"
        " place has a pattern of its own.",
        "zh": "注意力本身不知道词序。加上不同波长的波，使每个位置有自己的模式。",
    },
    _math(
        _row(_word("PE"), _in(_i("pos"), _o(","), _n("2"), _i("i")), _o("="), _word("sin"), _in(_ANGLE)),
        _row(_word("PE"), _in(_i("pos"), _o(","), _n("2"), _i("i"), _o("+"), _n("1")), _o("="), _word("cos"),
             _in(_ANGLE)),
    ),
    "3.5",
)  # fmt: skip
ATTENTION = Explanation(
    {"en": "Multi-head attention", "zh": "多头注意力"},
    {
        "en": "Each token asks a question (Q), every token offers a key (K) and a value (V). Where both agree,"
        " the value is taken. Several heads do so side by side.",
        "zh": "每个词元提出查询 (Q)，每个词元提供键 (K) 和值 (V)。查询与键相符处取其值。多个头并行。",
    },
    _math(_EQUATION_1, _HEADS),
    "3.2",
)
MASKED = Explanation(
    {"en": "Masked multi-head attention", "zh": "带掩码的多头注意力"},
    {
        "en": "The same over what is written so far: a place may look at itself and at those before it, for what comes"
        " after is still to be written. The scores of the rest are -∞ before the softmax.",
        "zh": "对已写出的部分做同样的事：每个位置只能看自己和前面，其余位置的分数在 softmax 之前设为 -∞。",
    },
    _math(
        _row(_word("softmax"), _in(_SCORES, _o("+"), _i("M")), _V, _o(","),
             _sub(_i("M"), _row(_i("i"), _i("j"))), _o("="), _o("-"), _n("∞"),
             _word(" if "), _i("j"), _o("&gt;"), _i("i")),
    ),
    "3.2.3",
)  # fmt: skip
CROSS = Explanation(
    {"en": "Multi-head attention to the source", "zh": "对源句的多头注意力"},
    {
        "en": "Questions come from the decoder, keys and values from the encoder: each word to be written looks at the"
        " source sentence.",
        "zh": "查询来自解码器，键和值来自编码器：每个要写的词看源句。",
    },
    _math(_EQUATION_1),
    "3.2.3",
)
RESIDUAL = Explanation(
    {"en": "Add & norm", "zh": "残差与归一化"},
    {
        "en": "What went in is added to what came out, so that a layer only has to learn a change; the norm keeps the"
        " numbers in range.",
        "zh": "输入加到输出上，使一层只需学习变化；归一化保持数值范围。",
    },
    _math(_row(_word("LayerNorm"), _in(_X, _o("+"), _word("Sublayer"), _in(_X)))),
    "3.1",
)
FEED_FORWARD = Explanation(
    {"en": "Feed forward", "zh": "前馈网络"},
    {
        "en": "Two linear maps with a cut at zero between, the same at every place: here each token is worked on by"
        " itself.",
        "zh": "两个线性映射，中间截断于零，每个位置相同：这里每个词元独自处理。",
    },
    _math(
        _row(_word("FFN"), _in(_X), _o("="), _word("max"), _in(_n("0"), _o(","), _X, _sub(_i("W"), _n("1")), _o("+"),
             _sub(_i("b"), _n("1"))), _sub(_i("W"), _n("2")), _o("+"), _sub(_i("b"), _n("2"))),
    ),
    "3.3",
)  # fmt: skip
LINEAR = Explanation(
    {"en": "Linear", "zh": "线性层"},
    {
        "en": "The last vector is compared with the embedding of every token: one number for each, its logit.",
        "zh": "最后的向量与每个词元的嵌入比较：每个词元得到一个数，即 logit。",
    },
    _math(_row(_i("z"), _o("="), _X, _sup(_i("E"), _i("T")))),
    "3.4",
)
SOFTMAX = Explanation(
    {"en": "Softmax", "zh": "Softmax"},
    {
        "en": "Logits become probabilities of the next token. The search takes the best of them, and what is written is"
        " read at the next step.",
        "zh": "logit 变成下一个词元的概率。搜索取其中最好的，写出的词在下一步读入。",
    },
    _math(
        _row(_i("p"), _in(_i("w")), _o("="), f"<mfrac>{_sup(_i('e'), _sub(_i('z'), _i('w')))}"
             f"{_row('<munder><mo>∑</mo><mi>v</mi></munder>', _sup(_i('e'), _sub(_i('z'), _i('v'))))}</mfrac>"),
    ),
    "3.4",
)  # fmt: skip

# The blocks of the diagram, from the input up, left side first: their keys, and what each is.
FIGURE_1 = {
    "input": EMBEDDING,
    "input-positions": POSITIONS,
    "encoder-attention": ATTENTION,
    "encoder-norm-1": RESIDUAL,
    "encoder-feed-forward": FEED_FORWARD,
    "encoder-norm-2": RESIDUAL,
    "output": EMBEDDING,
    "output-positions": POSITIONS,
    "decoder-attention": MASKED,
    "decoder-norm-1": RESIDUAL,
    "decoder-cross": CROSS,
    "decoder-norm-2": RESIDUAL,
    "decoder-feed-forward": FEED_FORWARD,
    "decoder-norm-3": RESIDUAL,
    "linear": LINEAR,
    "softmax": SOFTMAX,
}
