"""Arithmetic on paper: hours and GPU-hours of the paper's two models on 1, 8 and 64 GPUs. Nothing here is measured."""

from dataclasses import asdict, dataclass
from typing import Any

from vanilla_transformer.training.dry_run import PEAKS, dry_run
from vanilla_transformer.training.recipe import DataConfig, ModelConfig, Recipe, TokenizerConfig, TrainingConfig

VOCABULARY = 37_000
UPDATES = {"base": 100_000, "big": 300_000}  # section 5.2
# What a GPU is assumed to reach of its peak: the goals of gpu_check.py, which measures it where there is a GPU.
ASSUMED_SHARE = {"base": 0.4, "big": 0.5}
GPUS = (1, 8, 64)
GPUS_A_MACHINE = 8
GRADIENT_BYTES = 4  # DistributedDataParallel sums gradients in the parameters' type, float32
# NVIDIA H200 data sheet: 4th generation NVLink, 900 GB/s, both directions together. DGX H200 data sheet: for each of a
# machine's eight GPUs one ConnectX-7 of 400 Gb/s.
NVLINK, NETWORK = 450e9, 50e9  # bytes a second, one direction
SOURCES = {
    "peak": "NVIDIA H200 data sheet: 1,979 TFLOP/s in bfloat16 with sparsity, half of it dense",
    "NVLink": "NVIDIA H200 data sheet: 900 GB/s, both directions together",
    "network": "NVIDIA DGX H200 data sheet: eight ConnectX-7 of 400 Gb/s for eight GPUs",
    "updates and tokens": "Vaswani et al. 2017, sections 5.1 and 5.2",
}
ASSUMED_DOLLARS = 4.0  # for a GPU and hour; an example, to be replaced by what yours costs


@dataclass(frozen=True)
class Estimate:
    """One model on so many GPUs, from arithmetic and assumptions alone; seconds are of one update."""

    model: str
    gpus: int
    parameters: int
    flops: float  # of the whole training
    tokens_a_gpu: int  # padded, both sides, of an update
    compute_seconds: float
    communication_seconds: float
    hours_hidden: float  # where all communication goes on behind the backward pass
    hours_exposed: float  # where none does
    gpu_hours: tuple[float, float]
    dollars: tuple[float, float]


def ring_seconds(bytes_: float, gpus: int, bandwidth: float) -> float:
    """Time to sum `bytes_` over a ring: each GPU sends and receives 2 (n - 1) / n times as much; latency left out."""
    return 2 * (gpus - 1) / gpus * bytes_ / bandwidth


def sum_seconds(bytes_: float, gpus: int) -> float:
    """To sum gradients over all GPUs: one ring over NVLink in a machine, or over the network where there are more."""
    return ring_seconds(bytes_, gpus, NVLINK if gpus <= GPUS_A_MACHINE else NETWORK)


def estimate(model: str, gpus: int, gpu: str = "H200") -> Estimate:
    """The paper's training of "base" or "big" on so many GPUs; the update stays 25,000 + 25,000 tokens."""
    training = TrainingConfig(max_steps=UPDATES[model])
    recipe = Recipe(
        data=DataConfig(corpus="none", source_lang="en", target_lang="de"),
        model=ModelConfig(preset=model),
        tokenizer=TokenizerConfig(vocab_size=VOCABULARY),
        training=training,
    )
    plan = dry_run(recipe)
    compute = plan.flops / plan.updates / (PEAKS[gpu] * ASSUMED_SHARE[model]) / gpus
    communication = sum_seconds(GRADIENT_BYTES * plan.parameters, gpus)
    hidden, exposed = (
        plan.updates * seconds / 3600 for seconds in (max(compute, communication), compute + communication)
    )
    return Estimate(
        model=model,
        gpus=gpus,
        parameters=plan.parameters,
        flops=plan.flops,
        tokens_a_gpu=sum(plan.tokens_per_update) // gpus,
        compute_seconds=compute,
        communication_seconds=communication,
        hours_hidden=hidden,
        hours_exposed=exposed,
        gpu_hours=(hidden * gpus, exposed * gpus),
        dollars=(hidden * gpus * ASSUMED_DOLLARS, exposed * gpus * ASSUMED_DOLLARS),
    )


def arithmetic() -> dict[str, Any]:
    """All estimates, with what they assume and where the rest comes from."""
    return {
        "assumed": {
            "share_of_peak": ASSUMED_SHARE,
            "dollars_a_gpu_hour": ASSUMED_DOLLARS,
            "left_out": "latency, validation, checkpoints, pads beyond the budget, attention's products in n^2",
        },
        "from_data_sheets": {"peak_flops": PEAKS["H200"], "nvlink": NVLINK, "network": NETWORK, "sources": SOURCES},
        "estimates": [asdict(estimate(model, gpus)) for model in UPDATES for gpus in GPUS],
    }
