"""Check that a device gives the same losses however a step runs: padded, packed, compiled, as a CUDA graph.

    python benchmarks/same.py cuda

A tiny model without dropout, twenty updates in single precision on batches of two shapes with empty rows. Prints as
JSON the maximum relative difference of each loss curve from that of the eager step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from transduce.data.batch import Batch, collate
from transduce.kernels import dispatch
from transduce.model.attention import Attention
from transduce.model.seq2seq import Model
from transduce.model.transformer import TransformerDecoder, TransformerEncoder
from transduce.objectives import ObjectiveStep
from transduce.objectives.cross_entropy import CrossEntropy
from transduce.text.vocabulary import Symbols
from transduce.training.optimizer import Adam, update
from transduce.training.start import CompiledStep
from transduce.training.step_runner import EagerRunner, GraphedRunner

SYMBOLS = Symbols(pad=0, bos=2, eos=3, unk=1, never=(0, 1, 2))
VOCABULARY, STEPS, ROOM = 101, 20, 120


def batches(packed: bool) -> list[Batch]:
    made = []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        lengths = torch.randint(1, 12, (9,), generator=generator).tolist()
        lines = [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
        width = 16 + 8 * (number % 2)
        batch = collate(lines, [line[::-1] for line in lines], SYMBOLS, SYMBOLS, width, width, rows=12)
        made.append(replace(batch, capacity=(ROOM, ROOM)) if packed else batch)
    return made


def curve(make: Callable[[ObjectiveStep], EagerRunner], device: torch.device, packed: bool) -> list[float]:
    torch.manual_seed(3)
    stacks = {"attention": Attention(4), "d_ff": 128}
    encoder, decoder = TransformerEncoder(1, **stacks), TransformerDecoder(1, **stacks)  # type: ignore[arg-type]
    model = Model(64, 0.0, "all", encoder, decoder).build(VOCABULARY, VOCABULARY, shared=True).to(device).train()
    passes, optimizer, losses = (
        make(ObjectiveStep(model, CrossEntropy(0.1).build())),
        Adam().build(model.parameters()),
        [],
    )
    for number, batch in enumerate(batches(packed)):
        optimizer.zero_grad(set_to_none=passes.drops_gradients)
        loss = passes(batch, number)
        losses.append(loss.total / loss.count)
        update(optimizer, 3e-3, loss.count.float(), 1.0)
    return torch.stack(losses).tolist()  # type: ignore[no-any-return]


def apart(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one / other - 1) for one, other in zip(found, expected, strict=True))


def main() -> None:
    device = torch.device(sys.argv[1])
    said: list[str] = []
    ways: dict[str, tuple[Callable[[ObjectiveStep], EagerRunner], bool]] = {
        "as written": (lambda step: EagerRunner(step, device, False), False),
        "packed": (lambda step: EagerRunner(step, device, False), True),
        "compiled": (lambda step: EagerRunner(CompiledStep(step), device, False), True),
        "bf16, packed and compiled": (lambda step: EagerRunner(CompiledStep(step), device, True), True),
    }
    if device.type == "cuda":
        ways["graphs"] = (lambda step: GraphedRunner(step, device, False, said.append), False)
        ways["graphs, packed and compiled"] = (
            lambda step: GraphedRunner(CompiledStep(step), device, False, said.append),
            True,
        )
    ours, dispatch.residual = dispatch.residual, None  # type: ignore[assignment]
    written = curve(lambda step: EagerRunner(step, device, False), device, packed=False)  # by torch alone
    dispatch.residual = ours
    found: dict[str, float | str] = {"first": written[0], "last": written[-1]}
    for name, (make, packed) in ways.items():
        torch.compiler.reset()
        try:
            found[name] = apart(curve(make, device, packed), written)
        except RuntimeError as error:
            found[name] = str(error)[:300]
    print(json.dumps({"apart": found, "said": said}))


if __name__ == "__main__":
    main()
