"""One launch of a bundle: its own command, with what a rehearsal changes of its configuration.

Its stages are told as they are over, with the seconds each took, by what its trainer logs: that it
has logged, evaluated and ended. It saves between its evaluation and its end.
"""

import dataclasses
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.bundle.launch_script import NODES_SCRIPT
from autotune.engine.launching import Launcher
from autotune.errors import machine_error
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.probe.extensions import EXTENSIONS, compiled_folder
from autotune.process.launch import launch
from autotune.process.limits import LaunchReport, signal_name
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.run.deadline import Deadline
from autotune.run.verdict import LOGGED, Verification, judge, timed_steps_of, vllm_runs
from autotune.search.recommend import Ranked
from autotune.space.trl_config import Settings, device_environment
from autotune.training.rehearsal import LOGGING_STEPS, RehearsalReply

TIMEOUT_S = 1800.0
AGAIN = "find out what ends it, then verify it again"
_EVALUATED, _ENDED = "{'eval_", "{'train_runtime'"
DATA, WORST_BATCH, TIMED_STEPS = "data", "worst_batch", "timed_steps"
EVALUATION, SAVE, END, SOAK = "evaluation", "save", "end", "soak"
STAGE_TEXTS = {
    DATA: "rows for it are written",
    WORST_BATCH: "it was launched, and went through the worst batch",
    TIMED_STEPS: "steps to compare with the promise",
    EVALUATION: "an evaluation",
    SAVE: "a save",
    END: "its end",
    SOAK: "a soak",
}
"""What is said of each."""

Heard = Callable[[str, float], None]
"""Hears the name of a stage that is over, and its seconds."""


class Stages:
    """Counts the seconds of each stage; a stage that comes again counts on.

    Args:
        heard: hears of each stage at once.
    """

    def __init__(self, heard: Heard) -> None:
        self.seconds: dict[str, float] = {}
        self._heard, self._began = heard, time.monotonic()

    def over(self, stage: str, seconds: float) -> None:
        """Note that a stage is over."""
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + seconds, 3)
        self._heard(stage, seconds)

    def data_written(self) -> None:
        """Note that the rows of the launch are written."""
        self.over(DATA, time.monotonic() - self._began)


class LaunchStages:
    """Hears the lines of one launch.

    Args:
        stages: is told of each.
        rehearsal: which steps the launch goes through.
    """

    def __init__(self, stages: Stages, rehearsal: RehearsalReply) -> None:
        self._stages, self._rehearsal = stages, rehearsal
        self._step, self._last = 0, 0.0
        self._left = [WORST_BATCH, TIMED_STEPS, EVALUATION, SAVE]

    def hear(self, when_s: float, line: str) -> None:
        """Take a line that came `when_s` seconds after the start."""
        text = line.lstrip()
        if text.startswith(LOGGED):
            self._step += LOGGING_STEPS
            if self._step == self._rehearsal.untimed:
                self._over(WORST_BATCH, when_s)
            elif self._step == self._rehearsal.steps:
                self._over(TIMED_STEPS, when_s)
        elif text.startswith(_EVALUATED):
            self._over(EVALUATION, when_s)
        elif text.startswith(_ENDED):
            self._over(SAVE, when_s)

    def ended(self, seconds: float) -> None:
        """Note that the launch has ended by itself, `seconds` after its start."""
        self._over(END, seconds)

    def _over(self, stage: str, when_s: float) -> None:
        if stage == END or stage in self._left:
            self._left = self._left[self._left.index(stage) + 1 :] if stage in self._left else []
            self._stages.over(stage, when_s - self._last)
            self._last = when_s


@dataclass(frozen=True, kw_only=True)
class BundleLaunch:
    """A launch of the bundle in `run.bundle` through the steps of a rehearsal.

    Attributes:
        launched: what the bundle sets.
        rehearsal: the rows that were written for it, and its steps.
        stages: is told of each stage.
        launch: runs its command.
    """

    run: RunFolder
    launched: Settings
    rehearsal: RehearsalReply
    deadline: Deadline
    stages: Stages
    launch: Launcher = launch

    @property
    def log(self) -> Path:
        """The log of the launch."""
        return self.run.verification / "launch.log"

    def verdict(self, ranked: Ranked) -> Verification:
        """Launch, and judge.

        Args:
            ranked: what it is held against.

        Raises:
            MachineError: somebody else ended it, twice.
        """
        report, state = self.undisturbed(ranked)
        timed = timed_steps_of(report, state, self.rehearsal)
        verification = judge(report, state, timed, ranked, self.launched, str(self.log))
        verification = dataclasses.replace(verification, stages_s=dict(self.stages.seconds))
        if report.timed_out and self.deadline.left_s <= 0:
            reason = f"{self.deadline.words} ended {report.seconds:.0f} s after it was launched"
            verification = dataclasses.replace(verification, reason=reason)
        return verification

    def undisturbed(self, ranked: Ranked) -> tuple[LaunchReport, Any | None]:
        """Launch; once more where somebody else ended that, which says nothing of the bundle.

        Raises:
            MachineError: somebody else ended both.
        """
        report, state = self.run_once(ranked)
        if report.foreign_signal is not None:
            report, state = self.run_once(ranked)
        if report.foreign_signal is None:
            return report, state
        name = signal_name(report.foreign_signal)
        what = (
            f"another process ended the launch by {name}, twice: that says nothing about the bundle"
        )
        raise machine_error(what, where=str(self.log), hint=AGAIN)

    def run_once(self, ranked: Ranked) -> tuple[LaunchReport, Any | None]:
        """Launch once: how that went, and the Trainer's own state from its checkpoint; None: it
        saved none."""
        device = self.launched.facts.device
        output = self.run.verification / "output"
        steps = self.rehearsal.steps
        expected_s = steps * (ranked.measurement.step_time_s or 0.0)
        parts = ranked.measurement.generation_parts or 1
        fewer = _fewer_together(self.launched.config, parts, self.launched.processes)
        flags = _flags(self.run.verification / "data", output, steps, self.launched, fewer)
        heard = LaunchStages(self.stages, self.rehearsal)
        report = self.launch(
            ["bash", str(self.run.bundle / script_of(self.launched.job)), *flags],
            log=self.log,
            environment={
                "TRL_EXPERIMENTAL_SILENCE": "1",
                # Nothing of a checkpoint is run, as in the probes.
                "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
                # The user's own choice of devices wins in `launch.sh`, and may list several.
                **device_environment(device),
                # A folder whose card lists its files is cached by its name alone, whatever it holds
                # (datasets 5.2): with the user's cache, another run's rehearsal would be loaded.
                "HF_DATASETS_CACHE": str(self.run.verification / "cache"),
                # What DeepSpeed compiled for the probes (minutes); the user's own folder wins, and
                # on Ray that of a lane.
                EXTENSIONS: os.environ.get(EXTENSIONS, str(compiled_folder(self.run.rows))),
            },
            timeout_s=min(TIMEOUT_S + 3 * expected_s, self.deadline.left_s),
            gpus=(device.index, *device.peers) if device.kind == "cuda" else (),
            on_line=heard.hear,
        )
        if not report.timed_out:
            heard.ended(report.seconds)
        state = read_json(output / f"checkpoint-{steps}" / "trainer_state.json")
        for folder in (output, self.run.verification / "cache"):
            shutil.rmtree(folder, ignore_errors=True)
        return report, state


def script_of(job: Job) -> str:
    """Return the name of the script that is launched, on each machine of the job."""
    return "launch.sh" if job.devices.nodes == 1 else NODES_SCRIPT


def _flags(
    data: Path,
    output: Path,
    steps: int,
    launched: Settings,
    fewer: dict[str, int],
) -> list[str]:
    """Return the fields of the bundle's configuration that the rehearsal changes.

    Args:
        fewer: how many completions are generated at once, where vLLM's place is taken.
    """
    changed: dict[str, Any] = {
        "dataset_name": data,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "output_dir": output,
        "train_sampling_strategy": "sequential",
        "max_steps": steps,
        "logging_strategy": "steps",
        "logging_steps": LOGGING_STEPS,
        "eval_strategy": "steps",
        "eval_steps": steps,
        "eval_delay": 0,
        "save_strategy": "steps",
        "save_steps": steps,
        "load_best_model_at_end": "false",
        "report_to": "none",
        "disable_tqdm": "true",
        "push_to_hub": "false",
    }
    if "shuffle_dataset" in launched.facts.stack.training_fields:
        changed["shuffle_dataset"] = "false"
    if not METHODS[launched.job.method].evaluates:  # but it shows samples, in the first step
        changed |= {"num_sample_generations": 1, "full_responses": "true"}
        if not launched.config.get("reward_model_path"):
            changed["reward_model_path"] = launched.config["model_name_or_path"]
    changed |= _generating(launched, fewer)
    return [part for name, value in changed.items() for part in (f"--{name}", str(value))]


def _generating(launched: Settings, fewer: dict[str, int]) -> dict[str, Any]:
    """Return the changes where completions are generated."""
    changed: dict[str, Any] = {}
    config, real = launched.config, vllm_runs(launched)
    if config.get("use_vllm") and not real:
        changed["use_vllm"] = "false"
        changed |= fewer
    length = config.get("max_completion_length")
    if length is not None:  # completions do not end early, as in the probe
        field = "min_tokens" if real else "min_new_tokens"
        kwargs = {**(config.get("generation_kwargs") or {}), field: length}
        changed["generation_kwargs"] = json.dumps(kwargs)
        if config.get("eval_strategy", "no") == "no":  # else what the job evaluates with
            group = config.get("num_generations_eval") or config.get("num_generations", 1)
            changed["per_device_eval_batch_size"] = group
    return changed


def _fewer_together(config: dict[str, Any], parts: int, processes: int) -> dict[str, int]:
    """Return a generation batch of which each part fits, where all at once did not.

    Args:
        parts: into how many the probe had to divide a generation that vLLM will make at once.
    """
    if parts == 1:
        return {}
    total = config["generation_batch_size"]
    rows = config["per_device_train_batch_size"] * processes
    smallest = math.lcm(rows, config["num_generations"])
    fitting = [n for n in range(smallest, total, smallest) if total % n == 0 and n * parts <= total]
    return {"generation_batch_size": max(fitting, default=smallest)}
