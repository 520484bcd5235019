"""Shared by all tests: one torch thread (two on a shared machine made toy models 25 times slower)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)
