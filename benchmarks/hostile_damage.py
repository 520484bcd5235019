"""Valid model folders, and the damages of hostile_folders.py: each case is seeded by its number.

Most damages also correct the hashes, as an attacker would, so that the checks behind them are tested.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transduce.core import config as configs
from transduce.core.errors import UserError
from transduce.exchange.convert import convert
from transduce.experiment import Config
from transduce.text.tokenizer import Tokenizers
from transduce.text.train_tokenizer import SentencePiece
from transduce.training.weights import save_weights
from transduce.translate.model_folder import CONFIG, MODEL, NATIVE, NATIVE_FACTS, SEAL, TOKENIZER

LARGE = (0, 1, 2, 63, 64, 65, 127, 255, 1 << 14, 1 << 16, 1 << 20, 1 << 24, 1 << 31, (1 << 32) - 1)
NUMBERS = ("0", "-1", "3", "65", "4096", "1000000", "9" * 18, "9" * 40, "9" * 5000, f"0x{'F' * 6000}", "1e400", "nan")
OTHER = ('"x"', "[]", "{}", "true", "[[1]]", '""', "1979-05-27", "'" + "y" * 10**5 + "'")
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e38, -3e38, 1e-40, 0.0, -1.0)
SPARSE = 50 << 30
Damage = Callable[["Case", random.Random], str]


def content(path: Path) -> bytearray:
    """A file's bytes, unless an earlier damage made it too large."""
    if path.stat().st_size > 1 << 28:
        raise ValueError("sparse")
    return bytearray(path.read_bytes())


def good_folders(base: Path, width: int) -> None:
    """Make `int8`, `float` and `run`: undamaged folders of one small model with random weights."""
    words = "one two three four five six seven eight nine ten".split()
    draw = random.Random(1)
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 8))) for _ in range(400)]
    tokenizers = SentencePiece(vocabulary=90, byte_fallback=False).train(lines, lines[::-1]).tokenizers
    stacks = [f"model.{side}.{part}" for side in ("encoder", "decoder") for part in (
        "layers=2", "attention.heads=2", f"d_ff={width + 8}", "positions.kind=learned", "positions.longest=64",
        "norm.kind=rms_norm", "residual.kind=pre_norm", "attention.query_key_norm=true")]  # fmt: skip
    search = ["search.kind=beam", "search.size=2", "search.limits.longest=12"]
    config = configs.load(
        Config, None, [f"model.d_model={width}", "model.tie=none", "model.output_bias=true", *stacks, *search]
    )
    torch.manual_seed(1)
    model = config.model.build(tokenizers.source.size, tokenizers.target.size, tokenizers.shared)
    folder = base / "run"
    tokenizers.save(folder / TOKENIZER)
    (folder / CONFIG).write_text(configs.dump(config))
    metadata = {"tokenizer": tokenizers.digest(), "longest": "30", "weights": "random"}
    save_weights(folder / MODEL, model.weights(), metadata)
    for kind, quantize in (("int8", "int8"), ("float", "none")):
        convert(folder, base / kind, quantize)


@dataclass
class Case:
    """A damaged folder; `what` names the damages."""

    number: int
    folder: Path
    kind: str
    what: str = ""

    @classmethod
    def drawn(cls, number: int, base: Path, place: Path) -> Case:
        """Damage a copy in `place`: one time in four in two ways."""
        draw = random.Random(number)
        first = draw.choice(DAMAGES)
        case = cls(number, place / "model", draw.choice(("int8", "float", "run")))
        shutil.copytree(base / case.kind, case.folder)
        done = [first, *([draw.choice(DAMAGES)] if draw.random() < 0.25 else [])]
        damages = []
        for damage in done:
            try:
                damages.append(f"{damage.__name__} {damage(case, draw)}")
            except Exception:  # after the first damage nothing is left for this one
                if len(done) == 1:
                    raise
                damages.append(f"{damage.__name__} -")
        case.what = f"{case.kind}: {'; '.join(damages)}"[:300]
        return case

    @property
    def engines(self) -> tuple[str, ...]:
        return ("torch",) if self.kind == "run" else ("native", "torch", "auto")

    @property
    def weights(self) -> Path:
        return self.folder / (MODEL if self.kind == "run" else NATIVE)

    def read(self) -> bytearray:
        """The weights."""
        return content(self.weights)

    def reseal(self) -> None:
        """Correct the hash of the weights."""
        data = self.read()
        if self.kind != "run":
            data[24:56] = bytes(32)
            data[24:56] = hashlib.sha256(data).digest()
        elif found := SEAL.search(data):
            start, end = found.span(1)
            data[start:end] = b"0" * 64
            data[start:end] = hashlib.sha256(data).hexdigest().encode()
        self.weights.write_bytes(data)

    def seal_tokenizer(self) -> None:
        """Record the hash of the folder's present tokenizer, if it is one."""
        try:
            digest = Tokenizers.load(self.folder / TOKENIZER).digest()
        except UserError:
            model = content(self.folder / TOKENIZER / "shared.model")
            digest = hashlib.sha256(model).hexdigest()
        if self.kind == "run":
            data = self.read()
            self.weights.write_bytes(re.sub(rb'"tokenizer":"[0-9a-f]{64}"', f'"tokenizer":"{digest}"'.encode(), data))
            self.reseal()
        else:
            facts = json.loads(content(self.folder / NATIVE_FACTS))
            (self.folder / NATIVE_FACTS).write_text(json.dumps({**facts, "tokenizer": digest}))

    def table(self) -> tuple[bytearray, int]:
        """A converted file and its number of tensors: at most as many as fit, whatever an earlier damage did."""
        data = self.read()
        return data, min(struct.unpack_from("<I", data, 12)[0], len(data) // 64)

    def header(self) -> dict[str, Any]:
        """That of a run's weights."""
        data = self.read()
        found: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return found

    def put_header(self, header: bytes | dict[str, Any]) -> None:
        data = self.read()
        text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
        body = data[8 + int.from_bytes(data[:8], "little") :]
        self.weights.write_bytes(len(text).to_bytes(8, "little") + text + body)
        self.reseal()


def changed(data: bytearray, draw: random.Random, begin: int, end: int) -> str:
    """Change one to four bytes of a range."""
    places = [draw.randrange(begin, end) for _ in range(draw.randint(1, 4))]
    for place in places:
        data[place] = draw.choice([data[place] ^ (1 << draw.randrange(8)), 0, 255, draw.randrange(256)])
    return str(places)


def flips(case: Case, draw: random.Random) -> str:
    """Flip bits of the weights and leave the hash."""
    data = case.read()
    change = changed(data, draw, 0, len(data))
    case.weights.write_bytes(data)
    return change


def resealed_flips(case: Case, draw: random.Random) -> str:
    change = flips(case, draw)
    case.reseal()
    return change


def head_flips(case: Case, draw: random.Random) -> str:
    """Damage sizes and names."""
    data = case.read()
    end = (
        8 + int.from_bytes(data[:8], "little")
        if case.kind == "run"
        else 64 + 64 * struct.unpack_from("<I", data, 12)[0]
    )
    change = changed(data, draw, 0, min(end + 200, len(data)))
    case.weights.write_bytes(data)
    case.reseal()
    return change


def truncation(case: Case, draw: random.Random) -> str:
    data = case.read()[: draw.randrange(case.weights.stat().st_size)]
    if case.kind != "run" and len(data) > 64 and draw.random() < 0.7:
        data[16:24] = struct.pack("<Q", len(data))
    case.weights.write_bytes(data)
    if len(data) > 64 and draw.random() < 0.7:
        case.reseal()
    return str(len(data))


def sparse(case: Case, draw: random.Random) -> str:
    """Make a sparse file of 50 GB."""
    path = draw.choice([case.weights, case.weights, case.folder / CONFIG, case.folder / TOKENIZER / "shared.model"])
    if path == case.weights and case.kind != "run" and draw.random() < 0.5:
        data = content(path)
        data[16:24] = struct.pack("<Q", SPARSE)
        path.write_bytes(data)
    elif path == case.weights and case.kind == "run" and draw.random() < 0.5:
        path.write_bytes(draw.choice([SPARSE - 8, 90 << 20]).to_bytes(8, "little") + b"{" + content(path)[9:])
    os.truncate(path, SPARSE)
    return path.name


def table_edit(case: Case, draw: random.Random) -> str:
    """Rename, remove, duplicate or move a tensor, or change its type or shape."""
    if case.kind == "run":
        return header_edit(case, draw)
    data, count = case.table()
    one, other = 64 + 64 * draw.randrange(count), 64 + 64 * draw.randrange(count)
    what = draw.choice(("rename", "swap", "twice", "kind", "rows", "columns", "offset", "count"))
    if what == "rename":
        data[one : one + 40] = draw.randbytes(40)
    elif what == "swap":
        data[one + 40 : one + 64], data[other + 40 : other + 64] = (
            data[other + 40 : other + 64],
            data[one + 40 : one + 64],
        )
    elif what == "twice":
        data[one : one + 64] = data[other : other + 64]
    elif what == "offset":
        struct.pack_into("<Q", data, one + 56, draw.choice([*LARGE, (1 << 64) - 64, len(data), len(data) - 64]))
    elif what == "count":
        struct.pack_into("<I", data, 12, draw.choice([count - 1, count + 1, *LARGE]) & 0xFFFFFFFF)
    else:
        place = {"kind": 40, "rows": 44, "columns": 48}[what]
        struct.pack_into("<I", data, one + place, draw.choice([draw.randrange(5), *LARGE]))
    case.weights.write_bytes(data)
    case.reseal()
    return f"{what} at {one}"


def header_edit(case: Case, draw: random.Random) -> str:
    """Rename, remove, duplicate or move a tensor of a run's weights."""
    if case.kind != "run":
        return table_edit(case, draw)
    header = case.header()
    one, other = (draw.choice([name for name in header if name != "__metadata__"]) for _ in range(2))
    what = draw.choice(
        ("rename", "missing", "dtype", "shape", "offsets", "swap", "deep", "digits", "metadata", "twice", "junk")
    )
    if what in ("rename", "missing"):
        value = header.pop(one)
        if what == "rename":
            header[draw.choice(["x", "", other + "x", "\ud800"])] = value
    elif what == "dtype":
        header[one]["dtype"] = draw.choice(["F16", "BF16", "I64", "BOOL", "F8_E4M3", "C64", "x", 3, None])
    elif what == "shape":
        header[one]["shape"] = draw.choice(
            [[], [0], [-1], [1 << 62, 4], header[one]["shape"][::-1], "x", [1.5], [True]]
        )
    elif what == "offsets":
        header[one]["data_offsets"] = draw.choice(
            [[0, 0], [4, 0], [-4, 0], [0, 1 << 63], [0], "xy", header[other]["data_offsets"]]
        )
    elif what == "swap":
        header[one], header[other] = header[other], header[one]
    elif what == "metadata":
        header["__metadata__"] |= draw.choice(
            [{"longest": "many"}, {"longest": "9" * 5000}, {"tokenizer": "x"}, {"x": "y" * 9999}]
        )
    if what in ("deep", "digits", "junk", "twice"):
        text = json.dumps(header, separators=(",", ":"))
        text = {
            "deep": text[:-1] + ',"d":' + "[" * 50_000 + "]" * 50_000 + "}",
            "digits": text[:-1] + ',"d":' + "9" * 5000 + "}",
            "junk": text.replace(":", draw.choice(["", "::", "\x00"]), draw.randint(1, 3)),
            "twice": text[:-1] + f',"{one}":{json.dumps(header[other])}' + "}",
        }[what]
        case.put_header(text.encode())
    else:
        case.put_header(header)
    return f"{what} {one!r}"


def planted(case: Case, draw: random.Random) -> str:
    """Write NaN, infinite or huge numbers, and small panels of them."""
    data = case.read()
    if case.kind == "run":
        begin = 8 + int.from_bytes(data[:8], "little")
        places = [begin + 4 * draw.randrange((len(data) - begin) // 4) for _ in range(draw.randint(1, 9))]
    else:
        data, count = case.table()
        entries = [struct.unpack_from("<4IQ", data, 64 + 64 * i + 40) for i in range(count)]
        kind, rows, columns, _, offset = draw.choice([entry for entry in entries if entry[0] in (0, 3)])
        numbers = rows * columns if kind == 0 else (rows + 63) // 64 * 64 * ((columns + 63) // 64 * 64)
        places = [offset + 4 * draw.randrange(numbers) for _ in range(draw.randint(1, 9))]
    value = draw.choice(FLOATS)
    for place in places:
        struct.pack_into("<f", data, place, value)
    case.weights.write_bytes(data)
    case.reseal()
    return f"{value} at {places[0]}"


def sizes(case: Case, draw: random.Random) -> str:
    """Change sizes of the model, in the weights and the config alike."""
    if case.kind == "run":
        return config_edit(case, draw)
    data, count = case.table()
    names = {data[64 + 64 * i : 104 + 64 * i].rstrip(b"\0").decode("ascii", "replace"): i for i in range(count)}
    name = draw.choice(("sizes", "encoder", "decoder"))
    offset = struct.unpack_from("<Q", data, 64 + 64 * names[name] + 56)[0]
    place = draw.randrange(4 if name == "sizes" else 16)
    value = draw.choice([-1, 1, 3, 17, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1_000_000, (1 << 31) - 1])
    struct.pack_into("<i", data, offset + 4 * place, value)
    case.weights.write_bytes(data)
    case.reseal()
    key = (
        {0: "layers", 1: "heads", 2: "key_heads", 5: "d_ff", 6: "longest"}.get(place, "")
        if name != "sizes"
        else "d_model" * (place == 0)
    )
    if key and draw.random() < 0.8:
        path = case.folder / CONFIG
        path.write_text(re.sub(rf"(?m)^{key} = \d+$", f"{key} = {value}", content(path).decode()))
    return f"{name}[{place}] = {value} {key}"


def shared_bytes(case: Case, draw: random.Random) -> str:
    """Let many layers share one layer's bytes: a small file that describes a large model."""
    if case.kind == "run":
        return table_edit(case, draw)
    data, count = case.table()
    rows = [bytes(data[64 + 64 * i : 128 + 64 * i]) for i in range(count)]
    body, start, layers = data[64 + 64 * count :], 64 + 64 * count, draw.choice((20, 100, 200))
    for stack in (b"encoder", b"decoder"):
        described = next(row for row in rows if row.startswith(stack + b"\0"))
        struct.pack_into("<i", body, struct.unpack_from("<Q", described, 56)[0] - start, layers)
        for row in [row for row in rows if row.startswith(stack + b".1.")]:
            names = [row[:40].rstrip(b"\0").replace(b".1.", b".%d." % i, 1) for i in range(2, layers)]
            rows += [name.ljust(40, b"\0") + row[40:] for name in names]
    moved = 64 * (len(rows) - count)
    table = b"".join(row[:56] + struct.pack("<Q", struct.unpack_from("<Q", row, 56)[0] + moved) for row in rows)
    whole = data[:12] + struct.pack("<IQ", len(rows), 64 + len(table) + len(body)) + data[24:64] + table + body
    case.weights.write_bytes(whole)
    case.reseal()
    path = case.folder / CONFIG
    path.write_text(content(path).decode().replace("layers = 2", f"layers = {layers}"))
    return str(layers)


def config_edit(case: Case, draw: random.Random) -> str:
    """Change, remove or duplicate a setting, or damage the text."""
    path = case.folder / CONFIG
    lines = content(path).decode("utf-8", "replace").splitlines()
    at = draw.choice([i for i, line in enumerate(lines) if "=" in line])
    what = draw.choice(
        ("number", "number", "number", "other", "delete", "twice", "kind", "deep", "dots", "bytes", "junk")
    )
    key, _, value = lines[at].partition(" = ")
    if what == "number":
        at = draw.choice([i for i, line in enumerate(lines) if re.search(r"= [-\d.]+$", line)])
        key = lines[at].partition(" = ")[0]
        lines[at] = f"{key} = {draw.choice(NUMBERS)}"
    elif what == "other":
        lines[at] = f"{key} = {draw.choice(OTHER)}"
    elif what == "delete":
        del lines[at]
    elif what == "twice":
        lines.insert(at, lines[at])
    elif what == "kind":
        at = draw.choice([i for i, line in enumerate(lines) if line.startswith("kind = ")])
        kinds = (
            "recurrent parallel additive bilinear cosine relative_bias alibi sample mask_predict mbr greedy os:system"
        )
        kinds += " batch_norm convolutional post_norm rotary sinusoidal layer_norm softmax relu top matched"
        lines[at] = f'kind = "{draw.choice(kinds.split())}"'
    elif what == "deep":
        lines.insert(at, "deep = " + "[" * 50_000 + "]" * 50_000)
    elif what == "dots":
        lines.insert(0, ".".join(["a"] * 20_000) + " = 1")
    else:
        lines[at] = key + draw.choice([" == ", "\x00", " = '''", "[[", " = " + value + value])
    data = "\n".join(lines).encode()
    path.write_bytes(data[:50] + b"\xff\xfe" + data[50:] if what == "bytes" else data)
    return f"{what} {lines[min(at, len(lines) - 1)][:60]!r}"


def search_edit(case: Case, draw: random.Random) -> str:
    """Change the folder's `[search]`: one that the native engine does not support, or one of any size."""
    path = case.folder / CONFIG
    text = content(path).decode().partition("[search]")[0]
    choice = draw.choice((
        'kind = "beam"\ngroups = 2\nsize = 4', 'kind = "beam"\ncoverage = 0.2', 'kind = "mask_predict"', 'kind = "mbr"',
        'kind = "beam"\nsize = 100000000', 'kind = "sample"\nsamples = 100000000', 'kind = "ctc"', 'kind = "joint"',
        'kind = "beam"\nsize = 4097', 'kind = "greedy"\n[search.limits]\nlongest = 1000000000\nlongest_ratio = 1e300',
        'kind = "beam"\nlength_penalty = 1e300', 'kind = "sample"\ntemperature = 1e-300\ntop_k = 2147483648',
        'kind = "greedy"\n[search.limits]\nforbid = [100000000]',
        'kind = "greedy"\n[search.limits]\nno_repeat = 9000000000',
    ))  # fmt: skip
    path.write_text(f"{text}[search]\n{choice}\n")
    return repr(choice)


def tokenizer_edit(case: Case, draw: random.Random) -> str:
    """Damage the sentencepiece model and correct its hash, or damage a table beside it."""
    path = case.folder / TOKENIZER / "shared.model"
    data = content(path)
    what = draw.choice(("flips", "flips", "cut", "text", "table", "empty", "double"))
    if what == "flips":
        changed(data, draw, 0, len(data) if draw.random() < 0.5 else len(data) // 4)
    elif what == "cut":
        del data[draw.randrange(len(data)) :]
    elif what == "text":
        place = data.find("▁one".encode())
        data[place : place + 3] = b"\xff\xfe\xfd"
    elif what == "table":
        pieces = [f"p{i}" for i in range(draw.choice((3, 90, 91)))]
        symbols: dict[str, Any] = {"pad": 0, "bos": 1, "eos": 2, "unk": draw.choice((0, 3, -1, "x")), "never": [0, 1]}
        whole: Any = {"symbols": symbols, "pieces": draw.choice((pieces, ["\ud800", *pieces[1:]], [pieces], 5))}
        path.with_name("shared.json").write_text(draw.choice((json.dumps(whole), "[" * 50_000, "9" * 5000, "{}")))
    else:
        data = bytearray() if what == "empty" else data + data
    path.write_bytes(data)
    case.seal_tokenizer()
    return what


def facts_edit(case: Case, draw: random.Random) -> str:
    """Damage native.json, or the metadata of a run."""
    if case.kind == "run":
        return header_edit(case, draw)
    path = case.folder / NATIVE_FACTS
    facts: Any = json.loads(content(path).decode())
    key = draw.choice(list(facts))
    text = draw.choice((
        json.dumps({**facts, key: draw.choice([0, -1, 10**9, 10**30, "x", None, [], True, 1.5])}), "[]", "{}", "",
        "[" * 50_000, '{"a":' * 50_000, json.dumps(facts).replace("30", "9" * 5000), json.dumps(facts)[:-2], "\x00",
        json.dumps({**facts, "x": 1}), json.dumps({name: value for name, value in facts.items() if name != key}),
    ))  # fmt: skip
    path.write_bytes(text.encode() + (b"\xff" if draw.random() < 0.1 else b""))
    return repr(text[:60])


def misplaced(case: Case, draw: random.Random) -> str:
    """Make a file missing, empty, a folder, or a dangling or circular link."""
    path = draw.choice([one for one in case.folder.rglob("*") if one.is_file()])
    what = draw.choice(("missing", "empty", "folder", "nowhere", "circle", "zeros", "random"))
    path.unlink()
    if what == "empty":
        path.write_bytes(b"")
    elif what == "folder":
        path.mkdir()
    elif what in ("nowhere", "circle"):
        path.symlink_to(case.folder / "gone" if what == "nowhere" else path)
    elif what in ("zeros", "random"):
        path.write_bytes(bytes(5000) if what == "zeros" else draw.randbytes(5000))
    return f"{what} {path.name}"


def card_edit(case: Case, draw: random.Random) -> str:
    """Damage files beside the model: reader.json, scores, a card of bytes."""
    name = draw.choice(("reader.json", "scores.json", "README.md"))
    text = draw.choice(("[" * 50_000, "9" * 5000, "{}", '{"kind": "speech"}', '{"kind": "speech", "bands": 1000000000}',
                        '{"kind": "images", "patch": -1}', '{"x": {"directions": 5}}', "\x00"))  # fmt: skip
    (case.folder / name).write_bytes(text.encode() + (b"\xff" if draw.random() < 0.3 else b""))
    return f"{name} {text[:40]!r}"


DAMAGES: tuple[Damage, ...] = (
    flips, resealed_flips, resealed_flips, head_flips, head_flips, truncation, sparse, table_edit, table_edit,
    header_edit, planted, planted, sizes, sizes, shared_bytes, config_edit, config_edit, config_edit, search_edit,
    tokenizer_edit, tokenizer_edit, facts_edit, misplaced, card_edit,
)  # fmt: skip
