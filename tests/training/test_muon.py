"""Muon against torch's own one matrix at a time, what gets it, and holding still when a gradient is not finite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from snapshots import same_tensors
from torch import Tensor, nn

from transduce.core.errors import ConfigError, RunError
from transduce.model.attention import Attention
from transduce.model.encoder_decoder import EncoderDecoder
from transduce.model.parallel import ParallelDecoder, Upsampled
from transduce.model.positions import Learned, RelativeBias
from transduce.model.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.model.seq2seq import CTCHead, Model
from transduce.model.sources import Patches
from transduce.model.transformer import Mixed, TransformerDecoder, TransformerEncoder
from transduce.training import session
from transduce.training.optimizer import Muon, MuonWithAdam, orthogonal, update
from transduce.training.session import optimizer_for


def weights(seed: int = 1) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(6, 4), (4, 6), (6, 4), (5,), (9, 4)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters: list[nn.Parameter], seed: int, times: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = times * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 9), (2, 9, 5)])
def test_singular_values_become_about_one_and_vectors_stay(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found = orthogonal(matrices)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    inside = left.mT @ found @ right.mT  # diagonal if the singular vectors are the same
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    assert (inside - torch.diag_embed(diagonal)).abs().max() < 1e-4
    well_conditioned = values > 0.05 * values.amax(-1, keepdim=True)
    assert (diagonal[well_conditioned] > 0.5).all()
    assert (diagonal < 1.3).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_in_bf16_orthogonalises_in_bf16(tmp_path: Path, precision: str) -> None:
    config = toys.config(tmp_path, f"training.precision={precision}", "training.optimizer.kind=muon")
    optimizer = session.Session(config, config.model.build(13, 13, shared=True), torch.device("cpu")).optimizer
    assert isinstance(optimizer, MuonWithAdam)
    assert optimizer.narrow == (precision == "bf16")
    matrices = torch.randn((3, 8, 8), generator=torch.Generator().manual_seed(2))
    found = orthogonal(matrices, optimizer.narrow)
    assert torch.equal(found, found.bfloat16().float()) == optimizer.narrow
    torch.testing.assert_close(found, orthogonal(matrices), atol=0.05, rtol=0.05)


def test_matrices_move_as_with_torch_and_the_rest_as_with_adamw() -> None:
    """In float32 here and bfloat16 there: close, not equal."""
    ours, theirs = weights(), weights()
    table = ours[4]
    optimizer = Muon(weight_decay=0.1).build(ours, [table])
    muon = torch.optim.Muon(theirs[:3], lr=0.0, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(theirs[3:], lr=0.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    for step in range(4):
        give_gradients(ours, seed=step, times=7.0)
        give_gradients(theirs, seed=step)
        update(optimizer, 0.02, torch.tensor(7.0), clip=0.0)
        for other in (muon, adam):
            other.param_groups[0]["lr"] = 0.02
            other.step()
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=2e-2)
    for mine, other in zip(ours[3:], theirs[3:], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    parameters = weights()
    optimizer = Muon().build(parameters, [parameters[4]])
    give_gradients(parameters, seed=1)
    update(optimizer, 0.1, torch.tensor(1.0), clip=0.0)
    before = [p.detach().clone() for p in parameters]
    momentum: list[Tensor] = [optimizer.state[p]["momentum"].clone() for p in parameters[:3]]
    give_gradients(parameters, seed=2)
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] = torch.inf
    _, skipped = update(optimizer, 0.1, torch.tensor(1.0), clip=0.0)
    assert skipped == 1
    assert all(torch.equal(p, old) for p, old in zip(parameters, before, strict=True))
    for parameter, old in zip(parameters[:3], momentum, strict=True):
        assert torch.equal(optimizer.state[parameter]["momentum"], old)


# -- which weights of a model -----------------------------------------------------------------------------------------

ENCODER, DECODER = TransformerEncoder(2, Attention(2), 24), TransformerDecoder(2, Attention(2), 24)
CELLS = {"lstm": 4, "gru": 3, "elman": 1}


def placed(positions: Learned | RelativeBias) -> Model:
    decoder = replace(DECODER, positions=positions, wiring=Mixed())
    return Model(16, encoder=replace(ENCODER, positions=positions), decoder=decoder)


def built(model: Model) -> tuple[EncoderDecoder, dict[str, nn.Parameter], set[str]]:
    """A model, its parameters by name, and the names of those that Muon moves itself."""
    made = model.build(13, 13, shared=True)
    optimizer = optimizer_for(Muon(), made)
    matrices = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    named = dict(made.named_parameters())
    groups = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(groups) == sorted(map(id, named.values()))  # each in one group
    return made, named, {name for name, parameter in named.items() if id(parameter) in matrices}


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        (placed(Learned(longest=40)), {"vectors", "shares"}),
        (placed(RelativeBias()), {"table", "shares"}),
        (Model(d_model=16, tie="target", source=Patches(), encoder=ENCODER, decoder=DECODER), {"row"}),
    ],
    ids=["learned", "relative", "patches"],
)
def test_tables_are_adams(model: Model, tables: set[str]) -> None:
    _, named, matrices = built(model)
    others = {name.rpartition(".")[2] for name, p in named.items() if p.dim() == 2 and name not in matrices}
    assert others == tables | {"weight"}
    assert {name for name in named if name not in matrices and name.endswith("embedding.weight")}
    maps = (".query.weight", ".key.weight", ".value.weight", ".output.weight", ".inner.weight", ".outer.weight")
    assert {name for name in matrices if not name.endswith(maps)} <= {"source_embedding.output.weight"}


@pytest.mark.parametrize("cell", CELLS)
def test_gates_are_made_orthogonal_one_by_one(cell: str) -> None:
    """Against torch's Muon on each gate as a matrix of its own; the bridge to the first states likewise."""
    model = Model(16, 0.0, encoder=RecurrentEncoder(1, cell), decoder=RecurrentDecoder(2, cell))  # type: ignore[arg-type]
    made, named, matrices = built(model)
    stacks = {name: made.stacks().get(parameter, 1) for name, parameter in named.items() if name in matrices}
    assert {count for name, count in stacks.items() if ".cells." in name} == {CELLS[cell]}
    assert stacks["decoder.bridge.weight"] == (4 if cell == "lstm" else 2)
    chunks = {
        name: [nn.Parameter(part.clone()) for part in named[name].detach().chunk(n)] for name, n in stacks.items()
    }
    gates = [part for parts in chunks.values() for part in parts]
    theirs = torch.optim.Muon(gates, lr=0.02, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    optimizer = optimizer_for(Muon(), made)
    for step in range(3):
        give_gradients(list(named.values()), seed=step, times=7.0)
        for name, parts in chunks.items():
            gradient = named[name].grad
            assert gradient is not None
            for part, own in zip(parts, gradient.chunk(len(parts)), strict=True):
                part.grad = own / 7
        update(optimizer, 0.02, torch.tensor(7.0), clip=0.0)
        theirs.step()
    for name, parts in chunks.items():
        torch.testing.assert_close(named[name].detach(), torch.cat([p.detach() for p in parts]), atol=2e-3, rtol=2e-2)


def test_frames_of_a_state_are_maps_of_their_own() -> None:
    made, named, _ = built(Model(16, heads=(CTCHead(upsample=3),), encoder=ENCODER, decoder=DECODER))
    assert made.stacks() == {named["heads.ctc.split.weight"]: 3}
    decoder = ParallelDecoder(1, Attention(2), 32, length=Upsampled(3))
    made, named, _ = built(Model(16, encoder=ENCODER, decoder=decoder))
    assert made.stacks() == {named["split.weight"]: 3}


# -- going on with a run ----------------------------------------------------------------------------------------------

MUON = ("training.optimizer.kind=muon", "training.steps=6", "validation.every=100")
VARIANTS = {
    "gates": ("model.encoder.kind=recurrent", "model.decoder.kind=recurrent"),
    "tables": ("model.encoder.positions.kind=learned", "model.encoder.positions.longest=40"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = toys.reversals(70)
    return toys.corpus(tmp_path_factory.mktemp("toy"), pairs[:60], pairs[60:])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_resumes_bit_identically(corpus: Path, tmp_path: Path, variant: str) -> None:
    toys.run(corpus, tmp_path / "whole", *MUON, *VARIANTS[variant])
    toys.run(corpus, tmp_path / "parts", *MUON, *VARIANTS[variant], "training.steps=3")
    toys.run(corpus, tmp_path / "parts", *MUON, *VARIANTS[variant])
    parts, whole = toys.final(tmp_path / "parts").tensors, toys.final(tmp_path / "whole").tensors
    assert all(same_tensors(parts[stem], whole[stem]) for stem in ("model", "optimizer"))


@pytest.mark.parametrize(
    ("variant", "named"),
    [("gates", "encoder.forwards.0.cells.weight_ih_l0"), ("tables", "encoder.positions.vectors")],
)
def test_a_checkpoint_of_the_earlier_muon_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, named: str
) -> None:
    """Before, gates were one matrix and tables matrices like others: resuming would be another training."""

    def earlier(config: Muon, model: EncoderDecoder) -> MuonWithAdam:
        return config.build(model.parameters(), [model.output_embedding.weight])

    run, settings = tmp_path / "run", (*MUON, *VARIANTS[variant])
    with monkeypatch.context() as patched:
        patched.setattr(session, "optimizer_for", earlier)
        toys.run(corpus, run, *settings, "training.steps=3")
    with pytest.raises(RunError) as caught:
        toys.run(corpus, run, *settings)
    assert str(caught.value) == (
        f"{run / 'checkpoints' / 'step-00000003'}: was written by a version of transduce whose Muon treated {named} in"
        " another way, and training cannot resume from it as it began. Resume with that version, or begin a new run in"
        " another folder with training.start_from set to this one"
    )
    assert toys.run(corpus, tmp_path / "new", *settings, f"training.start_from={run}").step == 6


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"momentum": 1.0}, "momentum: expected at least 0 and below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay: expected 0 or more, got -1.0"),
        ({"epsilon": 0.0}, "epsilon: expected a number above 0, got 0.0"),
        ({"beta1": 1.0}, "beta1: expected at least 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Muon(**settings)
    assert str(error.value) == text
