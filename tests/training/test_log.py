"""What a run logs: lines of metrics.jsonl that survive kills, and words for whoever watches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transduce.core.errors import RunError
from transduce.training.log import RunLog, SilentLog

REPORT = {"loss": 3.21, "tokens_per_second": 12345.6, "learning_rate": 0.00123}


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]


def test_reports_and_validations(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RunLog(tmp_path, steps=1000, step=0, tensorboard=False) as log:
        log.train(100, REPORT)
        log.valid(100, {"loss": 2.5, "bleu": 12.345, "chrf": 40.0}, best=True)
        log.advance(150)
        log.train(200, REPORT)
        log.valid(200, {"loss": 2.625}, best=False)
        log.record("finished", 200, {"loss": 2.5})
    assert lines(tmp_path) == [
        {"kind": "train", "step": 100, **REPORT},
        {"kind": "valid", "step": 100, "loss": 2.5, "bleu": 12.345, "chrf": 40.0},
        {"kind": "train", "step": 200, **REPORT},
        {"kind": "valid", "step": 200, "loss": 2.625},
        {"kind": "finished", "step": 200, "loss": 2.5},
    ]
    said = capfd.readouterr().err.split("\n")
    assert said[0] == "step 100 of 1,000  loss 3.210  12,346 tokens/s  rate 1.23e-03  0 s left"
    assert said[1] == "step 100  validation: loss 2.500  BLEU 12.35  chrF 40.00  (best so far)"
    assert said[2] == "step 200 of 1,000  loss 3.210  12,346 tokens/s  rate 1.23e-03  0 s left  BLEU 12.35"
    assert said[3].rstrip() == "step 200  validation: loss 2.625"


def test_the_time_left_follows_from_the_steps_of_this_life(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path, steps=1000, step=400, tensorboard=False)
    log._started -= 100  # a hundred seconds ago
    with log:
        log.train(500, REPORT)
    assert "  8 min 20 s left" in capfd.readouterr().err


def test_a_line_is_on_disk_before_record_returns(tmp_path: Path) -> None:
    with RunLog(tmp_path, steps=10, step=0, tensorboard=False) as log:
        log.record("train", 1, {"loss": 1.5})
        assert lines(tmp_path) == [{"kind": "train", "step": 1, "loss": 1.5}]


def test_resuming_drops_later_and_broken_lines(tmp_path: Path) -> None:
    good = [b'{"kind": "train", "step": %d, "loss": 1}' % step for step in (1, 2, 3, 4)]
    broken = [b"", b"17", b"[]", b'{"loss": 2}', b'{"step": "x"}', b"\xff\xfe", b'{"kind": "train", "step": 2, "lo']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([good[0], *broken, good[1], good[2], good[3], broken[-1]]))
    with RunLog(tmp_path, steps=10, step=2, tensorboard=False) as log:
        log.record("train", 3, {"loss": 7})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"\n".join(
        [good[0], good[1], b'{"kind": "train", "step": 3, "loss": 7}', b""]
    )


@pytest.mark.parametrize(("step", "finished"), [(10, False), (20, True), (30, False)])
def test_whether_a_run_had_ended_at_this_step(tmp_path: Path, step: int, finished: bool) -> None:
    with RunLog(tmp_path, steps=20, step=0, tensorboard=False) as log:
        assert not log.finished
        log.record("valid", 20, {})
        log.record("finished", 20, {})
    assert RunLog(tmp_path, steps=40, step=step, tensorboard=False).finished is finished


def test_words_with_brackets_are_no_markup(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "[bold]x[/bold] [/] " + "long " * 60
    with RunLog(tmp_path, steps=10, step=0, tensorboard=False) as log:
        log.say(text)
    assert capfd.readouterr().err == f"{text}\n"


def test_a_full_disk_while_reporting(tmp_path: Path) -> None:
    log = RunLog(tmp_path, steps=10, step=0, tensorboard=False)
    log.path = Path("/dev/full")
    with pytest.raises(RunError, match=r"the disk is full \(writing full\): 29 bytes needed, [\d,]+ free"), log:
        log.record("train", 1, {})


def test_tensorboard_gets_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert (folder, purge_step) == (str(tmp_path / "tensorboard"), 1)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with RunLog(tmp_path, steps=10, step=0, tensorboard=True) as log:
        log.record("train", 5, {"loss": 1.5, "epoch": 2})
    assert written == [("train/loss", 1.5, 5), ("train/epoch", 2, 5), ("closed", 0.0, 0)]


def test_a_process_that_says_nothing_has_not_ended() -> None:
    assert not SilentLog().finished
