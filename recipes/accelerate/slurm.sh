#!/bin/bash
# sbatch recipes/accelerate/slurm.sh recipes/wmt14-en-de-base.yaml /shared/runs/wmt14-base
# One process a GPU on two nodes of eight. Two minutes before its time is up the job is told, saves, and queues again
# (docs/operations.md). Not run on a cluster of ours yet.
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
#SBATCH --time=24:00:00 --signal=USR1@120 --requeue --open-mode=append
export RECIPE=${1:?name a recipe} RUN=${2:?name the folder of the run, which all nodes see}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) WORLD_SIZE=$SLURM_NTASKS
srun --kill-on-bad-exit=0 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python -m \
    vanilla_transformer.training.train "$RECIPE" --output-dir "$RUN" --resume'
code=$? # the highest of all processes
case $code in 75 | 138 | 143) scontrol requeue "$SLURM_JOB_ID" ;; esac
exit $code
