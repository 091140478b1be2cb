"""Whether a training keeps a reference model of its own. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.job.job import Job
from autotune.job.methods import METHODS


def has_reference(job: Job, config: Mapping[str, Any]) -> bool:
    """True if a model of its own is kept as the reference."""
    if METHODS[job.method].value_model:
        return job.tuning == "full" or bool(config.get("copy_reference"))
    if METHODS[job.method].online:
        return bool(config.get("beta")) and job.tuning == "full"
    precomputed = config.get("precompute_ref_log_probs")
    return bool(METHODS[job.method].reference) and job.tuning == "full" and not precomputed
