"""Self-attention restricted to a neighbourhood (section 4 and Table 1 of the paper): O(r n d) instead of O(n^2 d).

A place sees those at most `window` away: r is 2 window + 1, or window + 1 where none looks ahead. Whole sequences are
cut into stretches of `window` places, each of which sees its own and its neighbours' keys: no sum over all pairs.
Shapes: B batch, H heads, T queries, S keys, N stretches of W = window places, K the width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def within_window(queries: int, keys: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """(T, S), True where a key is in the window of a query; the queries are the last T of the S places."""
    place = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
    distance = place - torch.arange(keys, device=device)
    return (distance <= window) & (distance >= (0 if causal else -window))


def windowed_mask(
    mask: Tensor | None, queries: int, keys: int, window: int, causal: bool, device: torch.device
) -> Tensor:
    """`near` where mask, broadcastable to (B, H, T, S), lets one look too; for every score and every number of queries.

    Padding far from anything real looks at all that is real: kernels differ in what they make of nothing to look at.
    """
    nearby = within_window(queries, keys, window, causal, device)
    if mask is None:
        return nearby
    both = mask & nearby
    return both | (mask & ~both.any(-1, keepdim=True))


class WindowBlocks:
    """A self-attention of T = S places as one of B * N short ones: `cut` queries, keys and values, then `join`."""

    def __init__(self, length: int, window: int, causal: bool) -> None:
        self.length, self.window = length, window
        self.neighbours = 2 if causal else 3  # stretches that one sees, itself among them
        self.count = -(-length // window)
        self.causal = causal

    def queries(self, query: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, W, K)."""
        return self._stacked(self._in_stretches(self._padded(query)))

    def keys(self, key: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, W neighbours, K)."""
        ahead = 0 if self.causal else self.window
        padded = F.pad(self._padded(key), (0, 0, self.window, ahead))
        stretches = self._in_stretches(padded)  # (B, H, N + neighbours - 1, W, K)
        shifted = [stretches[:, :, first : first + self.count] for first in range(self.neighbours)]
        return self._stacked(torch.cat(shifted, dim=3))

    def mask(self, mask: Tensor | None, batch: int, device: torch.device) -> Tensor:
        """Real keys (B, 1, 1, T), or all, -> (B * N, 1, W, W neighbours): real, and in the window."""
        real = torch.ones(1, 1, self.length, 1, dtype=torch.bool, device=device) if mask is None else mask.mT
        cut = self.keys(real.expand(batch, -1, -1, -1)).mT  # (B * N, 1, 1, W neighbours)
        reach = self.window * self.neighbours
        nearby = within_window(reach, reach, self.window, self.causal, device)[self.window : 2 * self.window]
        seen = cut & nearby
        return seen | ~seen.any(-1, keepdim=True)  # of padding alone: of what it sees nothing is used

    def join(self, heads: Tensor) -> Tensor:
        """(B * N, H, W, K) -> (B, H, T, K)."""
        apart = heads.reshape(-1, self.count, *heads.shape[1:]).transpose(1, 2)  # (B, H, N, W, K)
        return apart.flatten(2, 3)[:, :, : self.length]

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, self.count * self.window - self.length))

    def _in_stretches(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.window, x.size(3))

    def _stacked(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)
