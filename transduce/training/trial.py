"""Passes made to see what they cost, of which nothing stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from transduce.training.session import Session


@contextmanager
def trial(session: Session, module: nn.Module) -> Iterator[None]:
    """Gradients made inside are dropped, and what a pass moves besides (running statistics) is put back."""
    kept = {name: tensor.clone() for name, tensor in session.model.weights().items()}
    module.train()
    try:
        yield
    finally:
        session.model.load_weights(kept)
        # Zeros, not none: recorded launches add to the gradients that were there.
        session.optimizer.zero_grad(set_to_none=False)
