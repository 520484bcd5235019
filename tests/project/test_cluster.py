"""The files of examples/cluster: Slurm's is run, with a Slurm that this test makes, and the command of Kubernetes'."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import textwrap
from pathlib import Path

import pytest
import toys

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = (ROOT / "examples" / "cluster" / name for name in ("slurm.sh", "kubernetes.yaml"))
SRUN = """#!/bin/bash
# Two machines, both of them this one.
[[ " $* " == *" --cpus-per-task=$SLURM_CPUS_PER_TASK "* ]] || { echo "a step on one core" >&2; exit 1; }
while [[ "$1" == --* ]]; do shift; done
SLURM_NODEID=0 "$@" &
SLURM_NODEID=1 "$@"
code=$?
wait $! && exit $code
"""
TORCHRUN = '#!/bin/bash\nexec {python} -m torch.distributed.run "$@"\n'


@pytest.fixture
def machines(tmp_path: Path, warm: str) -> dict[str, str]:
    """An environment with programs of Slurm, and torchrun."""
    programs = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho localhost\necho localhost\n",
        "torchrun": TORCHRUN.format(python=warm),
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_NODELIST": "localhost,localhost",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "4",
    }


def words(tmp_path: Path) -> list[str]:
    pairs = toys.reversals(40)
    corpus = toys.corpus(tmp_path, pairs[:30], pairs[30:])
    return [
        "tiny",
        *toys.latest(*toys.TINY, f"data.folder={corpus}", "training.steps=4"),
        "--output",
        str(tmp_path / "run"),
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def container_command() -> str:
    """The script of the container, as it stands in the block of the manifest."""
    found = re.search(r"^( +)- \|\n((?:\1  .*\n)+)", KUBERNETES.read_text(), flags=re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[2])


@pytest.mark.slow
def test_slurm_trains_on_two_machines(tmp_path: Path, machines: dict[str, str]) -> None:
    job = {"SLURM_JOB_ID": str(free_port() % 20000), "PROCESSES": "1", "RESTARTS": "0"}
    done = subprocess.run(
        ["bash", str(SLURM), *words(tmp_path)], env={**machines, **job}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes (ddp)" in done.stderr
    assert done.stderr.count("finished: 4 steps") == 1
    assert len(toys.reports(tmp_path / "run")) == 4


@pytest.mark.slow
def test_kubernetes_trains_in_two_pods(tmp_path: Path, machines: dict[str, str]) -> None:
    """The container's own script, with names and numbers for this machine."""
    script = container_command().replace("transduce-0.transduce:29400", f"localhost:{free_port()}")
    script = script.replace("--nproc-per-node 8", "--nproc-per-node 1")
    script = script.replace("base data.folder=data/mine --output runs/mine", " ".join(map(repr, words(tmp_path))))
    environments = [{**machines, "JOB_COMPLETION_INDEX": str(index)} for index in range(2)]
    pods = [
        subprocess.Popen(["bash", "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        for environment in environments
    ]
    said = [pod.communicate(timeout=200)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert "2 processes (ddp)" in "".join(said)
    assert len(toys.reports(tmp_path / "run")) == 4


def test_slurm_options_stand_before_any_command() -> None:
    lines = SLURM.read_text().split("\n")
    told = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert lines[0] == "#!/bin/bash"
    assert len(told) >= 6
    assert max(told) < first  # sbatch reads no further


def test_the_manifest_says_each_number_once_or_alike() -> None:
    text = KUBERNETES.read_text()
    pods = {int(number) for number in re.findall(r"(?:completions: |parallelism: |--nnodes )(\d+)", text)}
    gpus = {int(number) for number in re.findall(r"(?:nvidia.com/gpu: |--nproc-per-node )(\d+)", text)}
    assert (len(pods), len(gpus)) == (1, 1)
    assert {"name: transduce", "subdomain: transduce"} <= {line.strip() for line in text.split("\n")}
    assert "\t" not in text
    assert subprocess.run(["bash", "-n", "-c", container_command()], check=False).returncode == 0


def test_the_manifest_is_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="the files for Kubernetes are read by it: pip install transduce[test]")
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
