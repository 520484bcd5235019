"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), in one file and in the order of the paper.

Lay the paper (https://arxiv.org/abs/1706.03762) beside it and read from the top; the headings are the paper's own.
`python examples/annotated.py` trains a small model to copy, on one processor core, and shows what it learned.
Weights are named as in `transduce`: `load("runs/demo")` reads a run folder and gives the same logits as the package.

Shapes: B sentences, S source tokens, T target tokens, D = d_model, H heads, K = D / H (the paper's d_k and d_v),
V vocabulary. A mask is True where a query may attend. Names are those of transduce/model.
"""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

PAD, UNKNOWN, START, END = 0, 1, 2, 3  # special tokens


# ==== 3 Model Architecture ============================================================================================
#
# Figure 1. The encoder, on the left, reads the whole source at once and leaves a vector for each of its tokens. The
# decoder, on the right, writes the target from left to right: it reads what it has written so far, attends to the
# encoder's vectors, and predicts the probability of each token of the vocabulary as the next one.


class Transformer(nn.Module):
    """The model of figure 1. The defaults are the paper's base model: 65 million weights with its 37,000 tokens."""

    def __init__(
        self,
        vocabulary: int,
        d_model: int = 512,
        layers: int = 6,
        heads: int = 8,
        d_ff: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        # One matrix for source, target and output (section 3.4), kept under the name of its first use.
        self.source_embedding = Embedding(vocabulary, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = EncoderStack(d_model, layers, heads, d_ff, dropout)
        self.decoder = DecoderStack(d_model, layers, heads, d_ff, dropout)
        self.apply(initialise)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Encode source tokens with mask (B, S): the memory, one vector for each token (B, S, D)."""
        memory: Tensor = self.encoder(self.embed(source), source_mask[:, None, None, :])
        return memory

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Decode target tokens so far (B, T): the logits of the token after each (B, T, V)."""
        x = self.decoder(self.embed(target), memory, source_mask[:, None, None, :])
        return self.source_embedding.logits(x)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source, source_mask), source_mask)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens: embedding plus position, and dropout on the sum (bottom of figure 1, section 5.4)."""
        x: Tensor = self.source_embedding(tokens)  # (B, T, D)
        x = self.dropout(x + positional_encoding(x.size(1), x.size(2)).to(x))
        return x


def initialise(module: nn.Module) -> None:
    """Initialise weights as the paper's code does; the paper itself does not say."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, Embedding):
        nn.init.normal_(module.weight, std=module.weight.size(1) ** -0.5)


# ---- 3.1 Encoder and Decoder Stacks ----------------------------------------------------------------------------------
#
# "We employ a residual connection around each of the two sub-layers, followed by layer normalization. That is, the
# output of each sub-layer is LayerNorm(x + Sublayer(x))." Each layer below names its sub-layers, and beside each the
# residual and the norm around it.


class PostNormResidual(nn.Module):
    """LayerNorm(x + Sublayer(x)), the small boxes of figure 1; dropout on the sub-layer's output (section 5.4)."""

    def __init__(self, d_model: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        x = self.norm(x + self.dropout(sublayer(x)))
        return x


class EncoderLayer(nn.Module):
    """An encoder layer (figure 1, left): self-attention over the source, then a feed-forward network per position."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.around_attention = PostNormResidual(d_model, dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.around_feed_forward = PostNormResidual(d_model, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(y, y, mask))
        x = self.around_feed_forward(x, self.feed_forward)
        return x


class EncoderStack(nn.Module):
    """The encoder: "a stack of N = 6 identical layers", identical in shape, each with its own weights."""

    def __init__(self, d_model: int, layers: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(d_model, heads, d_ff, dropout) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)  # (B, S, D)
        return x


class DecoderLayer(nn.Module):
    """A decoder layer (figure 1, right): between the two sub-layers a third, cross-attention to the memory."""

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, heads)
        self.around_attention = PostNormResidual(d_model, dropout)
        self.cross = MultiHeadAttention(d_model, heads)
        self.around_cross = PostNormResidual(d_model, dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.around_feed_forward = PostNormResidual(d_model, dropout)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        x = self.around_attention(x, lambda y: self.attention(y, y, mask))
        x = self.around_cross(x, lambda y: self.cross(y, memory, source_mask))
        x = self.around_feed_forward(x, self.feed_forward)
        return x


class DecoderStack(nn.Module):
    """The decoder; by its mask "the predictions for position i ... depend only on ... positions less than i"."""

    def __init__(self, d_model: int, layers: int, heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(d_model, heads, d_ff, dropout) for _ in range(layers))

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        position = torch.arange(x.size(1), device=x.device)
        mask = position[:, None] >= position  # (T, T): the query in row i may attend to itself and to earlier positions
        for layer in self.layers:
            x = layer(x, mask, memory, source_mask)  # (B, T, D)
        return x


# ---- 3.2 Attention ---------------------------------------------------------------------------------------------------
#
# A query is compared with keys, and the answer is the average of the keys' values, the closer the key the more of its
# value. A dictionary whose lookup is soft, and can therefore be learned by gradient descent.


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Scaled dot-product attention, section 3.2.1 (figure 2, left): softmax(Q K^T / sqrt(d_k)) V, equation 1.

    query (B, H, T, K), key and value (B, H, S, K), mask broadcast to (B, H, T, S) -> (B, H, T, K).
    """
    # The dot product of two vectors of d_k independent numbers of variance 1 has variance d_k. Without the root the
    # softmax of large d_k would sit where it is flat and its gradient almost nothing (the paper's footnote 4).
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, T, S)
    # "... masking out (setting to -infinity) all values ... which correspond to illegal connections" (3.2.3).
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)  # each row sums to 1
    return weights @ value


class MultiHeadAttention(nn.Module):
    """Multi-head attention, section 3.2.2 (figure 2, right): H projected attentions side by side, joined by one more.

    A single head averages everything it attends to into one vector; several can attend to different things.
    """

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # Each holds the matrices W_i of all heads side by side. The paper prints no biases; its code had them.
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Attend with queries from x (B, T, D) to keys and values from memory (B, S, D): (B, T, D)."""

        def split(y: Tensor) -> Tensor:  # (B, T, D) -> (B, H, T, K)
            return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)

        heads = attention(split(self.query(x)), split(self.key(memory)), split(self.value(memory)), mask)
        x = self.output(heads.transpose(1, 2).flatten(2))  # Concat(head_1, ..., head_h) W^O
        return x


# 3.2.3 Applications of Attention. All three are the same class and differ in what is given to it, see 3.1: in the
# encoder queries, keys and values come from the source; in the decoder's first sub-layer from the target so far; in
# its second the queries come from the target, and the keys and values from the source.


# ---- 3.3 Position-wise Feed-Forward Networks -------------------------------------------------------------------------


class FeedForward(nn.Module):
    """Feed-forward network max(0, x W1 + b1) W2 + b2, equation 2, the same at each position; it has most weights."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(self.inner(x).relu())
        return x


# ---- 3.4 Embeddings and Softmax --------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """A vector for each token, multiplied by sqrt(d_model) as input and unscaled as output projection.

    "We share the same weight matrix between the two embedding layers and the pre-softmax linear transformation".
    """

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens] * math.sqrt(self.weight.size(1))

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.weight.T  # (B, T, D) -> (B, T, V); the softmax is left to the loss and to the search


# ---- 3.5 Positional Encoding -----------------------------------------------------------------------------------------


def positional_encoding(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos of the same: (length, D).

    Attention sees a set: shuffle the source and nothing changes. So each vector gets its position, as the hands
    of D / 2 clocks whose hours last from 2 pi to 10000 * 2 pi positions. A step of k positions turns each hand by a
    fixed angle, a linear map, which is how the model may learn to attend "k positions back".
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)  # (length, D / 2)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # sine, cosine, sine, cosine, ...


# ==== 5 Training ======================================================================================================
#
# The decoder reads the right answer shifted by one (figure 1: "Outputs (shifted right)"): at each position it is given
# the tokens before, and predicts the next one. So all positions of all sentences learn in one step.
#
# 5.1 Training Data and Batching. The paper batches sentences of about the same length; what is shorter is padded, and
# the mask hides the padding from attention and from the loss. Here the data is the copy task: write what was read.


def copy_task(sentences: int, vocabulary: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random source (B, S) and its mask, and target (B, S + 1): START, the same tokens, END."""
    lengths = torch.randint(1, longest + 1, (sentences, 1))
    position = torch.arange(longest + 1)
    words = torch.randint(END + 1, vocabulary, (sentences, longest + 1))
    source = words.where(position < lengths, torch.tensor(PAD)).where(position != lengths, torch.tensor(END))
    return source, position <= lengths, torch.cat((torch.full((sentences, 1), START), source), dim=1)


def learning_rate(step: int, d_model: int, warmup: int) -> float:
    """Learning rate, section 5.3, equation 3: linear warmup, then 1 / sqrt(step); the first step is 1."""
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def smoothed_loss(logits: Tensor, gold: Tensor, mask: Tensor, smoothing: float = 0.1) -> Tensor:
    """Label smoothing, section 5.4: the mean over real tokens of the cross-entropy with a softened target.

    The right token should get 1 - e of the probability, and the last e = 0.1 is spread over the whole vocabulary: the
    model learns to be less sure, which costs perplexity and gains BLEU. logits (B, T, V), gold and mask (B, T).
    """
    log_probs = logits.log_softmax(-1)
    right = log_probs.gather(-1, gold[..., None]).squeeze(-1)  # (B, T)
    return -((1 - smoothing) * right + smoothing * log_probs.mean(-1))[mask].mean()


def train(model: Transformer, steps: int, vocabulary: int, longest: int, warmup: int = 400) -> None:
    """Train on the copy task with Adam and the paper's settings (5.3); progress is printed ten times."""
    d_model = model.source_embedding.weight.size(1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    for step in range(1, steps + 1):
        source, mask, target = copy_task(64, vocabulary, longest)
        logits = model(source, mask, target[:, :-1])
        loss = smoothed_loss(logits, gold=target[:, 1:], mask=mask)  # a copy is as long as its source
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, d_model, warmup)
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step:4}   loss {loss.item():.3f}   learning rate {learning_rate(step, d_model, warmup):.5f}")


# ==== 6 Results =======================================================================================================
#
# 6.1 Machine Translation. The paper searches with a beam of 4, which keeps the four best beginnings at each step. With
# a beam of one it is greedy search: always take the likeliest token. (The package caches the keys and values of
# what it has read, instead of reading it again for each token: see `transduce/model/transformer.py`.)


@torch.no_grad()
def greedy(model: Transformer, source: Tensor, source_mask: Tensor, longest: int) -> list[list[int]]:
    """Translate each source (B, S) greedily, without START and END, in at most `longest` tokens."""
    model.eval()
    memory = model.encode(source, source_mask)
    target = torch.full((len(source), 1), START, device=source.device)
    while target.size(1) <= longest and not (target == END).any(dim=1).all():
        newest = model.decode(target, memory, source_mask)[:, -1].argmax(-1, keepdim=True)  # (B, 1)
        target = torch.cat((target, newest), dim=1)
    return [until_end(row) for row in target[:, 1:].tolist()]


def until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END)] if END in tokens else tokens


# ==== Weights trained by the package ==================================================================================


def load(run_folder: str | Path) -> Transformer:
    """Load the model of a run folder of `transduce train`, if it is the paper's in all but its sizes."""
    settings = tomllib.loads(Path(run_folder, "config.toml").read_text(encoding="utf-8"))["model"]
    stack = settings["encoder"]
    described = {name: stack[name] for name in ("activation", "positions", "norm", "residual")} | stack["attention"]
    paper = {"activation": "relu", "positions": "sinusoidal", "norm": "layer_norm", "residual": "post_norm"}
    paper |= {"score": "scaled_dot", "weights": "softmax", "key_heads": 0, "query_key_norm": False}
    kinds = {key: value["kind"] if isinstance(value, dict) else value for key, value in described.items()}
    same = settings["decoder"] == stack | {"wiring": {"kind": "top"}, "unnormed_past": False}
    if not same or settings["tie"] != "all" or any(kinds[key] != value for key, value in paper.items()):
        raise ValueError(f"{run_folder}: a variant of the model; this file has only the paper's")
    weights = load_file(Path(run_folder, "model.safetensors"))
    vocabulary, d_model = weights["source_embedding.weight"].shape
    model = Transformer(
        vocabulary, d_model, stack["layers"], stack["attention"]["heads"], stack["d_ff"], settings["dropout"]
    )
    model.load_state_dict(weights)
    return model.eval()


def main(steps: int = 800, vocabulary: int = 20, longest: int = 10) -> None:
    """Learn to copy, then copy sentences that were never seen."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # matrices this small are not worth sharing between cores
    model = Transformer(vocabulary, d_model=64, layers=1, heads=4, d_ff=128, dropout=0.0)
    print(f"A Transformer of {sum(weight.numel() for weight in model.parameters()):,} weights learns to copy.")
    began = time.monotonic()
    train(model, steps, vocabulary, longest)
    share = 0.1 / vocabulary  # what smoothing wants each wrong token to get: the surest model pays their entropy
    lowest = -(1 - 0.1 + share) * math.log(1 - 0.1 + share) - (vocabulary - 1) * share * math.log(share)
    print(f"Trained in {time.monotonic() - began:.0f} seconds. Label smoothing allows no loss below {lowest:.3f}.\n")

    source, mask, _ = copy_task(200, vocabulary, longest)
    copies = greedy(model, source, mask, longest + 1)
    sentences = [until_end(row) for row in source.tolist()]
    for sentence, copy in list(zip(sentences, copies, strict=True))[:5]:
        print(f"read {' '.join(map(str, sentence)):30} wrote {' '.join(map(str, copy))}")
    right = sum(sentence == copy for sentence, copy in zip(sentences, copies, strict=True))
    print(f"\n{right} of {len(sentences)} new sentences copied without a fault.")


if __name__ == "__main__":
    main()
