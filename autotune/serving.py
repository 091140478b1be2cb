"""What a vLLM server that takes some of a job's devices means for an estimate. Pure."""

import dataclasses

from autotune.estimate.estimates import Estimate
from autotune.facts import Facts
from autotune.job import Job
from autotune.space.knobs import Candidate
from autotune.space.vllm_server import server_needs


def with_server(estimate: Estimate, job: Job, facts: Facts, candidate: Candidate) -> Estimate:
    """An estimate of the devices that train, with what the server needs of its own: the candidate
    fits where both do."""
    needs = server_needs(job, facts, candidate.values)
    if needs is None:
        return estimate
    notes = estimate.notes
    if needs.cache_bytes is None:
        notes = (*notes, "what the server's caches take is not known of this architecture")
    fits = estimate.fits and needs.missing_bytes is None
    return dataclasses.replace(estimate, server=needs, fits=fits, notes=notes)
