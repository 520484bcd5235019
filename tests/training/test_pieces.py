"""A model without its weights, and one that is given them back: the same model, and no copies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys

from transduce.model.encoder_decoder import EncoderDecoder
from transduce.training.distributed import filled, hollow

KINDS = {
    "tied": (),
    "statistics": ("model.encoder.norm=batch_norm", "model.decoder.norm=batch_norm"),
    "recurrent": ("model.encoder.kind=recurrent", "model.decoder.kind=recurrent"),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> EncoderDecoder:
    torch.manual_seed(1)
    return toys.config(tmp_path, *request.param).model.build(20, 20, True).eval()


def test_what_is_hollow_holds_no_weights(model: EncoderDecoder) -> None:
    shape = {name: tensor.shape for name, tensor in model.weights().items()}
    found = hollow(model).weights()
    assert {name: tensor.shape for name, tensor in found.items()} == shape
    assert {tensor.device.type for tensor in found.values()} == {"meta"}
    assert {tensor.device.type for tensor in model.weights().values()} == {"cpu"}


def test_what_is_filled_is_the_model_with_other_weights(model: EncoderDecoder) -> None:
    """To the bit, twice, and on the very tensors that were given."""
    source, mask = torch.randint(4, 20, (2, 5)), torch.ones(2, 5, dtype=torch.bool)
    target = torch.randint(4, 20, (2, 4))
    without = hollow(model)
    for seed in (2, 3):
        torch.manual_seed(seed)
        given = {
            name: tensor.clone().uniform_(0.1, 0.5) if tensor.is_floating_point() else tensor.clone()
            for name, tensor in model.weights().items()
        }
        made = filled(without, given)
        assert {name: tensor.data_ptr() for name, tensor in made.weights().items()} == {
            name: tensor.data_ptr() for name, tensor in given.items()
        }
        model.load_weights(given)
        with torch.inference_mode():
            expected, found = (
                one.token_log_probs(one.encode(source, mask), target, mask[:, :3]) for one in (model, made)
            )
        assert torch.equal(found, expected)
    assert {tensor.device.type for tensor in without.weights().values()} == {"meta"}
