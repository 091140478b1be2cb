"""autotune: the fastest stable configuration of a fine-tuning job, found by running it.

    import autotune

    job = autotune.load_job("job.yaml")
    print(autotune.plan(job, device="h200"))
    answer = autotune.tune(job)
    trainer = SFTTrainer(model, args=answer.training_arguments("out"), train_dataset=rows)

Importing this package loads nothing heavy: the names below are resolved on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api.answer import Answer
    from autotune.api.jobs import load_job
    from autotune.api.planning import plan
    from autotune.api.tuning import probe, tune
    from autotune.errors import AutotuneError, MachineError, UserError
    from autotune.job.job import Job
    from autotune.probe.protocol import Measurement
    from autotune.run.listener import Listener
else:  # a type checker would take it for a module that has every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module `autotune` has no attribute `{name}`")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found


__version__ = "0.1.0"

_HOMES = {
    "load_job": "autotune.api.jobs",
    "plan": "autotune.api.planning",
    "probe": "autotune.api.tuning",
    "tune": "autotune.api.tuning",
    "Answer": "autotune.api.answer",
    "AutotuneError": "autotune.errors",
    "Job": "autotune.job.job",
    "Listener": "autotune.run.listener",
    "MachineError": "autotune.errors",
    "Measurement": "autotune.probe.protocol",
    "UserError": "autotune.errors",
}
__all__ = [
    "Answer",
    "AutotuneError",
    "Job",
    "Listener",
    "MachineError",
    "Measurement",
    "UserError",
    "__version__",
    "load_job",
    "plan",
    "probe",
    "tune",
]


def __dir__() -> list[str]:
    return __all__


# A package is an attribute of the one that it is in from its first import on. Two are called as a
# function is here: they are imported (each is an empty file) before the function takes the name.
for _name in ("plan", "probe"):
    importlib.import_module(f"autotune.{_name}")
    globals().pop(_name, None)  # None: this is a reload
