"""Several processes make the steps that one makes: 1 against 2 against 4, copies against pieces, resumed by any number.

All without dropout unless draws are the same by design. What differs is the order of additions: losses agree to 1e-5 of
themselves, weights after 12 steps to 1e-4 (Adam's epsilon is 1e-3 here, lest it blow rounding up to whole updates).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import processes
import pytest
import torch
import toys
from snapshots import same

from transduce.data.corpus import Corpus
from transduce.training.averages import average
from transduce.training.checkpoint import step_folders
from transduce.training.validate import validate

pytestmark = pytest.mark.slow  # each process opens torch's transports

SAME = ("model.dropout=0", "training.steps=12", "validation.every=6")
STEADY = "training.optimizer.epsilon=1e-3"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:], "bpe", 30)


def expect_same(folder: Path, other: Path) -> None:
    """Equal curve, validations, progress and weights."""
    for kind, names in {"train": ("loss", "nll", "gradient_norm"), "valid": ("loss", "perplexity")}.items():
        found, wanted = toys.reports(folder, kind), toys.reports(other, kind)
        assert [line["step"] for line in found] == [line["step"] for line in wanted]
        for name in names:
            expected = [line[name] for line in wanted]
            assert [line[name] for line in found] == pytest.approx(
                expected, rel=1e-5 if name != "gradient_norm" else 1e-4
            )
    mine, theirs = toys.final(folder), toys.final(other)
    for key in ("step", "epoch", "position", "target_tokens", "best_step", "stale"):
        assert mine.state[key] == theirs.state[key]
    assert mine.tensors.keys() == theirs.tensors.keys()
    for stem, tensors in theirs.tensors.items():
        assert mine.tensors[stem].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert mine.tensors[stem][name].shape == tensor.shape
            assert (mine.tensors[stem][name] - tensor).abs().max() < 1e-4, f"{stem}: {name}"


def together(size: int, corpus: Path, folder: Path, *settings: str) -> None:
    ended = processes.train(size, corpus, folder, *settings)
    assert ended.codes == [0] * size, ended.said
    assert ended.said[1:] == [""] * (size - 1)
    assert "Warning" not in ended.said[0]


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, ("training.ema=0.9", "training.clip=0.5", "training.optimizer.kind=adam_w")),
        (4, ()),
        (2, ("training.accumulate=2", "model.dropout=0.2")),  # a whole micro-batch each: even dropout is the same
        (2, ("training.accumulate=3", "training.optimizer.kind=muon", "training.optimizer.momentum=0.5")),
        (4, ("data.tokens=8", "data.bucket=2")),  # one pair a batch: three of the four have none
        (2, ("model.encoder.norm=batch_norm", "model.decoder.norm=batch_norm", "training.accumulate=2")),
        (3, ("data.sampling=0.3", "objective=r_drop")),
        (2, ("model.heads=['ctc','length']", "objective.terms=[{kind='ctc',until=4}]")),
        (2, ("training.accumulate=2", "model.dropout=0.2", "training.activation_checkpointing=true")),
    ],
    ids=["two", "four", "accumulated", "rows", "few rows", "batch norm", "sampling", "heads", "recomputed"],
)
def test_copies_do_as_one(corpus: Path, tmp_path: Path, size: int, settings: tuple[str, ...]) -> None:
    toys.run(corpus, tmp_path / "one", *SAME, *settings, STEADY)
    together(size, corpus, tmp_path / "many", *SAME, *settings, STEADY)
    expect_same(tmp_path / "many", tmp_path / "one")


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, ("training.ema=0.9", "training.clip=0.5", "training.accumulate=2")),
        (3, ("model.decoder.layers=2", "training.accumulate=2", "objective.inputs=scheduled_sampling")),
        (2, ("model.encoder.kind=recurrent", "model.decoder.kind=recurrent")),  # no blocks: the root alone
        (2, ("model.decoder.layers=2", "training.activation_checkpointing=true")),
    ],
    ids=["average", "rows", "recurrent", "recomputed"],
)
def test_pieces_do_as_one(corpus: Path, tmp_path: Path, size: int, settings: tuple[str, ...]) -> None:
    toys.run(corpus, tmp_path / "one", *SAME, *settings, STEADY)
    together(size, corpus, tmp_path / "many", *SAME, *settings, STEADY, "training.parallel=fsdp")
    expect_same(tmp_path / "many", tmp_path / "one")


PRECISION = """
import os
from dataclasses import dataclass
from pathlib import Path
from transduce.model.recurrent import Recurrence
from transduce.model.transformer import EncoderLayer
from transduce.objectives.cross_entropy import CrossEntropy

def telling(forward):
    def told(self, *inputs):
        if self.training:
            with Path(__file__).with_name(f"kinds.{os.environ['RANK']}").open("a") as file:
                file.write("".join(f"{parameter.dtype}\\n" for parameter in self.parameters()))
        return forward(self, *inputs)
    return told

for kind in (EncoderLayer, Recurrence):
    kind.forward = telling(kind.forward)

@dataclass(frozen=True)
class Plain(CrossEntropy):
    pass
"""


@pytest.mark.parametrize(
    ("settings", "gathered"),
    [((), "torch.bfloat16"), (("model.encoder.kind=recurrent", "model.decoder.kind=recurrent"), "torch.float32")],
    ids=["transformer", "recurrent"],
)
def test_in_pieces_whole_weights_are_gathered_in_bf16_and_sums_are_in_fp32(
    corpus: Path, tmp_path: Path, settings: tuple[str, ...], gathered: str
) -> None:
    """Recurrences stay in fp32. What is saved is in fp32, and near to what one process learns in bf16."""
    (tmp_path / "precision.py").write_text(PRECISION)
    settings = (*SAME, STEADY, "training.precision=bf16", *settings)
    objective = ("objective=precision:Plain", "training.parallel=fsdp")
    ended = processes.train(2, corpus, tmp_path / "many", *settings, *objective, path=str(tmp_path))
    assert ended.codes == [0, 0], ended.said
    for rank in range(2):
        assert set((tmp_path / f"kinds.{rank}").read_text().split()) == {gathered}
    toys.run(corpus, tmp_path / "one", *settings)
    mine, theirs = toys.final(tmp_path / "many"), toys.final(tmp_path / "one")
    for stem, tensors in theirs.tensors.items():
        for name, tensor in tensors.items():
            assert mine.tensors[stem][name].dtype == tensor.dtype == torch.float32
    found, wanted = toys.reports(tmp_path / "many"), toys.reports(tmp_path / "one")
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in wanted], rel=2e-2)


WHOLES = """
import gc
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.training import loop

def wholes():
    tensors = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor) and found.dim() == 2]
    cut = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
    shapes = {tensor.shape for tensor in cut} - {tensor.to_local().shape for tensor in cut}
    assert shapes
    plain = [tensor for tensor in tensors if type(tensor) in (torch.Tensor, torch.nn.Parameter)]
    plain = [tensor for tensor in plain if tensor.dtype == torch.float32 and tensor.device.type != "meta"]
    return {tuple(t.shape) for t in plain if t.shape in shapes and t.untyped_storage().nbytes()}, len(shapes)

def telling(name):
    run = getattr(loop, name)
    def told(*inputs):
        found, shapes = wholes()
        with Path(__file__).with_name(f"wholes.{os.environ['RANK']}").open("a") as file:
            file.write(f"{name} {len(found)} {shapes}\\n")
        return run(*inputs)
    setattr(loop, name, told)

for name in ("update", "validate", "held_out_loss"):
    telling(name)

@dataclass(frozen=True)
class Plain(CrossEntropy):
    pass
"""


@pytest.mark.parametrize("settings", [(), ("training.ema=0.9",)], ids=["raw", "average"])
def test_in_pieces_whole_weights_are_there_for_validation_alone(
    corpus: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Between passes no process holds a matrix that is whole, neither before the first validation nor after it."""
    (tmp_path / "counting_wholes.py").write_text(WHOLES)
    several = ("training.parallel=fsdp", "training.steps=4", "validation.every=2", "objective=counting_wholes:Plain")
    ended = processes.train(2, corpus, tmp_path / "run", *several, *settings, path=str(tmp_path))
    assert ended.codes == [0, 0], ended.said
    for rank in range(2):
        seen = [line.split() for line in (tmp_path / f"wholes.{rank}").read_text().split("\n")[:-1]]
        updates = [name == "update" for name, _, _ in seen]
        assert [updating for updating, _ in itertools.groupby(updates)] == [True, False, True, False]
        assert [count for name, count, _ in seen if name == "update"] == ["0"] * 4
        assert all(count == shapes for name, count, shapes in seen if name != "update")


def test_any_number_resumes_what_any_number_saved(corpus: Path, tmp_path: Path) -> None:
    settings = (*SAME, STEADY, "training.ema=0.9", "validation.every=3", "training.report_every=2")
    toys.run(corpus, tmp_path / "whole", *settings)
    run = tmp_path / "run"
    together(4, corpus, run, *settings, "training.steps=3")
    together(2, corpus, run, *settings, "training.steps=6", "training.parallel=fsdp")
    together(2, corpus, run, *settings, "training.steps=9")
    toys.run(corpus, run, *settings)
    expect_same(run, tmp_path / "whole")
    assert step_folders(run).keys() == step_folders(tmp_path / "whole").keys()


@pytest.mark.parametrize(("size", "kind"), [(4, "ddp"), (3, "fsdp")])
def test_stopped_and_resumed_is_as_never_stopped_to_the_bit(corpus: Path, tmp_path: Path, size: int, kind: str) -> None:
    """With three or more, the order of additions must not depend on how long a process has lived."""
    settings = ("training.ema=0.9", f"training.parallel={kind}", "data.valid=none")
    together(size, corpus, tmp_path / "whole", *settings, "training.steps=12")
    for steps in (5, 12):
        together(size, corpus, tmp_path / "parts", *settings, f"training.steps={steps}")
    assert same(toys.final(tmp_path / "parts"), toys.final(tmp_path / "whole"))
    assert [line["loss"] for line in toys.reports(tmp_path / "parts")] == [
        line["loss"] for line in toys.reports(tmp_path / "whole")
    ]


COUNTING = """
import os
from dataclasses import dataclass
from pathlib import Path
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.training import validate

class Counting(validate.Translator):
    def __call__(self, texts, **settings):
        with Path(__file__).with_name(f"texts.{os.environ.get('RANK')}").open("a") as file:
            file.write(f"{len(texts)}\\n")
        return super().__call__(texts, **settings)

validate.Translator = Counting

@dataclass(frozen=True)
class Plain(CrossEntropy):
    pass
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_validation_is_shared_and_its_figures_are_those_of_one(corpus: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    settings = ("validation.sentences=0", "validation.samples=10", "data.tokens=24", "training.steps=12")
    several = (f"training.parallel={kind}", "validation.every=12", "training.average=2", "training.save_every=6")
    run = tmp_path / "run"
    objective = "objective=counting:Plain"
    ended = processes.train(3, corpus, run, *settings, *several, objective, path=str(tmp_path))
    assert ended.codes == [0, 0, 0], ended.said
    shares = [[int(line) for line in (tmp_path / f"texts.{rank}").read_text().split()] for rank in range(3)]
    assert shares == [[4, 4], [3, 3], [3, 3]]  # of ten texts: the last step's weights, and the average at the end
    (last,), (end,) = toys.reports(run, "valid"), toys.reports(run, "finished")
    config, opened = toys.config(corpus, *settings), Corpus.open(corpus)
    model = config.model.build(*(side.size for side in (opened.tokenizers.source, opened.tokenizers.target)), True)
    for prefix, found, steps in (("", last, [12]), ("average_", end, [6, 12])):
        model.load_weights(average([step_folders(run)[step] for step in steps]))
        for name, value in validate(model, opened, config, torch.device("cpu")).values.items():
            assert found[f"{prefix}{name}"] == value  # to the bit: sums are added up in the same order


def test_only_the_first_touches_the_run_folder(corpus: Path, tmp_path: Path) -> None:
    """Not even to read: the others are given another folder, which is not there and need not be."""
    outputs = [tmp_path / "run", tmp_path / "nowhere", tmp_path / "nowhere"]
    for steps in (4, 8):
        settings = (f"training.steps={steps}", "training.average=2", "training.save_every=2")
        ended = processes.train(3, corpus, tmp_path / "run", *settings, outputs=outputs)
        assert ended.codes == [0, 0, 0], ended.said
    assert f"{tmp_path / 'run'}: resuming from step 4" in ended.said[0]
    assert ended.said[1:] == ["", ""]
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert [line["step"] for line in toys.reports(tmp_path / "run")] == list(range(1, 9))
    again = processes.train(3, corpus, tmp_path / "run", *settings, outputs=outputs)
    assert again.codes == [0, 0, 0]
    assert "nothing to do: it ended at step 8 (finished)" in again.said[0]


# -- what goes wrong ------------------------------------------------------------------------------------------------

OBJECTIVE = """
import os, signal
from dataclasses import dataclass, replace
from transduce.core.errors import DataError
from transduce.objectives.cross_entropy import CrossEntropy

@dataclass(frozen=True)
class Faulty(CrossEntropy):
    fault: str = "nan"

    def build(self, context):
        loss = super().build()
        def faulty(model, batch, step):
            found = loss(model, batch, step)
            if step != 3 or os.environ.get("RANK") != "1":
                return found
            if self.fault == "nan":
                return replace(found, total=found.total * float("nan"))
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "asked":
                os.kill(os.getpid(), signal.SIGTERM)
                return found
            if self.fault == "error":
                raise DataError("one process alone has found this")
            raise ArithmeticError("a mistake of ours")
        return faulty
"""


@pytest.fixture
def faulty(corpus: Path, tmp_path: Path) -> Path:
    (tmp_path / "faulty.py").write_text(OBJECTIVE)
    return tmp_path


def suffer(corpus: Path, place: Path, fault: str, *settings: str) -> processes.Ended:
    objective = ("objective=faulty:Faulty", f"objective.fault='{fault}'", "training.steps=8", *settings)
    return processes.train(2, corpus, place / "run", *objective, path=str(place))


def test_a_gradient_that_is_not_finite_in_one_is_skipped_by_all(corpus: Path, faulty: Path) -> None:
    ended = suffer(corpus, faulty, "nan")
    assert ended.codes == [0, 0], ended.said
    assert [line["skipped"] for line in toys.reports(faulty / "run")] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert all(line["loss"] > 1 for line in toys.reports(faulty / "run"))


def test_a_signal_to_one_stops_all(corpus: Path, faulty: Path) -> None:
    ended = suffer(corpus, faulty, "asked")
    assert ended.codes == [143, 143]
    assert "SIGTERM: saved step 4 in " in ended.said[0]
    assert "SIGTERM" not in ended.said[1]
    assert list(step_folders(faulty / "run")) == [4]


@pytest.mark.parametrize(
    ("fault", "codes", "words"),
    [
        ("error", [2, 2], "error: one process alone has found this\n"),
        ("mistake", [2, 1], "ArithmeticError: a mistake of ours\n"),
        (
            "killed",
            [2, -9],
            "error: another process of the group has ended or cannot be reached, and none can continue without it. The"
            " last checkpoint is sound: the same command resumes from it, as does torchrun itself with"
            " --max-restarts\n",
        ),
    ],
)
def test_the_group_ends_with_one_message(corpus: Path, faulty: Path, fault: str, codes: list[int], words: str) -> None:
    ended = suffer(corpus, faulty, fault)
    assert ended.codes == codes, ended.said
    said = "".join(ended.said)
    assert said.count(words) == 1
    assert said.count("error: ") == (fault != "mistake")
    assert said.count("Traceback") == (fault == "mistake")
    assert not step_folders(faulty / "run")


def test_what_all_find_wrong_is_said_once(corpus: Path, tmp_path: Path) -> None:
    ended = processes.train(3, tmp_path / "missing", tmp_path / "run")
    assert ended.codes == [2, 2, 2]
    assert "".join(ended.said).count("error: ") == 1
    (tmp_path / "file").write_text("not a folder")
    ended = processes.train(
        2, corpus, tmp_path / "run", outputs=[tmp_path / "file" / "run"] * 2
    )  # only the first finds it
    assert ended.codes == [2, 2]
    assert "".join(ended.said).count("error: ") == 1
    assert "making the run folder failed: Not a directory" in ended.said[0]
