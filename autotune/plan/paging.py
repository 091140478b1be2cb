"""What paged optimizers move between the GPU and its host. Pure."""

from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.exchange import host_rate, longer, optimizer_steps, trained_parameters
from autotune.space.settings import Settings
from autotune.units import format_bytes

MOMENTS = {"lion": 1, "adamw": 2, "ademamix": 3}


def with_paging(estimate: Estimate, settings: Settings) -> Estimate:
    """Return an estimate with the time in which the moments of a paged optimizer come and go.

    bitsandbytes keeps them in managed memory, and fetches those of a parameter before it updates
    it (0.50, `optim/optimizer.py` `prefetch_state`). As long as the GPU has room for all of them
    beside the training's peak, they stay there. Where it has not, the driver puts out what was
    used longest ago, which in a pass over all parameters is what is needed next: all of them go out
    and come back in each step. Known error: never measured.
    """
    config, facts = settings.config, settings.facts
    optim = str(config.get("optim"))
    if facts.device.kind != "cuda" or "paged" not in optim or estimate.step_time_s is None:
        return estimate
    size = moments_bytes(settings.job, facts, config.get("lora_r"), optim)
    if size <= facts.device.total_bytes - estimate.peak_memory_bytes:
        return estimate
    rate = host_rate(facts)
    seconds = optimizer_steps(settings.candidate) * 2 * size / rate
    note = (
        f"{format_bytes(size)} of moments have no room on the GPU beside the training: they go to "
        f"the host and come back in each step, at {rate / 1e9:.0f} GB/s"
    )
    return longer(estimate, seconds, note)


def moments_bytes(job: Job, facts: Facts, lora_r: int | None, optim: str) -> int:
    """Return bytes of the moments: of a byte each with `8bit`, but of embeddings, else of four."""
    moments = next((n for word, n in MOMENTS.items() if word in optim), 2)
    trained = trained_parameters(job, facts, {"lora_r": lora_r})
    if "8bit" not in optim:
        return moments * 4 * trained
    embedding = 0
    if job.tuning == "full":
        embedding = (facts.model.vocab_size or 0) * (facts.model.hidden_size or 0)
    embedding = min(embedding, trained)
    return moments * (4 * embedding + trained - embedding)
