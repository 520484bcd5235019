"""Profile a training step on a GPU: time of kernels by kind, and of each of the longest.

Kernels inside CUDA graphs are included. Products are identified without graphs only, where each call of a
matrix product records its shapes. The sums are of `torch.profiler`'s trace, in milliseconds a step.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
# The first match in a kernel's name gives its kind; the compiler names its kernels by their operations.
KINDS = (
    ("attention backward", r"_look_back"),
    ("attention", r"_look\b|_look_|^_look$|fmha|flash"),
    ("products", r"gemm|nvjet|cutlass|xmma|cublas|splitK|triton_tem|\baten::(add)?mm\b"),
    ("optimizer", r"adam|FusedAdam"),
    ("norm of gradients, adding and zeroing them", r"multi_tensor|lpnorm|LpNorm|foreach"),
    ("loss", r"logsumexp|losses_and_slopes|^_row$|softmax|gather.*exp|exp.*gather|fused.*_exp_"),
    ("embedding", r"embedding|index_put|index_select"),
    ("norms backward, with fused operations", r"^_sum_back$|layer_norm_backward|native_layer_norm_back"),
    ("norms, with fused operations", r"^_sum$|layer_norm"),
    ("ReLU", r"relu|threshold"),
    ("dropout alone", r"dropout|rand"),
    ("concatenation and casts", r"fused_cat|fused__to_copy|_to_copy|fused_.*cat|Memcpy|CatArray|direct_copy"),
    ("sums over rows (gradients of biases)", r"_red_fused|reduce_kernel|_sum"),
    ("filling", r"Memset|FillFunctor"),
    ("adding", r"CUDAFunctor_add|AddFunctor|fused_add"),
)
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "others")


def traced(work: Callable[[], object], shapes: bool = False) -> list[Event]:
    """The finished events of a trace of `work`, which synchronises with the device at its end."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] if shapes or not torch.cuda.is_available() else []
    kinds += [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=kinds, record_shapes=shapes) as seen:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        seen.export_chrome_trace(str(path))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found: list[Event] = json.load(file)["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


def launched(events: Sequence[Event]) -> list[Event]:
    """Events on the device; without one, those on the CPU."""
    found = [event for event in events if event.get("cat") in ON_DEVICE]
    return found or [event for event in events if event.get("cat") == "cpu_op"]


def idle(events: Sequence[Event]) -> float:
    """Idle microseconds between the first and the last of them."""
    gaps, until = 0.0, float("inf")
    for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        gaps += max(0.0, begin - until)
        until = end if until == float("inf") else max(until, end)
    return gaps


def by_name(events: Sequence[Event], name: Callable[[Event], str]) -> list[tuple[str, float, int]]:
    """(name, microseconds, count), longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        times[name(event)].append(event["dur"])
    return sorted(((key, sum(every), len(every)) for key, every in times.items()), key=lambda found: -found[1])


def flops(call: str) -> float:
    """FLOP of one product, by its call as `products` names it; 0 if the shapes are unknown."""
    shapes = [[int(n) for n in found.split(",")] for found in re.findall(r"\[(\d+(?:, ?\d+)+)\]", call)]
    left, right = shapes[-2:] if len(shapes) >= 2 else ([0], [0])
    return 2.0 * math.prod(left) * right[-1]


def listed(rows: Sequence[tuple[str, float, int]], steps: int) -> str:
    lines = (f"{time / steps / 1000:9.3f} ms {count / steps:8.1f} a step  {name[:150]}" for name, time, count in rows)
    return "\n".join(lines)


def products(events: Sequence[Event]) -> list[tuple[str, float, int]]:
    """Matrix products by their shapes: the `External id` links each call to its kernels."""
    calls = {
        event["args"]["External id"]: f"{event['name']} {event['args'].get('Input Dims')}"  # as [[N, I], [I, O]]
        for event in events
        if event.get("cat") == "cpu_op"
        and re.fullmatch(r"aten::(_?add)?mm(_activation|_out)?|aten::bmm", event["name"])
    }
    mine = [event for event in launched(events) if event.get("args", {}).get("External id") in calls]
    return by_name(mine, lambda event: calls[event["args"]["External id"]])


def report(steps: int, graphed: Sequence[Event], plain: Sequence[Event], longest: int = 60) -> str:
    """The whole table."""
    ran = launched(graphed)
    span = max(event["ts"] + event["dur"] for event in ran) - min(event["ts"] for event in ran)
    parts = [
        f"{steps} steps, {span / steps / 1000:.3f} ms each, of which {idle(ran) / steps / 1000:.3f} idle;"
        f" {len(ran) / steps:,.0f} kernels a step, of which"
        f" {sum(event['dur'] < 4 for event in ran) / steps:,.0f} of less than 4 us"
        f" ({sum(event['dur'] for event in ran if event['dur'] < 4) / steps / 1000:.3f} ms)",
        "by kind:",
        listed(by_name(ran, lambda event: kind_of(event["name"])), steps),
        "products by shape (without graphs):",
        listed(
            [
                (f"{flops(name) * count / time / 1e6:4.0f} TFLOP/s {name}", time, count)
                for name, time, count in products(plain)
            ],
            steps,
        ),
        f"the {longest} longest:",
        listed(by_name(ran, lambda event: f"[{kind_of(event['name'])}] {event['name']}")[:longest], steps),
    ]
    return "\n".join(parts) + "\n"
