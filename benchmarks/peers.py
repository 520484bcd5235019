"""Other toolkits' models in the usual plain training loop: a mean loss, backward, one step of fused Adam.

Each is a function from the sizes to a module and a loss function. Dropout is where the paper has it: peers
that also drop attention weights and inner activations have that turned off, which makes them faster. Each function
imports its toolkit, so that a missing one is an ImportError of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from workload import BOS, EOS, PAD, Sizes, word

LossOf = Callable[[Tensor, Tensor], Tensor]  # source (B, S), target (B, T + 1) -> mean over target tokens
LONGEST = 512


def smoothed(logits: Tensor, gold: Tensor, smoothing: float) -> Tensor:
    """The smoothed cross-entropy of torch itself, the mean over real tokens."""
    return F.cross_entropy(logits.flatten(0, 1), gold.flatten(), ignore_index=PAD, label_smoothing=smoothing)


def marian(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """Hugging Face MarianMTModel with scaled_dot_product_attention."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=sizes.vocabulary,
        d_model=sizes.d_model,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        dropout=sizes.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=LONGEST,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=BOS,
        share_encoder_decoder_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = MarianMTModel(config)

    def loss(source: Tensor, target: Tensor) -> Tensor:
        out = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target[:, :-1])
        return smoothed(out.logits, target[:, 1:], sizes.smoothing)

    return model, loss


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and a tied output, as its tutorials add them."""

    positions: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=sizes.d_model**-0.5)
        self.transformer = nn.Transformer(
            sizes.d_model, sizes.heads, sizes.layers, sizes.layers, sizes.d_ff, sizes.dropout, batch_first=True
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = 0.0  # between the two maps of the feed-forward network
        self.dropout = nn.Dropout(sizes.dropout)
        angles = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, sizes.d_model, 2) / sizes.d_model)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("positions", table)

    def embed(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        embedded: Tensor = self.dropout(vectors + self.positions[: tokens.size(1)])
        return embedded

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        padding = source == PAD
        ahead = torch.ones(inputs.size(1), inputs.size(1), dtype=torch.bool, device=inputs.device).triu(1)
        out = self.transformer(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=ahead,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(out, self.embedding.weight)


def torch_eager(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """torch.nn.Transformer without compiling."""
    model = TorchTransformer(sizes)
    return model, lambda source, target: smoothed(model(source, target[:, :-1]), target[:, 1:], sizes.smoothing)


def torch_compiled(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """torch.nn.Transformer under torch.compile, as in its tutorials: dimensions become dynamic when they change."""
    model = TorchTransformer(sizes)
    compiled = torch.compile(model)
    return model, lambda source, target: smoothed(compiled(source, target[:, :-1]), target[:, 1:], sizes.smoothing)


def torch_compiled_loss(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """torch.nn.Transformer and its loss under torch.compile, shapes dynamic from the start."""
    model, loss = torch_eager(sizes)
    compiled: LossOf = torch.compile(loss, dynamic=True)
    return model, compiled


def joeynmt(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """JoeyNMT's model and its own loss."""
    from joeynmt.model import build_model
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
    from joeynmt.vocabulary import Vocabulary

    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    vocabulary = Vocabulary.__new__(Vocabulary)  # its constructor searches a list for each of its words
    words = [*tokens.values(), *(word(token) for token in range(4, sizes.vocabulary))]
    vocabulary._itos, vocabulary._stoi = words, {text: number for number, text in enumerate(words)}
    vocabulary.specials, vocabulary.lang_tags, vocabulary.sep_index = list(tokens.values()), [], None
    vocabulary.pad_index, vocabulary.unk_index, vocabulary.bos_index, vocabulary.eos_index = ids.values()
    side = {
        "type": "transformer",
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "hidden_size": sizes.d_model,
        "ff_size": sizes.d_ff,
        "dropout": sizes.dropout,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": sizes.d_model, "scale": True, "dropout": sizes.dropout},
    }
    tied = {"tied_embeddings": True, "tied_softmax": True}
    model = build_model({"encoder": side, "decoder": dict(side), **tied}, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", sizes.smoothing)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
        elif isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0

    def loss(source: Tensor, target: Tensor) -> Tensor:
        gold, mask = target[:, 1:], source != PAD
        total = model(
            return_type="loss",
            src=source,
            src_length=mask.sum(1),
            src_mask=mask[:, None],
            trg_input=target[:, :-1],
            trg=gold,
            trg_mask=(gold != PAD)[:, None],
        )[0]
        return total / (gold != PAD).sum()

    return model, loss


def opennmt(sizes: Sizes) -> tuple[nn.Module, LossOf]:
    """OpenNMT-py's encoder and decoder, assembled as its model builder does, with its generator's loss."""
    from onmt.decoders.transformer import TransformerDecoder
    from onmt.encoders.transformer import TransformerEncoder
    from onmt.models import NMTModel
    from onmt.modules import Embeddings

    embeddings = Embeddings(sizes.d_model, sizes.vocabulary, PAD, position_encoding=True, dropout=sizes.dropout)
    common: dict[str, Any] = {
        "num_layers": sizes.layers,
        "d_model": sizes.d_model,
        "heads": sizes.heads,
        "d_ff": sizes.d_ff,
        "dropout": sizes.dropout,
        "attention_dropout": 0.0,
        "embeddings": embeddings,
        "max_relative_positions": 0,
        "relative_positions_buckets": 0,
    }
    decoder = TransformerDecoder(
        **common,
        copy_attn=False,
        self_attn_type="scaled-dot",
        aan_useffn=False,
        full_context_alignment=False,
        alignment_layer=-3,
        alignment_heads=0,
    )
    model = NMTModel(TransformerEncoder(**common), decoder)
    model.generator = nn.Linear(sizes.d_model, sizes.vocabulary)
    model.generator.weight = embeddings.word_lut.weight
    for module in model.modules():
        if type(module).__name__ == "PositionwiseFeedForward":
            module.dropout_1.p = 0.0
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)

    def loss(source: Tensor, target: Tensor) -> Tensor:
        out, _ = model(source[..., None], target[..., None], (source != PAD).sum(1))
        return smoothed(model.generator(out), target[:, 1:], sizes.smoothing)

    return model, loss


PEERS: dict[str, Callable[[Sizes], tuple[nn.Module, LossOf]]] = {
    "marian": marian,
    "torch": torch_eager,
    "torch-compiled": torch_compiled,
    "torch-compiled-loss": torch_compiled_loss,
    "joeynmt": joeynmt,
    "opennmt": opennmt,
}
TITLES = {
    "transduce": "transduce, bare step",
    "marian": "Hugging Face MarianMTModel",
    "torch": "torch.nn.Transformer",
    "torch-compiled": "torch.nn.Transformer, compiled",
    "torch-compiled-loss": "torch.nn.Transformer, compiled with its loss",
    "joeynmt": "JoeyNMT",
    "opennmt": "OpenNMT-py",
}
