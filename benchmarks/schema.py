"""schemathesis against the OpenAPI document of a server of ours: whatever fits the document, and what does not.

    python benchmarks/schema.py models/demo --schemathesis ENVIRONMENT/bin/schemathesis --cases 2000

No answer may be a 500, have a status or a shape that the document does not name, or accept what the document forbids.
That all which fits the document is accepted is not asked: words that must appear need a beam search, for one.
One path after the other, on one server: each has its line as it ends, with what the server counted, and its findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator

from clients import serving

REFUSALS = [400, 403, 404, 405, 408, 413, 415, 422, 429, 503]  # 413: a body may be too long before it is anything else


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="what `transduce serve` is told")
    parser.add_argument("--schemathesis", default="schemathesis")
    parser.add_argument("--cases", type=int, default=2000, help="of each endpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="paths that match this")
    options = parser.parse_args()
    failed, cases = [], 0
    with serving(options.models) as address, settings() as config:
        paths = [
            path for path in json.loads(read(f"{address}/v1/openapi.json"))["paths"] if re.search(options.only, path)
        ]
        for path in paths:
            tested, passed = examined(options, address, config, path)
            cases += tested
            failed += [] if passed else [path]
        counted = statuses(address)
    faults = sum(count for (_, status), count in counted.items() if status >= 500 and status != 503)
    print(
        f"{len(paths)} paths, {cases} cases; findings in {failed or 'none'}; {faults} answers of 500 and above but 503"
    )
    return 1 if failed or faults else 0


@contextlib.contextmanager
def settings() -> Iterator[str]:
    """A file that tells schemathesis which refusals are right."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSALS}\n")
        config.flush()
        yield config.name


def examined(options: argparse.Namespace, address: str, config: str, path: str = "") -> tuple[int, bool]:
    """How many cases of a path, or of all in one run, were tried, and whether nothing was found."""
    begun, before = time.perf_counter(), statuses(address)
    command = [options.schemathesis, "--config-file", config, "run", f"{address}/v1/openapi.json", "--checks", "all"]
    command += ["--exclude-checks", "positive_data_acceptance", "--phases", "examples,coverage,fuzzing"]
    command += ["-n", str(options.cases), "--seed", str(options.seed), "--suppress-health-check", "all"]
    command += ["--continue-on-failure", "--warnings", "off", *(["--include-path", path] if path else [])]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = re.search(r"(\d+) generated", ran.stdout)
    new = statuses(address) - before
    found = {status: sum(n for (_, own), n in new.items() if own == status) for status in sorted({s for _, s in new})}
    end = "nothing found" if ran.returncode == 0 else f"exit {ran.returncode}"
    seconds = time.perf_counter() - begun
    print(f"{path or 'all'}: {told[1] if told else 'no'} cases in {seconds:.0f} s, answers {found}: {end}", flush=True)
    if ran.returncode:
        print(ran.stdout, flush=True)
    return int(told[1]) if told else 0, ran.returncode == 0


def statuses(address: str) -> Counter[tuple[str, int]]:
    """How often the server has given each status at each endpoint, as it counts itself."""
    lines = re.findall(
        r'^transduce_requests_total{endpoint="([^"]+)",status="(\d+)"} (\S+)$', read(f"{address}/metrics"), re.M
    )
    return Counter({(path, int(status)): int(float(count)) for path, status, count in lines if path != "/metrics"})


def read(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main())
