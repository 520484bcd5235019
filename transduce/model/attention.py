"""Attention as in "Attention Is All You Need", section 3.2: equation 1, and several heads side by side.

Shapes: B batch, T queries, S keys, D d_model, H heads, K = D / H. A mask is True where a query may look.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.dropout import dropout as drop

Trace = dict[str, Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    trace: Trace | None = None,
    name: str = "",
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V, equation 1.

    query (B, H, T, K), key and value (B, H, S, K), mask broadcastable to (B, H, T, S). `causal` means that the
    queries are the last T of the S places and none looks ahead (it takes no further mask). With a trace the weights
    are kept under `name`; without one the fused kernel does the same sum without storing them, save where gradients
    are wanted on a CPU: there its backward pass alone was measured at a quarter of a training step.
    """
    queries, keys = query.size(2), key.size(2)
    fused = trace is None and not (query.requires_grad and query.device.type == "cpu")
    if causal and queries > 1 and (not fused or queries != keys):
        mask, causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries), False
    if fused:
        causal = causal and queries > 1  # a single query is the last place, and sees everything
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, T, S)
    if mask is not None:
        # The lowest finite number rather than -inf: a row with nothing to look at gives no NaN.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if trace is not None:
        trace[name] = weights
    return drop(weights, dropout, True) @ value  # (B, H, T, K)


class MultiHeadAttention(nn.Module):
    """h heads of width d_model / h that do not cross, joined by one output projection (section 3.2.2)."""

    def __init__(self, d_model: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        # The paper writes W^Q, W^K, W^V, W^O without biases; like the authors' own code and torch.nn we have them.
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, K) of what will be looked at, memory (B, S, D)."""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        trace: Trace | None = None,
        name: str = "",
    ) -> Tensor:
        """Look from x (B, T, D) at remembered keys and values; (B, T, D)."""
        dropout = self.dropout if self.training else 0.0
        heads = attend(self._split(self.query(x)), key, value, mask, causal, dropout, trace, name)  # (B, H, T, K)
        joined: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (B, T, D)
        return joined

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (B, T, D) -> (B, H, T, K)
