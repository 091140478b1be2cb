"""What parent and script say to each other: plain data in JSON files.

A start's folder holds `request.json` (written by the parent, read by the hook), `look.json` or the
replies of a probe (`rank-N/reply.json`), `progress.jsonl` and `stderr.log`.
"""

from dataclasses import dataclass, field
from typing import Any

from autotune.process.messages import Message

LOOK = "look"
PROBE = "probe"
TOKENS, CHARACTERS = "tokens", "characters"
"""Units of the length of a row."""


@dataclass(frozen=True, kw_only=True)
class ScriptRequest(Message):
    """The work of the hook in a script.

    Attributes:
        mode: `look` reports when training begins, and ends there; `probe` measures a few steps.
        fields: of `TrainingArguments`, set as if the script had passed them.
        folder: of this start.
        package: the folder that `autotune` is imported from.
        expected: fields that the arguments have to have when training begins.
        accumulation: micro-steps of a real optimizer step; a probe may take fewer.
        memory_limit_bytes: that a process may take; None: any amount.
        to_beat_tokens_per_s: the fastest so far.
    """

    mode: str
    fields: dict[str, Any]
    folder: str
    package: str
    expected: dict[str, Any] = field(default_factory=dict)
    accumulation: int = 1
    memory_limit_bytes: int | None = None
    to_beat_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Look(Message):
    """A script when its training begins.

    Attributes:
        trainer: class of the trainer, with its module.
        kinds: names of its classes, from the most special on.
        arguments: fields of its arguments that are plain values.
        arguments_class: their class.
        processes: ranks of the training.
        devices_per_process: more than one where `torch.nn.DataParallel` divides micro-batches.
        device_kind: `cpu` or `cuda`.
        model: class of the model.
        trainable: parameters that are trained.
        attention: the kernel of its attention; None: not known.
        checkpointing: whether the arguments decide of checkpointing: the model has it, and the
            script has not switched it on by itself.
        rows: of the training data; None: a stream.
        lengths: p1, p50, p99, longest and mean of the rows, in `unit`; empty: not known.
        unit: `tokens` or `characters`.
        groups: whether the trainer can put rows of like length together.
        online: whether the policy generates what it is trained on.
        flags: whether its arguments are parsed from the command line, so that flags change them.
        command_line: of the process that trains, the script first.
        notes: what limits what can be found, as sentences.
        again: other places at which the script trains.
    """

    trainer: str
    kinds: list[str]
    arguments: dict[str, Any]
    arguments_class: str
    processes: int
    devices_per_process: int
    device_kind: str
    model: str
    model_type: str
    parameters: int
    trainable: int
    attention: str | None
    checkpointing: bool
    shape: dict[str, int | None]
    peft: bool
    rows: int | None
    lengths: dict[str, float]
    unit: str
    groups: bool
    online: bool
    flags: bool
    command_line: list[str]
    notes: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def ways(self) -> int:
        """Devices among which the rows of an optimizer step are divided."""
        return self.processes * self.devices_per_process

    @property
    def global_batch(self) -> int:
        """Rows of an optimizer step over all devices."""
        micro, steps = (
            int(self.arguments[name])
            for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
        )
        return micro * steps * self.ways
