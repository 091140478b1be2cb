"""The jobs that are planned, each as its author would write it, and the device of the plan."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROBLEMS = HERE.parents[1] / "examples/five-problems"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job and the device that it is planned for.

    Attributes:
        most_s: seconds that a plan may take at most, cold, on two idle cores.
    """

    name: str
    job: Path
    device: str
    most_s: float


ONE_GPU, GENERATING, EIGHT_GPUS = 20.0, 60.0, 90.0
CASES = (
    Case(
        name="0.5B SFT, 12 GB",
        job=PROBLEMS / "sft-0.5b.yaml",
        device="GeForce RTX 3060 12 GB",
        most_s=ONE_GPU,
    ),
    Case(
        name="4B reward, 40 GB",
        job=PROBLEMS / "reward-gemma3-4b.yaml",
        device="a100-40gb",
        most_s=ONE_GPU,
    ),
    Case(
        name="0.5B PPO, 24 GB",
        job=PROBLEMS / "ppo-0.5b.yaml",
        device="rtx-4090",
        most_s=GENERATING,
    ),
    Case(
        name="0.1B SFT, 24 GB",
        job=PROBLEMS / "sft-small-llama.yaml",
        device="rtx-4090",
        most_s=ONE_GPU,
    ),
    Case(
        name="7B LoRA, 8 x H100",
        job=PROBLEMS / "lora-7b-8-gpus.yaml",
        device="h100",
        most_s=EIGHT_GPUS,
    ),
    Case(
        name="7B LoRA SFT, 24 GB",
        job=HERE / "jobs/sft-lora-7b.yaml",
        device="rtx-4090",
        most_s=ONE_GPU,
    ),
    Case(
        name="8B LoRA DPO, 80 GB",
        job=HERE / "jobs/dpo-lora-8b.yaml",
        device="a100-80gb",
        most_s=ONE_GPU,
    ),
    Case(
        name="0.36B SFT, 12 GB",
        job=HERE / "jobs/sft-full-360m.yaml",
        device="GeForce RTX 3060 12 GB",
        most_s=ONE_GPU,
    ),
    Case(
        name="7B QLoRA SFT, 16 GB",
        job=HERE / "jobs/sft-qlora-7b.yaml",
        device="memory=16GiB,tflops=100,bandwidth=500",
        most_s=ONE_GPU,
    ),
    Case(
        name="1.5B LoRA GRPO, 24 GB",
        job=HERE / "jobs/grpo-lora-1.5b.yaml",
        device="rtx-4090",
        most_s=GENERATING,
    ),
)
