"""Diverse beam search (Vijayakumar et al. 2016): groups that each avoid what the groups before them write at a step.

Shapes: B sentences, G groups of K paths, R = B * G rows (the groups of a sentence stand together), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transduce.search.beam_state import first_unfinished

# Totals (B, K, V) of a group and its rows -> the best places in K * V and their totals, -inf where none is: (B, 2K).
Order = Callable[[Tensor, slice], tuple[Tensor, Tensor]]


def in_groups(
    totals: Tensor, slots: Tensor, groups: int, strength: float, order: Order, eos: int
) -> tuple[Tensor, Tensor]:
    """The best places of each row, group after group, and what each was ranked by: (R, 2K).

    totals (R, K, V), of whose paths slots (R,) go on. A group sees a token's log-probability lowered by `strength` for
    each path of the groups before it that goes on with this token (Hamming diversity). Only the order is steered:
    log-probabilities stay the model's own. An end is nothing that a path goes on with: groups may end alike.
    """
    _, size, vocabulary = totals.shape
    used = totals.new_zeros(())  # (B, 1, V) from the second group on
    found = []
    for number in range(groups):
        members = slice(number, None, groups)
        places, steered = order(totals[members] if number == 0 else totals[members] - strength * used, members)
        found.append((places, steered))
        if number + 1 < groups:
            going = first_unfinished(places % vocabulary == eos, size)  # (B, K)
            living = steered.gather(1, going) > -torch.inf
            living &= torch.arange(size, device=slots.device) < slots[members, None]
            counts = totals.new_zeros(len(going), vocabulary)
            used = used + counts.scatter_add(1, places.gather(1, going) % vocabulary, living.float())[:, None]
    places, steered = (torch.stack(part, dim=1).flatten(0, 1) for part in zip(*found, strict=True))
    return places, steered
