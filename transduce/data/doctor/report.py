"""Findings of the data doctor: a count, the outcome and the first few locations for each corpus and check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Outcome = Literal["kept", "cleaned", "dropped", "refused", "warning"]
PLACES = 3
# The order in which a corpus's findings are reported.
_ORDER = (
    *(
        "byte_order_mark",
        "carriage_return",
        "line_break",
        "control",
        "invalid_utf8",
        "unreadable",
        "empty",
        "too_long",
        "ratio",
    ),
    *("copied", "aligned", "overlap_with_valid", "source_overlap_with_valid", "overlap_with_test"),
    *("source_overlap_with_test", "duplicates", "swapped", "too_many_tokens", "alignment_lost"),
    *("unknown_characters_in_source", "unknown_characters_in_target"),
)
EXCERPT = 60


@dataclass(frozen=True)
class DataIssue:
    """The findings of one check on one corpus."""

    check: str
    outcome: Outcome
    count: int
    places: tuple[str, ...] = ()  # "file:line: excerpt", the first few
    note: str = ""


@dataclass(frozen=True)
class CorpusReport:
    """All findings in one corpus."""

    split: str
    name: str
    pairs: int  # read
    kept: int
    findings: tuple[DataIssue, ...] = ()


@dataclass
class Tally:
    """Findings while they are counted; the first locations are kept, in order."""

    counts: dict[tuple[str, Outcome], int] = field(default_factory=dict)
    places: dict[tuple[str, Outcome], list[str]] = field(default_factory=dict)
    notes: dict[tuple[str, Outcome], str] = field(default_factory=dict)

    def add(self, check: str, outcome: Outcome, count: int = 1, places: Iterable[str] = (), note: str = "") -> None:
        """Count a finding."""
        key = check, outcome
        self.counts[key] = self.counts.get(key, 0) + count
        known = self.places.setdefault(key, [])
        known.extend(list(places)[: PLACES - len(known)])
        if note:
            self.notes[key] = note

    def merge(self, other: Tally) -> None:
        """Add the findings of a later line range of the same corpus."""
        for (check, outcome), count in other.counts.items():
            key = check, outcome
            self.add(check, outcome, count, other.places[key], other.notes.get(key, ""))

    def dropped(self) -> int:
        return sum(count for (_, outcome), count in self.counts.items() if outcome in ("dropped", "refused"))

    def findings(self) -> tuple[DataIssue, ...]:
        """All findings with a count above 0."""
        ordered = sorted(self.counts, key=lambda key: (_ORDER.index(key[0]), key[1]))
        return tuple(
            DataIssue(*key, self.counts[key], tuple(self.places[key]), self.notes.get(key, ""))
            for key in ordered
            if self.counts[key]
        )

    def as_list(self) -> list[list[Any]]:
        """Serialize for JSON."""
        return [[*key, count, self.places[key], self.notes.get(key, "")] for key, count in self.counts.items()]

    @classmethod
    def from_list(cls, entries: list[list[Any]]) -> Tally:
        """Rebuild a tally from the result of `as_list`."""
        tally = cls()
        for check, outcome, count, places, note in entries:
            tally.add(check, outcome, count, places, note)
        return tally


def excerpt(text: str | bytes, at: int = 0) -> str:
    """A short excerpt of a line around position `at`, with unprintable characters escaped."""
    start = max(0, at - EXCERPT // 3)
    part = text[start : start + EXCERPT]
    before, after = "…" if start else "", "…" if start + EXCERPT < len(text) else ""
    return f"{before}{part!r}{after}"


@dataclass(frozen=True)
class DoctorReport:
    """The doctor's findings over all corpora of all splits."""

    corpora: tuple[CorpusReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """One paragraph for each finding that stops `prepare`."""
        return tuple(
            "\n".join(
                [f"{corpus.split}, {corpus.name}: {finding.check}: {finding.count:,} refused", *_indent(finding.places)]
            )
            for corpus in self.corpora
            for finding in corpus.findings
            if finding.outcome == "refused"
        )

    def count(self, check: str, split: str = "") -> int:
        """How often a check failed, in one split or in all."""
        return sum(
            finding.count
            for corpus in self.corpora
            for finding in corpus.findings
            if finding.check == check and split in ("", corpus.split)
        )

    def dropped(self, split: str = "train") -> dict[str, int]:
        """The number of pairs that each check dropped."""
        counts: Counter[str] = Counter()
        for corpus in self.corpora:
            if corpus.split == split:
                counts.update({f.check: f.count for f in corpus.findings if f.outcome == "dropped"})
        return dict(counts)

    def render(self) -> Group:
        """A table of counts for the terminal, followed by the first locations, which are too wide for a column."""
        table = Table(title="Data doctor")
        for heading in ("split", "corpus", "check", "outcome"):
            table.add_column(heading)
        table.add_column("count", justify="right", no_wrap=True)
        places = Text()
        for corpus in self.corpora:
            kept = f"{corpus.kept:,} of {corpus.pairs:,}"
            table.add_row(corpus.split, escape(corpus.name), "pairs", "kept", kept, style="bold")
            for finding in corpus.findings:
                style = {"refused": "red", "warning": "yellow"}.get(finding.outcome, "")
                table.add_row("", "", finding.check, finding.outcome, f"{finding.count:,}", style=style)
                details = [*([finding.note] if finding.note else []), *finding.places]
                if details:
                    places.append(f"{corpus.split}, {corpus.name}: {finding.check}\n", style=style or "bold")
                    places.append("".join(f"{line}\n" for line in _indent(details)))
        return Group(table, places, Text("\n".join(self.notes)))

    def as_text(self) -> str:
        """The report as plain lines."""
        lines = []
        for corpus in self.corpora:
            lines.append(f"{corpus.split}, {corpus.name}: {corpus.kept:,} of {corpus.pairs:,} pairs kept")
            for finding in corpus.findings:
                note = f" ({finding.note})" if finding.note else ""
                lines.append(f"  {finding.check}: {finding.count:,} {finding.outcome}{note}")
                lines.extend(_indent(finding.places, 4))
        return "\n".join([*lines, *self.notes]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """The report for the manifest."""
        return asdict(self)


def _indent(lines: Iterable[str], by: int = 2) -> list[str]:
    return [" " * by + line for line in lines]
