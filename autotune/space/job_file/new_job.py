"""The text of a new job file, commented. Pure."""

from dataclasses import dataclass
from typing import Any

from autotune.job.methods import METHODS
from autotune.job.yaml_file import dump_flow

_ROWS = {
    "sft": ("text, prompt/completion or messages", "prompt: question, completion: answer"),
    "reward": ("chosen/rejected, with or without a prompt", "chosen: better, rejected: worse"),
    "dpo": ("chosen/rejected, with or without a prompt", "chosen: better, rejected: worse"),
    "kto": ("prompt/completion/label, or chosen/rejected", "completion: answer, label: liked"),
}
"""Of a method: what its rows have, and columns as an example."""
_PROMPTS = ("prompt", "prompt: question")
TUNINGS = ("full", "lora", "qlora")
_WIDTH = 28
"""Columns before a remark."""


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """The answers from which a first job file is written.

    Attributes:
        model: hub id, or a path relative to the file.
        dataset: the same; empty: there is none yet.
    """

    model: str
    dataset: str
    method: str
    tuning: str

    def text(self) -> str:
        """Return the job file."""
        lines = [
            "# What to fine-tune, and on what data. What this file names is relative to it.",
            "# `autotune validate` checks it; docs/job.md has all fields.",
            _line("model", self.model, ""),
            _line("method", self.method, f"or {', '.join(_without(METHODS, self.method))}"),
            *self._data(),
            *self._rewards(),
            _line("tuning", self.tuning, f"or {', '.join(_without(TUNINGS, self.tuning))}"),
            *self._sizes(),
            _line("devices", {"count": 1}, "how many GPUs train; `memory: 20GiB` limits each"),
            _line("budget", "30m", "for all probes; or a number of probes"),
            *self._training(),
        ]
        return "\n".join(lines) + "\n"

    def _data(self) -> list[str]:
        rows, columns = _ROWS.get(self.method, _PROMPTS)
        if not self.dataset:
            what = "prompts" if METHODS[self.method].online else "rows"
            return [
                f"# No data yet: {what} of stated lengths, in tokens. p50 is the median.",
                _line("dataset", {"lengths": {"max": 1024, "p50": 256}}, ""),
            ]
        return [
            _line("dataset", self.dataset, f"has columns {rows}"),
            f"# columns: {{{columns}}}  # where the data call them otherwise",
        ]

    def _rewards(self) -> list[str]:
        method = METHODS[self.method]
        if method.rewards_by_functions:
            remark = "for any prompts; or your own: my_rewards.by_length"
            functions = ["get_soft_overlong_punishment"]
            return [_line("reward_funcs", functions, remark)]
        if method.teacher:
            return [_line(method.second_model, self.model, "name a larger one of its vocabulary")]
        if method.second_model:
            return ["# reward_model_path: my-judge  # else the launch asks for it"]
        return []

    def _sizes(self) -> list[str]:
        method = METHODS[self.method]
        unit = "completions" if method.online else "pairs" if method.sequences == 2 else "rows"
        batch = _line("global_batch_size", 16, f"{unit} per optimizer step: exact")
        if method.online:
            length = f"# fixed: {{{method.completion}: 256}}  # tokens of a completion"
            return [batch, length]
        return [batch, _line("max_length", 1024, "tokens at which a row is cut")]

    def _training(self) -> list[str]:
        method = METHODS[self.method]
        full = self.tuning == "full"
        kinds = "[float32, bfloat16]" if full else "[bfloat16, float32]  # else its checkpoint's"
        rank = "" if full else "\n#   lora_r: [8, 16, 32]"
        return [
            f"training:{' ' * (_WIDTH - 9)}# any other field of TRL's {method.config}",
            _line("  learning_rate", method.defaults["learning_rate"], "TRL's default"),
            f"# recipe:{' ' * (_WIDTH - 9)}# what may vary, though it changes what is learned",
            f"#   dtype: {kinds}{rank}",
        ]


def _without(names: Any, name: str) -> list[str]:
    return [other for other in names if other != name]


def _line(name: str, value: Any, remark: str) -> str:
    entry = f"{name}: {dump_flow(value)}"
    return f"{entry.ljust(_WIDTH - 2)}  # {remark}" if remark else entry
