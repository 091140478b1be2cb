"""autotune: the fastest stable configuration of a fine-tuning job, found by running it.

    from pathlib import Path

    import autotune

    job, space = autotune.load_job(Path("job.yaml"))
    result = autotune.tune(job, space, autotune.RunFolder(path=Path("runs/mine")))

Importing this package loads nothing heavy: the names below are resolved on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.job.job import Job
    from autotune.plan.plan import plan
    from autotune.process.run_folder import RunFolder
    from autotune.run.session import Result
    from autotune.run.tuning import tune
    from autotune.search.recommend import Recommendation
    from autotune.space.job_file.load import load_job

__version__ = "0.1.0"

_HOMES = {
    "load_job": "autotune.space.job_file.load",
    "plan": "autotune.plan.plan",
    "tune": "autotune.run.tuning",
    "Job": "autotune.job.job",
    "Recommendation": "autotune.search.recommend",
    "Result": "autotune.run.session",
    "RunFolder": "autotune.process.run_folder",
}
__all__ = [
    "Job",
    "Recommendation",
    "Result",
    "RunFolder",
    "__version__",
    "load_job",
    "plan",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `autotune` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)
