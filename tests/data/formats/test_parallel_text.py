"""Reading parallel text: formats, compressions, line ends, repairs, and every message."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.core.errors import ConfigError, DataError
from transduce.data import formats
from transduce.data.formats import formats_by_suffix
from transduce.data.formats.inventory import CHUNK_LINES, index_text, place_of_gap, place_of_parting, read_ranges
from transduce.data.formats.lines import LINE_BYTES, read_lines
from transduce.data.formats.parallel import Chunk, ParallelText
from transduce.text.number_words import english, german

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def chunks_of(text: ParallelText) -> list[Chunk]:
    whole = (read_ranges(text, files, [(0, files.source.lines)]) for files in index_text(text))
    return [chunk for chunks in whole for chunk in chunks]


def pairs_of(text: ParallelText) -> list[tuple[bytes, bytes]]:
    raw = [chunk.pairs() for chunk in chunks_of(text)]
    return [pair for part in raw for pair in zip(part.source, part.target, strict=True)]


def repairs_of(text: ParallelText) -> dict[str, int]:
    raw = [chunk.pairs().repairs for chunk in chunks_of(text)]
    return {name: sum(part[name] for part in raw) for name in raw[0]}


def two_files(folder: Path, source: bytes, target: bytes) -> ParallelText:
    return ParallelText(write(folder / "text.en", source), write(folder / "text.de", target))


@pytest.mark.parametrize("suffix", PACK)
def test_two_files_in_any_packing(tmp_path: Path, suffix: str) -> None:
    source = write(tmp_path / f"a.en{suffix}", PACK[suffix](b"one\ntwo\n"))
    target = write(tmp_path / "a.de", b"eins\nzwei")  # no last newline
    assert pairs_of(ParallelText(source, target)) == [(b"one", b"eins"), (b"two", b"zwei")]


@pytest.mark.parametrize("suffix", PACK)
def test_packed_parts_joined_end_to_end(tmp_path: Path, suffix: str) -> None:
    content = PACK[suffix](b"one\ntw") + PACK[suffix](b"o\n")
    assert list(read_lines(write(tmp_path / f"a{suffix}", content))) == [b"one", b"two"]


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b""))), st.booleans(), st.sampled_from([*PACK])
)
@settings(max_examples=50, deadline=None)
def test_lines_end_at_newline_only(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], last: bool, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / f"text{suffix}"
    ended = last or not lines or not lines[-1]
    content = b"".join(line + b"\n" for line in lines)
    path.write_bytes(PACK[suffix](content if ended else content[:-1]))
    assert list(read_lines(str(path))) == lines


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
@settings(max_examples=50, deadline=None)
def test_jsonl_gives_every_text_back(tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "text.jsonl"
    path.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in texts), newline="\n")
    expected = [tuple(side.replace("\n", " ").encode() for side in pair) for pair in texts]
    assert pairs_of(ParallelText(path=str(path))) == expected


def test_separators_of_other_programs_stay_inside_a_line(tmp_path: Path) -> None:
    line = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh".encode()
    assert pairs_of(two_files(tmp_path, line + b"\n", b"x\n")) == [(line, b"x")]


def test_byte_order_mark_and_carriage_returns_are_removed_and_counted(tmp_path: Path) -> None:
    text = two_files(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfeins\nzwei\n")
    assert pairs_of(text) == [(b"one", b"eins"), (b"two", b"zwei")]
    assert repairs_of(text) == {"byte_order_mark": 2, "carriage_return": 2, "line_break": 0}


def test_byte_order_mark_elsewhere_is_text(tmp_path: Path) -> None:
    assert pairs_of(two_files(tmp_path, b"a\n\xef\xbb\xbfb\n", b"a\nb\n"))[1] == (b"\xef\xbb\xbfb", b"b")


def test_chunks_know_their_lines(tmp_path: Path) -> None:
    count = 2 * CHUNK_LINES + 7
    text = two_files(tmp_path, b"s\n" * count, b"t\n" * count)
    assert [chunk.first_line for chunk in chunks_of(text)] == [1, CHUNK_LINES + 1, 2 * CHUNK_LINES + 1]
    assert len(pairs_of(text)) == count


def test_globs_pair_files_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.en", f"{name} en\n".encode())
        write(tmp_path / f"{name}.de", f"{name} de\n".encode())
    text = ParallelText(str(tmp_path / "*.en"), str(tmp_path / "*.de"))
    assert pairs_of(text) == [(b"a en", b"a de"), (b"b en", b"b de")]
    write(tmp_path / "c.en", b"c\n")
    with pytest.raises(DataError, match=r"names 3 file\(s\) but .*\*\.de names 2: each source file needs"):
        text.files()


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].tsv", b"x\ty\n")
    assert pairs_of(ParallelText(path=path)) == [(b"x", b"y")]


def test_tsv_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv.gz", gzip.compress(b"id\tx\ty\r\n\nid2\tx2\ty2\textra"))
    text = ParallelText(path=path, columns=("2", "1"))
    assert pairs_of(text) == [(b"y", b"x"), (b"", b""), (b"y2", b"x2")]
    with pytest.raises(DataError, match=r"a\.tsv\.gz:1: 3 tab-separated column\(s\); expected at least 6"):
        pairs_of(ParallelText(path=path, columns=("0", "5")))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", r"a\.jsonl:2: a JSON list; expected an object with the fields \['source', 'target'\]"),
        (b"{", r"a\.jsonl:2: not valid JSON \("),
        (b"[" * 100_000, r"a\.jsonl:2: not valid JSON \("),
        (b'{"source": "a"}', r"a\.jsonl:2: no field 'target'; there are \['source'\]"),
        (b'{"source": "a", "target": 5}', r"a\.jsonl:2: field 'target' holds 5 \(int\); expected a string"),
        (b'{"source": null, "target": "a"}', r"a\.jsonl:2: field 'source' holds None \(NoneType\); expected a string"),
    ],
)
def test_json_messages(tmp_path: Path, line: bytes, message: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"source": "a", "target": "b"}\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        pairs_of(ParallelText(path=path))


def test_lone_surrogates_become_invalid_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"source": "a\\ud83d", "target": "\\ud83d\\ude00"}')
    source, target = pairs_of(ParallelText(path=path))[0]
    assert target.decode() == "\N{GRINNING FACE}"
    with pytest.raises(UnicodeDecodeError):
        source.decode()


def test_parquet(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"en": ["one\ntwo", "b"], "de": ["eins", "c"], "n": [1, 2]}), path)
    text = ParallelText(path=path, columns=("en", "de"))
    assert pairs_of(text) == [(b"one two", b"eins"), (b"b", b"c")]
    assert repairs_of(text)["line_break"] == 1
    with pytest.raises(DataError, match=r"no column 'source'; there are \['de', 'en', 'n'\]"):
        pairs_of(ParallelText(path=path))
    with pytest.raises(DataError, match=r"a\.parquet:1: column 'n' holds 1 \(int\); expected a string"):
        pairs_of(ParallelText(path=path, columns=("en", "n")))
    with pytest.raises(DataError, match="not a readable Parquet file"):
        pairs_of(ParallelText(path=write(tmp_path / "b.parquet", b"PAR1 no")))


@pytest.mark.parametrize("suffix", [suffix for suffix in PACK if suffix])
def test_truncated_and_damaged_files(tmp_path: Path, suffix: str) -> None:
    whole = PACK[suffix](np.random.default_rng(0).integers(32, 127, 20_000, np.uint8).tobytes())
    for content in (whole[: len(whole) // 2], whole[:-1], b"rubbish"):
        path = write(tmp_path / f"a{suffix}", content)
        with pytest.raises(DataError, match=rf"a\{suffix}:\d+: the compressed file is cut short or damaged"):
            list(read_lines(path))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_very_long_line_is_cut_and_not_kept_in_memory(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", PACK[suffix](b"x" * 40_000_000 + b"\nshort\n"))
    tracemalloc.start()
    lengths = [len(line) for line in read_lines(path)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lengths == [LINE_BYTES + 1, 5]
    assert peak < 50_000_000 if suffix == ".zst" else peak < 8_000_000


def test_lines_at_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"".join(b"x" * (LINE_BYTES + more) + b"\n" for more in (0, 1, 2)) + b"end")
    assert [len(line) - LINE_BYTES for line in read_lines(path)][:3] == [0, 1, 1]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    here = write(tmp_path / "here", b"a\n")
    with pytest.raises(DataError, match="gone: no such file"):
        ParallelText(here, str(tmp_path / "gone")).files()
    with pytest.raises(DataError, match="is a folder; expected a file"):
        ParallelText(here, str(tmp_path)).files()
    with pytest.raises(DataError, match=r"\*\.en: no file matches this pattern"):
        ParallelText(str(tmp_path / "*.en"), here).files()


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("zstandard", "a.tsv.zst", "zstd"), ("pyarrow", "a.parquet", "parquet")]
)
def test_missing_extras_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"pip install transduce\[{extra}\]"):
        pairs_of(ParallelText(path=write(tmp_path / name, b"")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({}, "expected either both source and target"),
        ({"source": "a"}, "expected either both source and target"),
        ({"source": "a", "target": "b", "path": "c.tsv"}, "expected either both source and target"),
        (
            {"path": "a.txt"},
            r"path='a.txt': the format is read from the extension; expected \.jsonl, \.parquet or \.tsv",
        ),
        ({"path": "a.tsv", "columns": ("source", "target")}, "TSV columns are numbers that start at 0"),
        ({"path": "a.jsonl", "columns": ("a",)}, "expected two different columns"),
        ({"source": "a", "target": "b", "weight": 0.0}, r"weight=0\.0: expected a number above 0"),
        ({"source": "a", "target": "b", "tag": "<2 de>"}, "tag='<2 de>': expected one token without spaces"),
        ({"source": "a", "target": "b", "tag": "<\x1b>"}, "tag='.*': expected one token without spaces"),
        ({"source": "a", "target": "b", "weight": 1e7}, r"weight=10000000\.0: expected at most 1,000,000"),
    ],
)
def test_config_messages(text: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelText(**text)  # type: ignore[arg-type]


def sentences(count: int) -> tuple[list[bytes], list[bytes]]:
    random = np.random.default_rng(1)
    lengths = random.integers(10, 200, count)
    others = np.maximum(1, lengths * random.normal(1.1, 0.15, count)).astype(int)
    return [b"s" * length for length in lengths], [b"t" * length for length in others]


@pytest.mark.parametrize("missing", [100, 700, 5000])
def test_the_place_of_a_missing_line_is_reported(tmp_path: Path, missing: int) -> None:
    source, target = sentences(6000)
    del target[missing]
    text = two_files(tmp_path, b"\n".join(source) + b"\n", b"\n".join(target) + b"\n")
    with pytest.raises(DataError, match=r"has 6,000 lines but .*text\.de has 5,999") as caught:
        chunks_of(text)
    told = int(str(caught.value).split("about line ")[1].split(":")[0])
    assert abs(told - (missing + 1)) <= 10


@pytest.mark.parametrize(("first", "count"), [(20, 1), (1499, 200), (3000, 2)])
def test_the_place_of_missing_lines_is_reported_to_the_line(tmp_path: Path, first: int, count: int) -> None:
    source, target = sentences(6000)
    del source[first : first + count]
    text = two_files(tmp_path, b"\n".join(source) + b"\n", b"\n".join(target) + b"\n")
    with pytest.raises(DataError) as caught:
        chunks_of(text)
    told = int(str(caught.value).split("about line ")[1].split(":")[0])
    assert abs(told - (first + 1)) <= 3


@pytest.mark.parametrize("missing", [1, 30, 100])
def test_a_missing_end_is_reported(tmp_path: Path, missing: int) -> None:
    source, target = sentences(500)
    text = two_files(tmp_path, b"\n".join(source[:-missing]), b"\n".join(target))
    message = rf"has {500 - missing} lines but .* has 500.*the end of .*text\.en seems to be missing"
    with pytest.raises(DataError, match=message):
        chunks_of(text)


def test_where_neighbours_are_alike_nothing_false_is_said(tmp_path: Path) -> None:
    """Number words in order: a line and the next are nearly as long, whichever is missing."""
    source = [english(number).encode() for number in range(1334)]
    target = [german(number).encode() for number in range(1334)]
    del target[700]
    text = two_files(tmp_path, b"\n".join(source) + b"\n", b"\n".join(target) + b"\n")
    with pytest.raises(DataError) as caught:
        chunks_of(text)
    told = str(caught.value)
    assert "seems to be missing" not in told
    assert "Line lengths do not show" in told or 680 < int(told.split("about line ")[1].split(":")[0]) < 720


def test_long_files_are_counted_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.data.formats.inventory.LINES_JUDGED", 50)
    source, target = sentences(500)
    text = two_files(tmp_path, b"\n".join(source[:400]), b"\n".join(target))
    with pytest.raises(DataError, match=r"has 400 lines but .* has 500.*the first 50 lines"):
        chunks_of(text)


def test_the_place_is_unknown_in_unrelated_or_few_lines(tmp_path: Path) -> None:
    text = two_files(tmp_path, b"a\nb\n", b"c\n")
    with pytest.raises(DataError, match=r"has 2 lines but .* has 1.*Line lengths do not show where"):
        chunks_of(text)
    random = np.random.default_rng(2)
    assert place_of_parting(random.uniform(5, 200, 4000), random.uniform(5, 200, 4000)) is None
    assert place_of_gap(random.uniform(5, 200, 4000), random.uniform(5, 200, 3999)) is None


PO = '''
"""Messages of gettext, without their plurals."""

import re
from pathlib import Path

from transduce.data.formats import FileFormat


class PoReader:
    def __init__(self, path, columns):
        found = re.findall(rb'msgid "(.+)"\\nmsgstr "(.+)"', Path(path).read_bytes())
        self.pairs = [(source, target) for source, target in found]

    def count(self):
        return len(self.pairs)

    def read(self, first, most):
        return self.pairs[first : first + most]


FORMAT = FileFormat((".po",), ("msgid", "msgstr"), reader=PoReader)
'''


def test_a_new_format_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "po.py").write_text(PO)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path / "formats")])
    formats_by_suffix.cache_clear()
    try:
        path = write(tmp_path / "de.po", b'msgid "yes"\nmsgstr "ja"\n\nmsgid "no"\nmsgstr "nein"\n')
        text = ParallelText(path=path)
        assert index_text(text)[0].source.lines == 2
        assert pairs_of(text) == [(b"yes", b"ja"), (b"no", b"nein")]
    finally:
        formats_by_suffix.cache_clear()
        sys.modules.pop("transduce.data.formats.po", None)
