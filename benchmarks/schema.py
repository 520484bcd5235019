"""schemathesis against the OpenAPI document of a server of ours: whatever fits the document, and what does not.

    python benchmarks/schema.py models/demo --schemathesis ENVIRONMENT/bin/schemathesis --cases 2000

No answer may be a 500, have a status or a shape that the document does not name, or accept what the document forbids.
That all which fits the document is accepted is not asked: words that must appear need a beam search, for one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

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
    with serving(options.models) as address, tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSALS}\n")
        config.flush()
        command = [
            options.schemathesis,
            "--config-file",
            config.name,
            "run",
            f"{address}/v1/openapi.json",
            "--checks",
            "all",
        ]
        command += ["--exclude-checks", "positive_data_acceptance", "--phases", "examples,coverage,fuzzing"]
        command += ["-n", str(options.cases), "--seed", str(options.seed), "--suppress-health-check", "all"]
        command += ["--include-path-regex", options.only] if options.only else []
        return subprocess.run([*command, "--continue-on-failure", "--warnings", "off"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
