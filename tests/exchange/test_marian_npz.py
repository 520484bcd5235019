"""Marian's own model.npz comes in with the same logits as Hugging Face's folder of the same model; strangers do not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from cli_runner import Run, refused

pytest.importorskip("transformers", reason="the oracle for Marian models: pip install transduce[test]")
pytest.importorskip("yaml", reason="writes Marian's files: pip install transduce[test]")

import marian_models as marian
import yaml

import transduce
from transduce.core.errors import RunError, UserError
from transduce.model.seq2seq import Seq2Seq
from transduce.training.run_folder import open_model, read_config

# As Marian names them and Hugging Face's converter of 2020 to 2026 reads them.
ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
FACTS = {
    "type": "transformer", "transformer-postprocess": "dan", "transformer-preprocess": "", "tied-embeddings": True,
    "transformer-postprocess-emb": "d", "transformer-ffn-depth": 2, "transformer-decoder-autoreg": "self-attention",
    "transformer-train-position-embeddings": False, "layer-normalization": False, "right-left": False, "dim-emb": 32,
    "enc-depth": 2, "dec-depth": 2, "transformer-heads": 4, "transformer-dim-ffn": 48, "version": "v1.9.0",
}  # fmt: skip


def raw(theirs: Path, folder: Path, **changed: Any) -> Path:
    """The same model as Marian keeps it."""
    folder.mkdir()
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    config = json.loads((theirs / "config.json").read_text())
    shared = config["share_encoder_decoder_embeddings"]
    arrays: dict[str, Any] = {"decoder_ff_logit_out_b": tensors["final_logits_bias"][:, :-1]}
    if shared:
        arrays["Wemb"] = tensors["model.shared.weight"][:-1]
    else:
        for side in ("encoder", "decoder"):
            arrays[f"{side}_Wemb"] = tensors[f"model.{side}.embed_tokens.weight"][:-1]
    for side in ("encoder", "decoder"):
        for layer in range(2):
            at, own = f"model.{side}.layers.{layer}", f"{side}_l{layer + 1}"
            parts = {"self": "self_attn"} | ({"context": "encoder_attn"} if side == "decoder" else {})
            for name, part in parts.items():
                for letter, projection in ATTENTION.items():
                    arrays[f"{own}_{name}_W{letter}"] = tensors[f"{at}.{part}.{projection}.weight"].T
                    arrays[f"{own}_{name}_b{letter}"] = tensors[f"{at}.{part}.{projection}.bias"][None]
                arrays[f"{own}_{name}_Wo_ln_scale"] = tensors[f"{at}.{part}_layer_norm.weight"][None]
                arrays[f"{own}_{name}_Wo_ln_bias"] = tensors[f"{at}.{part}_layer_norm.bias"][None]
            for number in (1, 2):
                arrays[f"{own}_ffn_W{number}"] = tensors[f"{at}.fc{number}.weight"].T
                arrays[f"{own}_ffn_b{number}"] = tensors[f"{at}.fc{number}.bias"][None]
            arrays[f"{own}_ffn_ffn_ln_scale"] = tensors[f"{at}.final_layer_norm.weight"][None]
            arrays[f"{own}_ffn_ffn_ln_bias"] = tensors[f"{at}.final_layer_norm.bias"][None]
    facts = {"transformer-ffn-activation": config["activation_function"], "tied-embeddings-all": shared}
    write(folder / "model.npz", {name: np.asarray(tensor) for name, tensor in arrays.items()}, **facts, **changed)
    for name, file in (("vocab.json", "opus.src.vocab.yml"), ("target_vocab.json", "opus.trg.vocab.yml")):
        if (theirs / name).is_file():
            numbers = json.loads((theirs / name).read_text())
            numbers.pop("<pad>")
            (folder / (file.replace("src.", "") if shared else file)).write_text(yaml.safe_dump(numbers))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes((theirs / name).read_bytes())
    (folder / "decoder.yml").write_text("beam-size: 6\nnormalize: 1\nmodels:\n  - model.npz\n")
    return folder


def write(path: Path, arrays: dict[str, Any], **changed: Any) -> None:
    text = yaml.safe_dump({**FACTS, **changed}).encode() + b"\0"
    np.savez(path, **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})


@pytest.mark.parametrize("shape", ["usual", "relu", "separate"])
@torch.no_grad()
def test_both_ways_in_give_the_same_logits(shape: str, tmp_path: Path) -> None:
    theirs = marian.folder(tmp_path / "theirs", shape)
    ours = transduce.import_model(raw(theirs, tmp_path / "raw"), tmp_path / "run")
    config = (ours / "config.toml").read_text()
    base = read_config(ours).model.encoder.positions.base  # type: ignore[union-attr]
    assert base == pytest.approx(10000 ** (16 / 15))  # Marian's waves; Hugging Face's converter takes the paper's
    (ours / "config.toml").write_text(config.replace(f"base = {base}", "base = 10000.0"))
    other = transduce.import_model(theirs, tmp_path / "other")
    oracle, tokenizer = marian.opened(theirs)
    _, tokenizers, model, _ = open_model(ours, trust=False)
    assert isinstance(model, Seq2Seq)
    pad = tokenizers.target.symbols.pad
    read = tokenizer(marian.SOURCE[:60], return_tensors="pt", padding=True)
    target = torch.randint(pad, (60, 12), generator=torch.Generator().manual_seed(1))
    target[:, 0] = pad
    logits, _ = model.eval().advance(target, model.start(model.encode(read.input_ids, read.attention_mask.bool())))
    expected = oracle(**read, decoder_input_ids=target).logits
    torch.testing.assert_close(logits[..., :pad], expected[..., :pad], rtol=0, atol=1e-4)
    assert (logits[..., pad] < -900).all()  # Marian has none
    weights, same = model.weights(), open_model(other, trust=False)[2].weights()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights if name != "output_bias")
    ends = transduce.load(ours, "cpu"), transduce.load(other, "cpu")
    assert ends[0].tokenizers.source.encode(marian.SOURCE) == ends[1].tokenizers.source.encode(marian.SOURCE)
    search = read_config(ours).search
    assert (search.size, search.length_penalty, search.length_normalization) == (6, 1.0, "power")  # type: ignore[union-attr]


def test_the_file_itself_may_be_named(tmp_path: Path, run: Run) -> None:
    theirs = marian.folder(tmp_path / "theirs", "usual")
    folder = raw(theirs, tmp_path / "raw")
    assert run("import", folder / "model.npz", tmp_path / "one").code == 0
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    (theirs / "model.safetensors").unlink()
    torch.save(tensors, theirs / "checkpoint.pt")
    assert run("import", theirs / "checkpoint.pt", tmp_path / "two").code == 0
    assert run("import", theirs, tmp_path / "three").code == 0  # the only one there
    texts = [transduce.load(tmp_path / name, "cpu")(marian.SOURCE[:5], beam=1) for name in ("one", "two", "three")]
    assert texts[0] == texts[1] == texts[2]
    torch.save(tensors, theirs / "other.pt")
    said = refused(run("import", theirs, tmp_path / "four"))
    assert "has 2 files that may be weights (checkpoint.pt, other.pt); give the one that is meant instead" in said


def test_files_alone_are_refused_with_what_is_missing(tmp_path: Path, run: Run) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    said = refused(run("import", tmp_path / "x.pt", tmp_path / "run"))
    assert "config.json: cannot be read: No such file. x.pt holds weights alone; expected beside it config.json" in said
    assert "Checkpoints of other toolkits cannot be imported" in said
    (tmp_path / "notes.txt").write_text("no model")
    said = refused(run("import", tmp_path / "notes.txt", tmp_path / "run"))
    assert (
        "notes.txt: is no file of weights; expected one of .safetensors, .bin, .pt, .npz, or a model's folder" in said
    )
    said = refused(run("import", tmp_path / "nowhere", tmp_path / "run"))
    assert "nowhere: no such folder or file; expected the folder of a model, or its file of weights" in said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return raw(marian.folder(tmp_path / "theirs", "usual"), tmp_path / "raw")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"transformer-preprocess": "n"},
            "no Marian model that we know: transformer-preprocess 'n', .* expected '', 'dan'",
        ),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg is 'average-attention'"),
        ({"dim-emb": "wide"}, "model.npz: dim-emb: expected a number, got 'wide'"),
        ({"enc-depth": 3}, "the tensors are not those of the model"),
        ({"tied-embeddings-all": False}, "missing decoder_Wemb, encoder_Wemb, unknown Wemb"),
    ],
)
def test_settings_that_are_refused(folder: Path, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with np.load(folder / "model.npz") as arrays:
        tensors = {name: arrays[name] for name in arrays.files if name != "special:model.yml"}
    write(folder / "model.npz", tensors, **{"tied-embeddings-all": True, **changes})
    with pytest.raises(RunError, match=text):
        transduce.import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Runs:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_archives_that_are_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.npz"

    def refusal() -> str:
        with pytest.raises(RunError) as caught:
            transduce.import_model(folder, tmp_path / "run")
        return str(caught.value)

    with np.load(path) as arrays:
        good = {name: arrays[name] for name in arrays.files}
    np.savez(path, **{**good, "x": np.array([Runs(tmp_path / "ran")], dtype=object)}, allow_pickle=True)
    assert "cannot be read as arrays alone (ValueError" in refusal()
    assert not (tmp_path / "ran").exists()
    np.savez(path, **good, Wpos=np.ones((4, 32), np.float32), whole=np.ones((2, 2), np.int8))
    assert "missing none, unknown Wpos, whole, not matrices of floats whole" in refusal()
    np.savez(path, **{**good, "decoder_ff_logit_out_b": np.zeros((1, 7), np.float32)})
    assert "7 biases of the output; only vocabularies of one size can be imported" in refusal()
    np.savez(path, Wemb=good["Wemb"])
    assert "has no 'special:model.yml', which is in every model that Marian saved; found Wemb" in refusal()
    np.savez(path, **{**good, "special:model.yml": np.array(["a: b"])})
    assert "'special:model.yml' is an array of <U4, expected bytes of YAML" in refusal()
    np.savez_compressed(path, **good, zeros=np.zeros((10**4, 10**3), np.float32))
    assert "bytes, more than weights can; it is no model" in refusal()
    path.write_bytes(b"PK not an archive")
    assert "cannot be read as arrays alone (BadZipFile" in refusal()
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(
            "a.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,)"
        )
    assert "cannot be read as arrays alone (" in refusal()
    np.savez(path, **good)
    (vocabulary,) = folder.glob("*vocab.yml")
    for text, told in (
        ("- a\n- b\n", "expected YAML with names and values"),
        ("a: [", ": not YAML ("),
        ("</s>: end\n", "</s>: expected a number, got 'end'"),
        ("<unk>: 1\n", "has no piece '</s>', or another number for it than the other side's"),
        ("</s>: 0\n<unk>: 5000\n", "'<unk>' has number 5000; expected one below the vocabulary's size"),
    ):
        vocabulary.write_text(text)
        assert told in refusal()
    vocabulary.write_bytes(b"\xff\xfe: 1\n")
    assert ": not UTF-8 (" in refusal()
    vocabulary.rename(folder / "words.yml")
    assert "has 0 files *vocab*.spm or *vocab.yml beside model.npz; expected one, with the number of each" in refusal()


ALIASES = "\n".join(
    ["a: &a [x, x]", *(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise("abcdefghijk"))]
)


@pytest.mark.parametrize(
    ("text", "told"),
    [("[" * 50_000, "expected YAML with names and values"), (ALIASES, "has an anchor or an alias (& or *), in line 1")],
    ids=["nested", "aliases"],
)
@pytest.mark.parametrize("place", ["vocabulary", "archive"])
def test_hostile_yaml_is_refused(folder: Path, tmp_path: Path, place: str, text: str, told: str) -> None:
    """In a process of its own: a loader that builds what a text says crashes, or works without end."""
    if place == "vocabulary":
        (vocabulary,) = folder.glob("*vocab.yml")
        vocabulary.write_text(text)
    else:  # whose settings come first, and are large where aliases are built
        np.savez(folder / "model.npz", **{"special:model.yml": np.frombuffer(text.encode(), np.int8)})
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60)); import transduce.__main__ as m; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", limited, "import", folder, tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, told in done.stderr) == (2, True), (done.returncode, done.stderr[:500])


def test_what_cannot_be_opened_or_is_too_large(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.exchange.foreign.LARGEST_JSON_BYTES", 1)
    with pytest.raises(RunError, match="larger than 1 bytes; expected settings or a vocabulary"):
        transduce.import_model(folder, tmp_path / "run")
    (vocabulary,) = folder.glob("*vocab.yml")
    vocabulary.unlink()
    vocabulary.symlink_to(folder / "gone.yml")
    monkeypatch.undo()
    with pytest.raises(RunError, match="cannot be opened: No such file"):
        transduce.import_model(folder, tmp_path / "run")


def test_without_pyyaml_it_is_told_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match=r"reading Marian's own files needs yaml: pip install 'transduce\[marian\]'"):
        transduce.import_model(folder, tmp_path / "run")
