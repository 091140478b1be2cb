"""What the hook does while a script is looked at or probed: it waits until training begins.

Of `TrainingArguments` it changes what a probe is not to do (save, evaluate, push, track), of the
trainer its `train`. There the look is taken, or a few steps are measured, and the process ends:
what the script does after its training is not run.
"""

import enum
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autotune.probe.memory import CpuMemory, CudaMemory
from autotune.probe.protocol import Measurement
from autotune.probe.rank_replies import rank_folder
from autotune.probe.worker import Stages, failed_measurement
from autotune.process.messages import ChildFolder, write_json
from autotune.process.proc import name_template
from autotune.script.protocol import LOOK, ScriptRequest

QUIET: dict[str, Any] = {
    "save_strategy": "no",
    "eval_delay": 10**9,
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "report_to": [],
    "disable_tqdm": True,
    "resume_from_checkpoint": None,
    "auto_find_batch_size": False,
    "mask_truncated_completions": False,
}
"""Fields of a probe: it leaves nothing behind. Memory that runs out ends it, and every completion,
which has its full length here, is learned from. Callbacks and schedules ask for a strategy of
evaluation, which stays: it is only put off."""


class Watch:
    """The looks of one process.

    Args:
        request: a `ScriptRequest` as plain data.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = ScriptRequest.from_plain(request)
        self.path = Path(self.request.folder)
        self.memory: CpuMemory | CudaMemory | None = None
        self.stages = Stages()
        self.parsed: list[type] = []
        """Classes of arguments that were parsed from the command line."""
        self.trainers = 0
        self._made_arguments = False
        self._rank = int(os.environ.get("RANK", "0"))
        self._device_kind = "cpu"
        if self.request.mode != LOOK:
            self._report_failures()

    @property
    def folder(self) -> ChildFolder:
        """The folder of this rank's reply."""
        return rank_folder(self.path, self._rank)

    def on_parser(self, parser: Any) -> None:
        """Note what a parser reads from the command line."""
        original = parser.parse_args_into_dataclasses

        def parse_args_into_dataclasses(this: Any, *args: Any, **kwargs: Any) -> Any:
            words = kwargs.get("args", args[0] if args else None)
            if words is None or set(words) <= set(sys.argv):
                self.parsed += list(this.dataclass_types)
            return original(this, *args, **kwargs)

        parser.parse_args_into_dataclasses = parse_args_into_dataclasses

    def before_arguments(self, arguments: Any) -> None:
        """Note that arguments are about to be made: what they refuse, they refuse to the
        candidate."""
        if self.stages.current == "start":
            self.stages.enter("plan")

    def silence(self, arguments: Any) -> None:
        """Change what a look or a probe is not to do, after the arguments have checked what the
        script passed to them."""
        for name, value in QUIET.items():
            if hasattr(arguments, name):
                kind = type(getattr(arguments, name))
                setattr(arguments, name, kind(value) if issubclass(kind, enum.Enum) else value)
        arguments.output_dir = str(self.path / "scratch")
        length = getattr(arguments, "max_completion_length", None)
        if length is not None and hasattr(arguments, "generation_kwargs"):
            name = "min_tokens" if getattr(arguments, "use_vllm", False) else "min_new_tokens"
            arguments.generation_kwargs = {**(arguments.generation_kwargs or {}), name: length}

    def arguments_made(self, arguments: Any) -> None:
        """Begin the limit of the device: it is known from here on, and mostly empty."""
        self.silence(arguments)
        self._made_arguments = True
        self._rank = int(arguments.process_index)
        self._device_kind = str(arguments.device.type)
        if self.request.mode == LOOK or self.memory is not None:
            return
        self.stages.enter("build")
        limit = self.request.memory_limit_bytes
        if self._device_kind == "cuda":
            from autotune.facts.devices import visible_gpus

            index = arguments.device.index or 0
            gpus = visible_gpus()
            self.memory = CudaMemory(limit, gpus[index] if index < len(gpus) else index)
            return
        name_template(os.getpid())
        self.memory = CpuMemory(limit)

    def on_trainer(self, trainer: Any) -> None:
        """Take hold of a trainer's making and of its training."""
        make, train = trainer.__init__, trainer.train

        def __init__(this: Any, *args: Any, **kwargs: Any) -> None:
            self.trainers += 1
            make(this, *args, **kwargs)

        def train_watched(this: Any, *args: Any, **kwargs: Any) -> NoReturn:
            self._trains(this, lambda: train(this))

        trainer.__init__, trainer.train = __init__, train_watched

    def _trains(self, trainer: Any, train: Callable[[], Any]) -> NoReturn:
        """Look or measure, and end the process.

        Raises:
            RuntimeError: its arguments were not made here, so no field of them can be set.
        """
        if not self._made_arguments:
            raise RuntimeError(
                "the arguments were not made here (loaded from a file?), so autotune cannot set "
                "their fields: make them in the script"
            )
        self.silence(trainer.args)  # the script may have set them since
        if self.request.mode == LOOK:
            from autotune.script.child.look import look_at

            look = look_at(trainer, self)
            if self._rank == 0:
                write_json(self.path / "look.json", look.plain())
            self.end(trainer)
        from autotune.script.child.measure import measured

        try:
            measurement = measured(trainer, train, self)
        except BaseException as error:
            self.fail(error)
        self.reply(measurement)
        self.end(trainer)

    def reply(self, measurement: Measurement) -> None:
        """Write how it ended."""
        self.stages.enter("end")
        if self.memory is not None:
            self.memory.lift()
        self.folder.path.mkdir(parents=True, exist_ok=True)
        write_json(self.folder.reply, {**measurement.plain(), "stages_s": self.stages.seconds})

    def fail(self, error: BaseException) -> NoReturn:
        """Write what went wrong, and end."""
        if self.memory is not None:
            self.memory.lift()
        traceback.print_exception(error)
        self.reply(self._failed(error))
        self.end(None, 1)

    def _failed(self, error: BaseException) -> Measurement:
        return failed_measurement(
            error,
            self.stages.current,
            self._device_kind,
            self.memory,
            self.request.memory_limit_bytes,
            {} if self.memory is None else self.memory.figures(),
        )

    def _report_failures(self) -> None:
        """Name faults that the script does not catch before it trains like those that come
        later."""
        shown = sys.excepthook

        def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
            shown(kind, error, trace)
            self.reply(self._failed(error))

        sys.excepthook = excepthook

    def end(self, trainer: Any, code: int = 0) -> NoReturn:
        """End the process at once, when all ranks have come so far.

        Args:
            trainer: None: others may hang, and are not waited for.
        """
        import torch.distributed as dist

        if trainer is not None and dist.is_available() and dist.is_initialized():
            dist.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
