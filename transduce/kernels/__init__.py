"""Kernels that make model/, search/ and objectives/ fast on the device at hand; dispatch.py is their only entry."""

from __future__ import annotations
