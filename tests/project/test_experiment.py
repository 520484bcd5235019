"""The top-level config: its defaults are the paper's base model, and errors name the whole key."""

from __future__ import annotations

import pytest

from transduce.core import config as configs
from transduce.core.errors import ConfigError
from transduce.experiment import Config, Data
from transduce.model.attention import Attention
from transduce.model.sources import SpecAugment
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.search.settings import Beam
from transduce.training.optimizer import Adam, Paper


def test_the_defaults_are_the_paper_s_base_model() -> None:
    config = Config()
    model = config.model
    assert (model.d_model, model.dropout, model.tie) == (512, 0.1, "all")
    for stack in (model.encoder, model.decoder):
        assert (stack.layers, stack.attention.heads, stack.d_ff, stack.activation) == (6, 8, 2048, "relu")
        assert (stack.attention.dropout, stack.activation_dropout) == (0.0, 0.0)
    assert config.objective == CrossEntropy(label_smoothing=0.1)
    assert config.search == Beam(size=4, length_penalty=0.6)
    assert config.training.optimizer == Adam(beta1=0.9, beta2=0.98, epsilon=1e-9)
    assert config.training.learning_rate == Paper(warmup=4000)
    assert (config.training.steps, config.training.clip, config.training.ema) == (100_000, 0.0, 0.0)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=-1", "seed: expected 0 or more, got -1"),
        ("data.tokens=-1", "data.tokens: expected 0 or more, got -1"),
        ("data.shapes=-1", "data.shapes: expected 0 or more, got -1"),
        ("data.bucket=0", "data.bucket: expected at least 1, got 0"),
        ("data.sampling=1.0", "data.sampling: expected at least 0 and below 1, got 1.0"),
        ("model.d_model=0", "model.d_model: expected at least 1, got 0"),
        ("model.dropout=1.0", "model.dropout: expected at least 0 and below 1, got 1.0"),
        ("model.encoder.layers=0", "model.encoder.layers: expected at least 1, got 0"),
        ("model.decoder.attention.dropout=-0.1", "model.decoder.attention.dropout: expected at least 0 and below 1"),
        (
            "model.decoder.attention.heads=7",
            "model.decoder.attention.heads: 7 heads do not divide d_model = 512; choose a divisor",
        ),
        ("model.encoder.positions={kind='learned',longest=0}", "model.encoder.positions.longest: expected at least 1"),
        ("model.tie=both", "model.tie: 'both' is not one of all, target, none"),
        ("objective.label_smoothing=1", "objective.label_smoothing: expected at least 0 and below 1, got 1.0"),
        ("objective={kind='r_drop',label_smoothing=-1}", "objective.label_smoothing: expected at least 0 and below 1"),
        ("objective={kind='r_drop',alpha=-1}", "objective.alpha: expected 0 or more, got -1.0"),
        ("search.size=0", "search.size: expected an integer of at least 1, got 0"),
        (
            "search.n_best=9",
            "search.n_best: expected an integer from 1 to the beam's size (4); raise size for more",
        ),
        ("training.steps=0", "training.steps: expected at least 1, got 0"),
        ("training.minutes=-1", "training.minutes: expected 0 or more, got -1.0"),
        ("training.ema=1", "training.ema: expected at least 0 and below 1, got 1.0"),
        (
            "training.average=6",
            "training.average: 6 checkpoints to average, but only 5 are kept; set training.keep_last=6",
        ),
        (
            "training.start_with=what_fits",
            "training.start_with: expected training.start_from beside it, got 'what_fits' alone",
        ),
        (
            "training.average_of=best",
            "training.average_of: expected training.average beside it, got 'best' alone",
        ),
        ("training.optimizer.beta1=1", "training.optimizer.beta1: expected at least 0 and below 1, got 1.0"),
        ("training.optimizer.epsilon=0", "training.optimizer.epsilon: expected a number above 0, got 0.0"),
        ("training.optimizer={kind='adam_w',weight_decay=-1}", "training.optimizer.weight_decay: expected 0 or more"),
        ("training.learning_rate.warmup=0", "training.learning_rate.warmup: expected a number above 0, got 0"),
        ("validation.every=0", "validation.every: expected at least 1, got 0"),
        ("validation.language=chinese", "validation.language: expected a code such as 'de' or 'zh-CN', got 'chinese'"),
        ("validation.patience=-1", "validation.patience: expected 0 or more, got -1"),
        ("validation.metric=blue", "validation.metric: 'blue' is not one of bleu, chrf, loss, wer, cer, accuracy"),
    ],
)
def test_what_is_refused(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.load(Config, None, [override])
    assert expected in str(caught.value)


SIZES = """data.bucket data.shapes data.tokens model.d_model training.accumulate training.threads
    model.encoder.layers model.encoder.d_ff model.encoder.window model.decoder.layers model.decoder.d_ff
    model.encoder.attention.key_width model.encoder.positions={kind='learned',longest=N}
    model.encoder.positions={kind='relative_bias',buckets=4,farthest=N} model.encoder={kind='recurrent',layers=N}
    model.decoder={kind='recurrent',layers=N} model.encoder={kind='convolutional',kernel=N}
    model.encoder={kind='convolutional',layers=N} model.heads=[{kind='ctc',upsample=N}]
    model.heads=[{kind='length',longest=N}] model.source={kind='frames',features=N}
    model.source={kind='frames',convolutions=N} model.source={kind='patches',patch=N}
    model.source={kind='patches',rows=N} model.decoder={kind='parallel',length={kind='length_classifier',reach=N}}
    model.decoder={kind='parallel',length={kind='cut_at_end',extra=N}}
    model.decoder={kind='parallel',length={kind='upsampled',factor=N}}""".split()


@pytest.mark.parametrize("setting", SIZES)
def test_sizes_without_measure_are_refused(setting: str) -> None:
    number = 2**63 - 1
    word = setting.replace("N", str(number)) if "=" in setting else f"{setting}={number}"
    with pytest.raises(ConfigError, match=rf"expected at most [\d,]+, got {number}"):
        configs.load(Config, None, [word])


def test_heads_without_measure_are_refused() -> None:
    """In words of another kind where they divide no width either."""
    for heads in ((1 << 20) + 1, 1 << 40):
        with pytest.raises(ConfigError, match=f"heads: expected at most 1,048,576, got {heads}"):
            Attention(heads)
    with pytest.raises(ConfigError, match="time_masks: expected at most 4,096, got 5000"):
        SpecAugment(time_masks=5000)
    assert SpecAugment(time_width=10**6).time_width == 10**6  # more than there is: no bound


def test_python_is_refused_in_the_same_words() -> None:
    with pytest.raises(ConfigError, match="tokens: expected 0 or more, got -1"):
        Data(tokens=-1)
