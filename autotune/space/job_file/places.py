"""What a job names that lies somewhere, as absolute paths; what is no path is left as it is.

What a file names is relative to the file, what a flag names to the folder of the shell.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.facts.known_models import known_model
from autotune.job.job import Job
from autotune.job.paths import absolute_path, exists, resolve_path

BaseOf = Callable[[tuple[str, ...]], Path]
"""The folder that a field's path is relative to."""


def with_places(job: Job, base_of: BaseOf) -> Job:
    """Return the job with absolute paths, and a well-known model by its hub id."""
    fields: dict[str, Any] = {"model": _model(job.model, base_of(("model",)))}
    if isinstance(job.dataset, str):
        fields["dataset"] = resolve_path(job.dataset, base_of(("dataset",)))
    if job.reward_model_path is not None:
        base = base_of(("reward_model_path",))
        fields["reward_model_path"] = _model(job.reward_model_path, base)
    if job.search_space is not None:
        fields["search_space"] = absolute_path(job.search_space, base_of(("search_space",)))
    if isinstance(job.training.get("output_dir"), str):
        base = base_of(("training", "output_dir"))
        output = absolute_path(job.training["output_dir"], base)
        fields["training"] = {**job.training, "output_dir": output}
    return job.model_copy(update=fields)


def missing_places(job: Job) -> Iterator[tuple[str, str]]:
    """(field, path) of what a job names and is not there; its paths are absolute."""
    for field in ("model", "dataset", "search_space", "reward_model_path"):
        path = getattr(job, field)
        if isinstance(path, str) and path.startswith("/") and not exists(path):
            yield field, path


def _model(name: str, base: Path) -> str:
    path = resolve_path(name, base)
    known = known_model(name) if path == name else None
    return path if known is None else known.hub_id
