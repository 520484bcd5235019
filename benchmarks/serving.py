"""Load and attack a server: each command starts one, runs its test, and prints the results.

    python benchmarks/serving.py load models/demo --clients 64 --requests 20000     # check every response
    python benchmarks/serving.py throughput en-de=models/small --input test.en      # 64 clients against one at a time
    python benchmarks/serving.py throughput models/small --serve "--device cuda --precision bf16" --input test.en
    python benchmarks/serving.py overload en-de=models/small --input test.en        # 80 % of capacity, then 400 %
    python benchmarks/serving.py disconnects models/demo --requests 1000
    python benchmarks/serving.py signals models/demo --times 50
    python benchmarks/serving.py hostile models/demo
    python benchmarks/serving.py memory models/demo --requests 100000
    python benchmarks/serving.py load models/demo --mixed --requests 100000         # all endpoints and options
    python benchmarks/serving.py shapes models/demo --requests 2000                 # hostile ones, one at a time

Texts are lines of `--input`, or number words in English. Client and server share the machine: compare within a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from http_load import Answers, Client, Server, closed_loop, gauge, open_loop, serving, until
from shapes import answers_alone, try_shapes

from transduce.text.number_words import english


def texts_of(options: argparse.Namespace, count: int) -> list[str]:
    """Texts of mixed lengths."""
    if options.input:
        lines = [line for line in Path(options.input).read_text(encoding="utf-8").split("\n") if line.strip()]
        return [lines[i % len(lines)] for i in range(count)]
    draw = random.Random(1)
    return [", ".join(english(draw.randrange(10**6)) for _ in range(draw.choice((1, 1, 2, 4)))) for _ in range(count)]


def words_of(options: argparse.Namespace) -> list[str]:
    """Arguments of `transduce serve`."""
    return [*options.models, *shlex.split(options.serve)]


def asked(options: argparse.Namespace, text: str) -> tuple[str, Any]:
    return "/v1/translate", {"text": text, "source": "en", "target": options.target, "beam": options.beam}


def work_of(options: argparse.Namespace, texts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    return (asked(options, text) for text in texts)


def answered(content: bytes) -> str:
    return str(json.loads(content)["translations"][0]["text"])


def offline(options: argparse.Namespace, texts: Sequence[str]) -> dict[str, str]:
    """Translations of the same model without a server, batch by batch."""
    import transduce
    from transduce.server.markup import Layout
    from transduce.server.models import Models, open_models

    models = Models(open_models([word for word in options.models if is_model(word)], transduce.load))
    (hop,) = models.route("en", options.target)
    layouts = {text: Layout.of(text) for text in dict.fromkeys(texts)}
    distinct = list(dict.fromkeys(sentence for layout in layouts.values() for sentence in layout.texts))
    found = dict(zip(distinct, hop.served.translator(distinct, to=hop.to, beam=options.beam), strict=True))
    return {
        text: layout.joined([found[one] for one in layout.texts], options.target) for text, layout in layouts.items()
    }


def is_model(word: str) -> bool:
    """The models: arguments that are not settings."""
    return "=" not in word or "/" in word or Path(word.partition("=")[2]).exists()


def load(options: argparse.Namespace) -> None:
    """Run many clients and check every response."""
    texts = [] if options.mixed else texts_of(options, options.requests)
    expected = {} if options.mixed else offline(options, texts)
    alone = answers_alone([word for word in options.models if is_model(word)], options) if options.mixed else {}

    def check(tree: Any, content: bytes) -> bool:
        if options.mixed:
            return json.loads(content) == alone[json.dumps(tree)][1]
        return answered(content) == expected[tree["text"]]

    def work() -> Iterator[tuple[str, Any]]:
        if not options.mixed:
            yield from work_of(options, texts)
        known, draw = [(path, json.loads(body)) for body, (path, _) in alone.items()], random.Random(4)
        for number in range(options.requests if options.mixed else 0):
            if number % max(1, options.requests // 10) == 0:
                seen.append(server.memory)
            yield draw.choice(known)

    seen: list[float] = []
    with serving(words_of(options)) as server:
        answers = Answers()
        asyncio.run(closed_loop(server, options.clients, work(), check, answers, options.mixed))
        print(answers.summary() + (f"; {answers.again} retries after 503" if answers.again else ""))
        if seen:
            print("memory in MB, ten times: " + " ".join(f"{megabytes:.0f}" for megabytes in seen))
        print(f"{len(answers.wrong)} responses differ from offline ones; memory {server.memory:.0f} MB")
        for line in answers.wrong[:3]:
            print(line)


def throughput(options: argparse.Namespace) -> None:
    """Compare 64 clients with one on the same texts, in turns on the same server."""
    texts = texts_of(options, options.requests)
    with serving(words_of(options)) as server:
        rates: dict[int, list[float]] = {1: [], options.clients: []}
        costs: dict[int, list[float]] = {1: [], options.clients: []}
        for turn in range(options.turns + 1):
            for clients in rates:
                answers, used = Answers(), server.processor
                asyncio.run(closed_loop(server, clients, work_of(options, texts), lambda *_: True, answers))
                passed, used = time.perf_counter() - answers.begun, server.processor - used
                if turn:  # the first turn warms up
                    rates[clients].append(answers.statuses[200] / passed)
                    costs[clients].append(1000 * used / answers.statuses[200])
                    print(f"{clients} clients: {answers.summary()}")
        one, many = (statistics.median(rates[clients]) for clients in rates)
        alone, shared = (statistics.median(costs[clients]) for clients in costs)
    print(f"one at a time {one:.1f}/s, {options.clients} clients {many:.1f}/s: {many / one:.2f} times")
    print(f"processor time an answer: {alone:.2f} ms one at a time, {shared:.2f} ms: {alone / shared:.2f} times")
    if options.peer:
        peer(options, texts, many)


def peer(options: argparse.Namespace, texts: Sequence[str], ours: float) -> None:
    """Run the same load on a plain CTranslate2 server (plain_server.py)."""
    command = [sys.executable, str(Path(__file__).with_name("plain_server.py")), options.peer, str(options.beam or 5)]
    server = Server(command)
    try:
        rates, costs = [], []
        for turn in range(options.turns + 1):
            answers, used = Answers(), server.processor
            asyncio.run(closed_loop(server, options.clients, work_of(options, texts), lambda *_: True, answers))
            if turn:
                rates.append(answers.statuses[200] / (time.perf_counter() - answers.begun))
                costs.append(1000 * (server.processor - used) / answers.statuses[200])
                print(f"plain CTranslate2 server: {answers.summary()}")
        times, cost = ours / statistics.median(rates), statistics.median(costs)
        print(f"against a plain CTranslate2 server ({cost:.2f} ms of processor time an answer): {times:.2f} times")
    finally:
        server.process.kill()


def overload(options: argparse.Namespace) -> None:
    """Measure capacity with 64 clients in a closed loop; then 80 % and 400 % of it with random arrivals."""
    texts = texts_of(options, 5000)
    draw = random.Random(2)

    def make(number: int) -> tuple[str, Any]:
        return asked(options, texts[number % len(texts)])

    def delay() -> float:
        return draw.expovariate(1.0)

    with serving(words_of(options)) as server:
        end = time.perf_counter() + options.seconds / 2

        def endless() -> Iterator[tuple[str, Any]]:
            for number in range(10**9):
                if time.perf_counter() > end:
                    return
                yield make(number)

        answers = Answers()
        asyncio.run(closed_loop(server, options.clients, endless(), lambda *_: True, answers))
        capacity = answers.statuses[200] / (time.perf_counter() - answers.begun)
        print(f"capacity {capacity:.1f}/s: {answers.summary()}; memory {server.memory:.0f} MB")
        calm = asyncio.run(open_loop(server, 0.8 * capacity, options.seconds, make, delay))
        print(f"80 %: {calm.summary()}; memory {server.memory:.0f} MB")
        storm = asyncio.run(open_loop(server, 4 * capacity, options.seconds, make, delay))
        print(f"400 %: {storm.summary()}; memory {server.memory:.0f} MB")
        ratio = storm.quantile(0.99) / calm.quantile(0.99)
        refused = [storm.quantile(part, (503, 429)) for part in (0.5, 0.99, 1.0)]
        print(f"p99 of the admitted {ratio:.2f} times that at 80 %; rejected p50/p99/max in ms: {refused}")
        begun = time.perf_counter()
        after = asyncio.run(open_loop(server, 0.5 * capacity, 5, make, delay))
        print(f"afterwards, 50 %: {after.summary()} ({time.perf_counter() - begun:.0f} s)")


def disconnects(options: argparse.Namespace) -> None:
    """Disconnect clients while their texts wait or are translated."""
    # A beam of 16 over 20 long texts: seconds of work that no client waits for.
    text = ", ".join(texts_of(options, 20))[:2000]
    tree = {"text": [text] * 20, "source": "en", "target": options.target, "beam": 16}
    body = json.dumps(tree).encode()
    head = b"POST /v1/translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n"

    async def run(server: Server) -> list[tuple[float, float]]:
        freed = []
        draw = random.Random(3)
        together = options.together
        for _ in range(options.requests // together):
            pairs = [await asyncio.open_connection(server.host, server.port) for _ in range(together)]
            for _, writer in pairs:
                writer.write(head % len(body) + body)
                await writer.drain()
            await asyncio.sleep(draw.choice((0.002, 0.02, 0.1)))
            for _, writer in pairs:
                writer.transport.abort() if draw.random() < 0.5 else writer.close()

            async def open_gate() -> bool:
                return await gauge(server, "transduce_gate_requests") == 0

            async def idle_model() -> bool:
                return await gauge(server, "transduce_running_sentences") == 0

            slots = await until(open_gate, 30)
            freed.append((slots, slots + await until(idle_model, 30)))
        return freed

    with serving(words_of(options)) as server:
        slots, idle = (sorted(column) for column in zip(*asyncio.run(run(server)), strict=True))
        gone = asyncio.run(gauge(server, "transduce_disconnects_total"))
        client = Client(server.host, server.port)
        status, _ = asyncio.run(client.post("/v1/translate", {**tree, "text": "five", "beam": 0}))
        print(
            f"{options.requests} disconnects ({gone:.0f} noticed during work): the gate free after"
            f" p50 {1000 * slots[len(slots) // 2]:.0f} ms, longest {1000 * slots[-1]:.0f} ms; the model after"
            f" p50 {1000 * idle[len(idle) // 2]:.0f} ms, longest {1000 * idle[-1]:.0f} ms;"
            f" then a request: {status}; {server.descriptors} descriptors, memory {server.memory:.0f} MB"
        )


def signals(options: argparse.Namespace) -> None:
    """Send SIGTERM under load: admitted requests must complete."""
    texts = texts_of(options, 1000)
    lost = cut = total = 0
    longest = 0.0
    for number in range(options.times):
        server = Server([sys.executable, "-m", "transduce", "serve", *words_of(options), "--port", "0"])
        answers = Answers()

        async def run(server: Server = server, answers: Answers = answers, number: int = number) -> float:
            endless = (asked(options, texts[i % len(texts)]) for i in range(10**9))
            closed = asyncio.ensure_future(_until_refused(server, options.clients, endless, answers))
            await asyncio.sleep(0.5 + 0.02 * number)
            server.process.send_signal(signal.SIGTERM)
            begun = time.perf_counter()
            await closed
            await asyncio.to_thread(server.process.wait, 60)
            return time.perf_counter() - begun

        longest = max(longest, asyncio.run(run()))
        said = server.stop()
        admitted, left = (int(word) for word in said.split() if word.isdigit())
        total += admitted
        lost += abs(admitted - answers.statuses[200]) + left
        cut += answers.statuses[0]
        if server.process.returncode or admitted != answers.statuses[200] or left:
            print(f"run {number}: exit {server.process.returncode}, said {said!r}, seen {dict(answers.statuses)}")
    print(
        f"{options.times} signals: {total} requests admitted, {lost} of them not answered with 200; {cut} connections"
        f" closed before a request was taken; longest from signal to exit {longest:.2f} s"
    )


async def _until_refused(server: Server, clients: int, work: Iterator[tuple[str, Any]], answers: Answers) -> None:
    """Let each client send requests until it is stopped, or the server is gone."""

    async def one() -> None:
        client = Client(server.host, server.port)
        for path, tree in work:
            begun = time.perf_counter()
            status, _ = await client.post(path, tree)
            answers.add(status, time.perf_counter() - begun)
            if status == 0 or (status == 503 and server.process.poll() is not None):
                return

    await asyncio.gather(*(one() for _ in range(clients)))


def hostile(options: argparse.Namespace) -> None:
    """Send hostile requests while an honest client continues."""
    post = b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    form = post.replace(b"application/json", b"application/x-www-form-urlencoded")
    gigabyte = 1 << 30

    async def flood(writer: asyncio.StreamWriter, chunk: bytes, size: int) -> None:
        for _ in range(size // len(chunk)):
            writer.write(chunk)
            await writer.drain()

    async def attack(server: Server, start: bytes, chunk: bytes, size: int, pause: float) -> bytes:
        """Send, and return the response until the connection was closed."""
        reader, writer = await asyncio.open_connection(server.host, server.port)
        answer = b""
        try:
            writer.write(start)
            if pause:
                async with asyncio.timeout(60):
                    while not reader.at_eof():
                        writer.write(chunk)
                        await writer.drain()
                        await asyncio.sleep(pause)
            await flood(writer, chunk, size)
        except (OSError, TimeoutError):
            pass
        try:
            async with asyncio.timeout(20):
                answer = await reader.read(65536)
        except (OSError, TimeoutError):
            pass
        writer.close()
        return answer[:12] or b"closed"

    chunked = b"%x\r\n%s\r\n" % (65536, b"x" * 65536)
    deep = b"[" * 100_000
    fields = b"&".join(b"a%d=1" % i for i in range(10**6))
    attacks: dict[str, tuple[bytes, bytes, int, float, int]] = {
        "200 x slow headers": (b"GET / HTTP/1.1\r\n", b"x: y\r\n", 0, 0.5, 200),
        "200 x slow bodies": (post + b"content-length: 5000\r\n\r\n", b" ", 0, 0.5, 200),
        "headers without end": (b"GET / HTTP/1.1\r\n", b"x: %s\r\n" % (b"y" * 1000), 64 << 20, 0, 4),
        "1 GB body, no length": (post + b"transfer-encoding: chunked\r\n\r\n", chunked, gigabyte, 0, 2),
        "1 GB body announced": (post + b"content-length: %d\r\n\r\n" % gigabyte, b"x" * 65536, gigabyte, 0, 2),
        "JSON 100,000 deep": (post + b"content-length: %d\r\n\r\n" % len(deep) + deep, b" ", 0, 0, 20),
        "JSON 30,000 deep": (post + b"content-length: 60000\r\n\r\n" + b"[" * 30000 + b"]" * 30000, b" ", 0, 0, 20),
        "a million fields": (form + b"content-length: %d\r\n\r\n" % len(fields) + fields, b" ", 0, 0, 4),
        "20,000 fields": (form + b"content-length: 120000\r\n\r\n" + b"&a=1&" * 24000, b" ", 0, 0, 20),
        "both lengths": (post + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", b"0\r\n\r\n", 5, 0, 20),
    }

    async def run(server: Server) -> None:
        texts = texts_of(options, 100)
        before = server.memory
        await open_loop(server, 20, 3, lambda n: asked(options, texts[n % 100]), lambda: 1.0)
        before = max(before, server.memory)
        for name, (start, chunk, size, pause, count) in attacks.items():
            begun = time.perf_counter()
            honest = asyncio.ensure_future(
                open_loop(server, 20, 3, lambda n: asked(options, texts[n % 100]), lambda: 1.0)
            )
            found = await asyncio.gather(*(attack(server, start, chunk, size, pause) for _ in range(count)))
            passed = time.perf_counter() - begun
            others = await honest
            print(
                f"{name}: {sorted({one.decode() for one in found})} in {passed:.1f} s,"
                f" memory {server.memory - before:+.1f} MB; honest clients: {others.summary()}",
                flush=True,
            )

    with serving(words_of(options)) as server:
        asyncio.run(run(server))


def memory(options: argparse.Namespace) -> None:
    """Send many requests and sample memory: the slope over the second half counts."""
    texts = texts_of(options, 5000)
    with serving(words_of(options)) as server:
        seen: list[tuple[int, float]] = []
        answers = Answers()
        step = max(1, options.requests // 50)
        for done in range(0, options.requests, step):
            share = (asked(options, texts[(done + i) % len(texts)]) for i in range(step))
            asyncio.run(closed_loop(server, options.clients, share, lambda *_: True, answers))
            seen.append((done + step, server.memory))
        half = seen[len(seen) // 2 :]
        slope = statistics.linear_regression([n / 100_000 for n, _ in half], [megabytes for _, megabytes in half])[0]
        print(answers.summary())
        print("memory in MB: " + " ".join(f"{megabytes:.1f}" for _, megabytes in seen[:: max(1, len(seen) // 10)]))
        print(f"slope over the second half: {slope:+.2f} MB in 100,000 requests; {server.descriptors} descriptors")


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "load": load,
    "throughput": throughput,
    "overload": overload,
    "disconnects": disconnects,
    "signals": signals,
    "hostile": hostile,
    "memory": memory,
    "shapes": lambda options: try_shapes(words_of(options), options),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument(
        "models", nargs="+", help="arguments of `transduce serve`: models, and settings such as workers=1"
    )
    parser.add_argument("--serve", default="", help="options of `transduce serve`, such as '--device cuda'")
    parser.add_argument("--input", default="", help="texts, one a line; number words if none is given")
    parser.add_argument("--target", default="de")
    parser.add_argument("--beam", type=int, default=0, help="0 for the model's own decoding")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each load, of overload")
    parser.add_argument("--mixed", action="store_true", help="of load: all endpoints, sizes and options")
    parser.add_argument("--distinct", type=int, default=300, help="requests of load --mixed that differ")
    parser.add_argument("--seed", type=int, default=6, help="of shapes")
    parser.add_argument("--warm", type=int, default=48, help="documents before the first of shapes")
    parser.add_argument("--verbose", action="store_true", help="of shapes: a line for each")
    parser.add_argument("--times", type=int, default=50, help="signals")
    parser.add_argument("--together", type=int, default=4, help="disconnects: clients that leave at once")
    parser.add_argument("--turns", type=int, default=3, help="of throughput")
    parser.add_argument(
        "--peer", default="", help="of throughput: a CTranslate2 folder of the same model, with its tokenizer"
    )
    options = parser.parse_args()
    begun = time.perf_counter()
    COMMANDS[options.command](options)
    print(f"took {math.ceil(time.perf_counter() - begun)} s")


if __name__ == "__main__":
    sys.exit(main())
