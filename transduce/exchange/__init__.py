"""Doors to and from other systems: what they keep becomes a run folder of ours, and a run folder what they keep."""

from __future__ import annotations
