"""Small models as Marian itself keeps them, and what Marian computes with them, in plain numpy.

Written after Marian's source (src/models/transformer.h, src/translator/beam_search.cpp), not after ours: no part of the
package is used here.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml
from random_runs import lines

D, HEADS, INNER, LAYERS, EOS, UNK = 32, 4, 48, 2, 0, 1
SOURCE = lines("abcdefghij", 1, 400)
FACTS: dict[str, Any] = {
    "type": "transformer", "tied-embeddings-all": True, "tied-embeddings": False, "tied-embeddings-src": False,
    "transformer-postprocess-emb": "d", "transformer-ffn-depth": 2, "transformer-decoder-ffn-depth": 0,
    "transformer-decoder-dim-ffn": 0, "transformer-decoder-autoreg": "self-attention", "dec-cell": "gru",
    "transformer-train-position-embeddings": False, "transformer-tied-layers": [], "layer-normalization": False,
    "right-left": False, "dim-emb": D, "enc-depth": LAYERS, "dec-depth": LAYERS, "transformer-heads": HEADS,
    "transformer-dim-ffn": INNER, "transformer-ffn-activation": "swish", "version": "v1.12.42",
}  # fmt: skip
WIRING = {"post": ("", "dan", ""), "pre": ("n", "da", "n")}
Arrays = dict[str, np.ndarray[Any, Any]]


@cache
def vocabulary() -> bytes:
    """A SentencePiece model with Marian's numbers for the end and the unknown."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCE), model_writer=made, vocab_size=60, bos_id=-1, eos_id=EOS, unk_id=UNK, pad_id=-1,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return made.getvalue()


def pieces() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=vocabulary())


def arrays(wiring: str, seed: int = 5) -> Arrays:
    """Random weights under Marian's names."""
    draw = np.random.default_rng(seed)
    suffix = "_pre" if wiring == "pre" else ""

    def shapes() -> Iterator[tuple[str, tuple[int, int]]]:
        yield "Wemb", (pieces().get_piece_size(), D)
        yield "decoder_ff_logit_out_b", (1, pieces().get_piece_size())
        for side in ("encoder", "decoder"):
            for layer in range(1, LAYERS + 1):
                own = f"{side}_l{layer}"
                for part in ("self", "context")[: 1 + (side == "decoder")]:
                    for letter in "qkvo":
                        yield f"{own}_{part}_W{letter}", (D, D)
                        yield f"{own}_{part}_b{letter}", (1, D)
                    for kind in ("scale", "bias"):
                        yield f"{own}_{part}_Wo_ln_{kind}{suffix}", (1, D)
                for number, shape in (("1", (D, INNER)), ("2", (INNER, D))):
                    yield f"{own}_ffn_W{number}", shape
                    yield f"{own}_ffn_b{number}", (1, shape[1])
                for kind in ("scale", "bias"):
                    yield f"{own}_ffn_ffn_ln_{kind}{suffix}", (1, D)
            if wiring == "pre":
                for kind in ("scale", "bias"):
                    yield f"{side}_top_ln_{kind}", (1, D)

    found: Arrays = {}
    for name, shape in shapes():
        wide = shape[0] > 1 and name != "Wemb"
        values = draw.normal(size=shape) * (1.5 * shape[0] ** -0.5 if wide else 0.2)
        found[name] = (values + ("scale" in name)).astype(np.float32)
    found["decoder_ff_logit_out_b"][0, EOS] += 2.0  # so that translations end
    return found


def settings(wiring: str, **changed: Any) -> np.ndarray[Any, Any]:
    names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    facts = {**FACTS, **dict(zip(names, WIRING[wiring], strict=True)), **changed}
    return np.frombuffer(yaml.safe_dump(facts).encode() + b"\0", np.int8)


def folder(path: Path, wiring: str, seed: int = 5, **changed: Any) -> Arrays:
    """Write a folder with the names that Marian gives its files; gives the weights."""
    path.mkdir(parents=True)
    found = arrays(wiring, seed)
    np.savez(path / "model.npz", **found, **{"special:model.yml": settings(wiring, **changed)})
    (path / "vocab.spm").write_bytes(vocabulary())
    decoder = {"relative-paths": False, "models": ["work/model.npz"], "vocabs": ["work/vocab.spm"] * 2}
    told = {**decoder, "beam-size": 6, "normalize": 0.6, "word-penalty": 0, "mini-batch": 32}
    (path / "model.npz.decoder.yml").write_text(yaml.safe_dump(told))
    return found


def binary(path: Path, weights: Arrays, model_yml: np.ndarray[Any, Any], int8: bool) -> None:
    """Marian's binary format; with `int8`, matrices of layers as `marian-conv -g intgemm8` writes them."""
    items: list[tuple[bytes, int, tuple[int, ...], bytes]] = []
    for name, array in weights.items():
        packed = int8 and name.split("_")[-1].startswith("W")
        data = array.astype("<f4").tobytes()
        if packed and name != "Wemb":
            factor = np.float32(127) / np.abs(array).max()
            data = np.rint(array.T * factor).astype(np.int8).tobytes() + struct.pack("<f", factor)
        kind = 0x10001 if packed and name != "Wemb" else 0x404
        items.append((name.encode() + b"\0", kind, array.shape, data + bytes(-len(data) % 256)))
    items.append((b"special:model.yml\0", 0x101, model_yml.shape, model_yml.tobytes()))
    begin = struct.pack("<QQ", 1, len(items))
    begin += b"".join(struct.pack("<QQQQ", len(n), kind, len(shape), len(data)) for n, kind, shape, data in items)
    begin += b"".join(name for name, *_ in items)
    begin += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(begin) + 8) % 256
    path.write_bytes(begin + struct.pack("<Q", padding) + bytes(padding) + b"".join(data for *_, data in items))


# -- what Marian computes ---------------------------------------------------------------------------------------------


class Reference:
    """Marian's Transformer, one sentence at a time, in double precision."""

    def __init__(self, weights: Arrays, wiring: str, as_trained: bool = False) -> None:
        self.w = {name: array.astype(np.float64) for name, array in weights.items()}
        self.pre, self.as_trained = wiring == "pre", as_trained

    def embedded(self, tokens: Sequence[int], start: bool) -> Any:
        rows = [np.zeros(D)] * start + [self.w["Wemb"][token] for token in tokens]
        waves = D // 2
        steps = np.exp(-np.arange(waves) * math.log(10000.0) / (waves - 1))
        angles = np.arange(len(rows))[:, None] * steps
        return np.stack(rows) * math.sqrt(D) + np.concatenate((np.sin(angles), np.cos(angles)), axis=1)

    def norm(self, x: Any, name: str) -> Any:
        scale, bias = (self.w[name.replace("_ln", f"_ln_{kind}")] for kind in ("scale", "bias"))
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-9) * scale + bias

    def attend(self, name: str, x: Any, seen: Any, causal: bool = False) -> Any:
        def heads(of: Any, letter: str) -> Any:
            made = of @ self.w[f"{name}_W{letter}"] + self.w[f"{name}_b{letter}"]
            return made.reshape(len(of), HEADS, -1).transpose(1, 0, 2)

        scores = heads(x, "q") @ heads(seen, "k").transpose(0, 2, 1) / math.sqrt(D // HEADS)
        if causal:
            scores = np.where(np.tril(np.ones((len(x), len(seen)), bool)), scores, -1e9)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        joined = (weights @ heads(seen, "v")).transpose(1, 0, 2).reshape(len(x), -1)
        return joined @ self.w[f"{name}_Wo"] + self.w[f"{name}_bo"]

    def feed(self, name: str, x: Any) -> Any:
        inner = x @ self.w[f"{name}_W1"] + self.w[f"{name}_b1"]
        return inner / (1 + np.exp(-inner)) @ self.w[f"{name}_W2"] + self.w[f"{name}_b2"]

    def around(self, name: str, x: Any, sublayer: Any) -> Any:
        if not self.pre:
            return self.norm(x + sublayer(x), f"{name}_ln")
        self.w.setdefault(f"{name}_ln_scale", self.w[f"{name}_ln_scale_pre"] if self.pre else None)
        self.w.setdefault(f"{name}_ln_bias", self.w[f"{name}_ln_bias_pre"] if self.pre else None)
        return x + sublayer(self.norm(x, f"{name}_ln"))

    def encode(self, tokens: Sequence[int]) -> Any:
        x = self.embedded([*tokens, EOS], start=False)
        for layer in range(1, LAYERS + 1):
            own = f"encoder_l{layer}"
            x = self.around(f"{own}_self_Wo", x, lambda y, own=own: self.attend(f"{own}_self", y, y))
            x = self.around(f"{own}_ffn_ffn", x, lambda y, own=own: self.feed(f"{own}_ffn", y))
        return self.norm(x, "encoder_top_ln") if self.pre else x

    def itself(self, name: str, x: Any, y: Any) -> Any:
        """The decoder's self-attention; after the first step keys and values are of states that no norm has seen."""
        if not self.pre or self.as_trained:
            return self.attend(name, y, y, causal=True)
        return np.concatenate((self.attend(name, y[:1], y[:1]), self.attend(name, y, x, causal=True)[1:]))

    def log_probs(self, memory: Any, tokens: Sequence[int]) -> Any:
        """Of every token after all of these (V,)."""
        x = self.embedded(tokens, start=True)
        for layer in range(1, LAYERS + 1):
            own = f"decoder_l{layer}"
            x = self.around(f"{own}_self_Wo", x, lambda y, own=own, x=x: self.itself(f"{own}_self", x, y))
            x = self.around(f"{own}_context_Wo", x, lambda y, own=own: self.attend(f"{own}_context", y, memory))
            x = self.around(f"{own}_ffn_ffn", x, lambda y, own=own: self.feed(f"{own}_ffn", y))
        top = self.norm(x, "decoder_top_ln")[-1] if self.pre else x[-1]
        logits = top @ self.w["Wemb"].T + self.w["decoder_ff_logit_out_b"][0]
        found = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        found[UNK] = -math.inf
        return found

    def search(self, tokens: Sequence[int], size: int, power: float) -> list[tuple[float, float, tuple[int, ...]]]:
        """Marian's beam, which loses a place for each hypothesis that ends: (score, log-probability, tokens)."""
        memory, longest = self.encode(tokens), 3 * (len(tokens) + 1)
        live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        found: list[tuple[float, float, tuple[int, ...]]] = []
        for step in range(1, longest + 1):
            every = [
                (total + float(log_prob), (*path, token))
                for total, path in live
                for token, log_prob in enumerate(self.log_probs(memory, path))
            ]
            best = sorted(every, key=lambda pair: -pair[0])[:size]
            found += [(total / step**power, total, path[:-1]) for total, path in best if path[-1] == EOS]
            live = [(total, path) for total, path in best if path[-1] != EOS]
            size = len(live)
            if not live:
                break
        return sorted(found, reverse=True)
