"""Progress: plain lines now and then without a terminal, a live bar with one, silence for quick work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from transduce.cli.output import with_progress
from transduce.core import progress
from transduce.core.progress import Progress, rate_as_text, say, seconds_as_text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_rates_in_words() -> None:
    assert [rate_as_text(rate) for rate in (12345.6, 1.0, 0.0617, 0.0)] == ["12,346", "1", "0.062", "0"]


def test_words_between(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Counting", total=3, unit="lines") as shown:
        shown.say("[a] was here")
    assert capsys.readouterr().err == "[a] was here\n"


def test_seconds_in_words() -> None:
    assert [seconds_as_text(s) for s in (0.4, 42, 59.6, 185, 3599.7, 7800)] == [
        "0 s",
        "42 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "2 h 10 min",
    ]


def test_quick_work_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Reading", 1000, "lines") as shown:
        for _ in range(1000):
            shown.advance()
        clock.now += 1.9
    assert capsys.readouterr() == ("", "")


def test_long_work_says_a_line_every_few_seconds_and_one_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("Reading", 4000, "lines") as shown:
        for _ in range(40):
            clock.now += 1
            shown.advance(100)
    out, err = capsys.readouterr()
    lines = err.split("\n")[:-1]
    assert out == ""
    assert lines[0] == "Reading: 200 of 4,000 (5%) lines, 100 lines/s, 38 s left"
    assert lines[-1] == "Reading: 4,000 of 4,000 (100%) lines, 100 lines/s, 0 s left"
    assert len(lines) == 5


def test_what_is_made_at_once_is_reported_at_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Translations come a window at a time: a minute for a thousand of them, not for the first one."""

    def stream() -> Iterator[int]:
        for number in range(2500):
            if number % 1000 == 0:
                clock.now += 60 if number < 2000 else 30
            yield number

    assert list(with_progress(stream(), "Translating", 2500, printed=False, window=1000)) == list(range(2500))
    assert capsys.readouterr().err.split("\n")[:-1] == [
        "Translating: 1,000 of 2,500 (40%) lines, 17 lines/s, 1 min 30 s left",
        "Translating: 2,000 of 2,500 (80%) lines, 17 lines/s, 30 s left",
        "Translating: 2,500 of 2,500 (100%) lines, 17 lines/s, 0 s left",
    ]


def test_the_rest_of_a_window_is_reported_at_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Translating", None, "lines", burst=10) as shown:
        clock.now += 5
        for _ in range(14):
            shown.advance()
    assert capsys.readouterr().err.split("\n")[:-1] == [
        "Translating: 10 lines, 2 lines/s",
        "Translating: 14 lines, 3 lines/s",
    ]


def test_the_live_bar_counts_a_window_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress("Translating", 25, "lines", burst=10) as shown:
        counts = []
        for _ in range(24):
            shown.advance()
            assert shown._live is not None
            counts.append(shown._live.tasks[0].completed)
    assert counts == [0] * 9 + [10] * 10 + [20] * 5
    assert "24/25" in capsys.readouterr().err


def test_without_a_total_there_is_no_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Reading", None, "lines") as shown:
        clock.now += 4
        shown.advance(8)
    assert capsys.readouterr().err.split("\n")[0] == "Reading: 8 lines, 2 lines/s"


def test_work_that_failed_is_not_reported_as_ended(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with Progress("Reading", 10, "lines"):
            clock.now += 5
            raise ValueError

    with pytest.raises(ValueError):
        work()
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_live_bar_even_inside_another_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take any stream for a terminal
    monkeypatch.setenv("COLUMNS", "100")
    with Progress("Training", 10, "steps") as outer:
        outer.advance(5)
        with Progress("Averaging", 3, "checkpoints") as inner:
            inner.advance(3)
    err = capsys.readouterr().err
    assert "Training" in err
    assert "5/10" in err
    assert "Averaging" in err
    assert "3/3" in err


@pytest.mark.parametrize(("total", "said"), [(None, "Reading: 1 line, "), (1, "Reading: 1 of 1 (100%) line, ")])
def test_one_is_no_plural(total: int | None, said: str, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Reading", total, "lines") as shown:
        clock.now += 5
        shown.advance()
    assert capsys.readouterr().err.startswith(said)


def test_a_line_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    say("runs/\x1b[2J: done\nnext")
    assert capsys.readouterr().err == "runs/\\x1b[2J: done\nnext\n"
