#!/bin/bash
# Train on several machines under Slurm: one torchrun a machine, one process a GPU.
#
#   sbatch examples/cluster/slurm.sh base data.folder=data/mine --output runs/mine
#
# The repository, the corpus and runs/ are on a file system that all machines share. Two minutes before the time limit
# (or on `scancel --signal=TERM JOB`) the run saves; the same sbatch command resumes it. On machines without
# GPUs set the number of processes: PROCESSES=4 sbatch --gpus-per-node=0 examples/cluster/slurm.sh ...

#SBATCH --job-name=transduce
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=%x-%j.log

set -euo pipefail

processes=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}}
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000)) # jobs that share a machine must not share a port

# Since Slurm 22.05 a step has the cores of its job only if it asks for them.
exec srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "$processes" \
    --max-restarts "${RESTARTS:-3}" \
    --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$first:$port" \
    -m transduce train "$@"
