"""Run schemathesis on the OpenAPI document of our server, with valid and invalid requests.

    python benchmarks/schema.py models/demo --schemathesis ENVIRONMENT/bin/schemathesis --cases 2000

No response may be 500, have a status or schema that the document does not list, or accept what the document forbids.
Valid requests may be rejected: words to include need a beam search, for example.
Paths run one after the other on one server; each prints a line at its end, with the server's counts, and its findings.
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

REFUSALS = [400, 403, 404, 405, 408, 413, 415, 422, 429, 503]  # 413: the length of a body is checked first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="arguments of `transduce serve`")
    parser.add_argument("--schemathesis", default="schemathesis")
    parser.add_argument("--cases", type=int, default=2000, help="cases of each endpoint")
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
    """Write a file that tells schemathesis which error statuses are right."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSALS}\n")
        config.flush()
        yield config.name


def examined(options: argparse.Namespace, address: str, config: str, path: str = "") -> tuple[int, bool]:
    """Test one path, or all; return the number of cases and whether there were no findings."""
    begun, before = time.perf_counter(), statuses(address)
    command = [options.schemathesis, "--config-file", config, "run", f"{address}/v1/openapi.json", "--checks", "all"]
    command += ["--exclude-checks", "positive_data_acceptance", "--phases", "examples,coverage,fuzzing"]
    command += ["-n", str(options.cases), "--seed", str(options.seed), "--suppress-health-check", "all"]
    command += ["--continue-on-failure", "--warnings", "off", *(["--include-path", path] if path else [])]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    generated = re.search(r"(\d+) generated", ran.stdout)
    new = statuses(address) - before
    found = {status: sum(n for (_, own), n in new.items() if own == status) for status in sorted({s for _, s in new})}
    end = "nothing found" if ran.returncode == 0 else f"exit {ran.returncode}"
    seconds = time.perf_counter() - begun
    print(
        f"{path or 'all'}: {generated[1] if generated else 'no'} cases in {seconds:.0f} s, answers {found}: {end}",
        flush=True,
    )
    if ran.returncode:
        print(ran.stdout, flush=True)
    return int(generated[1]) if generated else 0, ran.returncode == 0


def statuses(address: str) -> Counter[tuple[str, int]]:
    """The server's own counts of each status at each endpoint."""
    lines = re.findall(
        r'^transduce_requests_total{endpoint="([^"]+)",status="(\d+)"} (\S+)$', read(f"{address}/metrics"), re.M
    )
    return Counter({(path, int(status)): int(float(count)) for path, status, count in lines if path != "/metrics"})


def read(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    sys.exit(main())
