"""What makes the mathematics of model/, search/ and objectives/ fast on the device at hand. Enter by dispatch.py."""

from __future__ import annotations
