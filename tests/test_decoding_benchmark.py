"""benchmarks/decoding.py at a toy's size: what a child of it measures, without the peer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import decoding

from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.native.library import built
from transduce.native.lowering import lower
from transduce.native.weight_file import write

pytestmark = pytest.mark.skipif(built() is None, reason="the core is not built: make native")


@pytest.mark.parametrize("setting", [decoding.Setting(1, 1), decoding.Setting(4, 2), decoding.Setting(1, 0)])
@pytest.mark.parametrize("forced", [0, 7])
def test_a_child_measures_what_it_writes(tmp_path: Path, setting: decoding.Setting, forced: int) -> None:
    torch.manual_seed(1)
    config = Model(
        16, 0.0, encoder=TransformerEncoder(1, Attention(2), 16), decoder=TransformerDecoder(1, Attention(2), 16)
    )
    write(tmp_path / "model", lower(config, config.build(30, 30, shared=True), quantize=True))
    (tmp_path / "sources").write_text(json.dumps([[5, 6, 7], [8], [9, 10]]))
    job = decoding.Job("native", str(tmp_path / "model"), str(tmp_path / "sources"), setting, (1, 1), forced, 2)
    outcome = decoding.child(job)
    assert len(outcome.written) == 3
    assert not forced or {len(tokens) for tokens in outcome.written} == {forced}
    assert min(outcome.wall, outcome.processor, outcome.p50, outcome.p95, outcome.start, outcome.megabytes) > 0
    assert outcome.p50 <= outcome.p95
    assert setting.name in ("greedy, batch 1", "beam 4, batch 2", "greedy, file")
