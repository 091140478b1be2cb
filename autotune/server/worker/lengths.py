"""Plans of an answer at other lengths and micro-batches, made behind everything else, for the
sliders of its page.

Nothing is estimated here: the plan's command does it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.job.methods import METHODS
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.process.companion import Command
from autotune.process.messages import read_json
from autotune.server.store.values import Lease
from autotune.server.worker.door import Door
from autotune.server.worker.task import PLAN_NICENESS, LimitedCommand
from autotune.space.knobs import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH

FILE = "lengths.json"
SCHEMA = 1
SHARES = (0.25, 0.5, 1.0, 2.0)
"""Lengths that are planned, as shares of the job's own; longer ones only where lengths stand in
place of data."""
LEAST = 16
_VARIED = (MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH, "max_length")


def lengths_jobs(job: str, knobs: dict[str, Any]) -> list[str]:
    """Return jobs with the knobs of an answer pinned, over lengths and micro-batches; none where no
    length can vary.

    Where rows are not padded TRL does not truncate: then each length is a job of its own, with
    shorter data, which is possible only where lengths stand in place of data.

    Args:
        job: the job file's text.
        knobs: of the answer.
    """
    data = parse_yaml(job, "job")[0]
    length, dataset = knobs.get("max_length"), data.get("dataset")
    if METHODS[data.get("method", "sft")].online or not isinstance(length, int):
        return []
    if isinstance(data.get("global_batch_size"), str):
        return []  # so many tokens make another batch at every length
    data["fixed"] = {name: value for name, value in knobs.items() if name not in _VARIED}
    data["global_batch_size"] = knobs[GLOBAL_BATCH]
    data.pop("recipe", None)
    if isinstance(dataset, dict):
        lengths = [max(round(share * length), LEAST) for share in SHARES]
        return [to_yaml({**data, **_cut(dataset["lengths"], at)}) for at in lengths]
    if knobs.get("padding_free"):
        return []
    lengths = [max(round(share * length), LEAST) for share in SHARES if share <= 1]
    return [to_yaml({**data, "recipe": {"max_length": sorted(set(lengths))}})]


def _cut(lengths: dict[str, int], at: int) -> dict[str, Any]:
    """Return the fields of a job whose longest rows are `at` tokens long."""
    cut = {name: min(value, at) for name, value in lengths.items() if name in ("p50", "p99")}
    rows = {"rows": lengths["rows"]} if "rows" in lengths else {}
    return {"max_length": at, "dataset": {"lengths": {**cut, **rows, "max": at}}}


def lengths_points(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sliders' points, from the results of those plans (at least one)."""
    points = [
        {
            "max_length": candidate["knobs"]["max_length"],
            "micro_batch": candidate["knobs"][MICRO_BATCH],
            "peak_memory_bytes": candidate["estimate"]["peak_memory_bytes"],
            "p_oom": candidate["estimate"]["p_oom"],
            "tokens_per_s": candidate["estimate"]["tokens_per_s"],
            "parts": candidate["estimate"]["parts"],
        }
        for result in results
        for candidate in result["candidates"]
    ]
    return {
        "schema": SCHEMA,
        "limit_bytes": results[0]["device"]["limit_bytes"],
        "lengths": sorted({point["max_length"] for point in points}),
        "micro_batches": sorted({point["micro_batch"] for point in points}),
        "points": points,
    }


class LengthsTask:
    """Plans in the background, one after the other.

    Args:
        lease: of the plan that has ended.
        folder: the work's folder; where it is deleted, the rest is left out.
        answer: of its result.
        memory_bytes: limit of all processes of a plan together.
    """

    def __init__(
        self,
        lease: Lease,
        folder: Path,
        answer: dict[str, Any],
        environment: dict[str, str | None],
        memory_bytes: int,
    ) -> None:
        self.lease, self._folder, self._environment = lease, folder, environment
        self._memory_bytes = memory_bytes
        self._left = lengths_jobs(lease.job, answer["knobs"])
        self._results: list[dict[str, Any]] = []
        self._command: LimitedCommand | None = None

    def look(self) -> None:
        """End a plan that takes more than it may."""
        if self._command is not None:
            self._command.look()

    def turn(self, door: Door, name: str) -> bool:
        """Go on; True if all is done and sent.

        Raises:
            Away: the service does not answer.
            Lost: the work was deleted.
        """
        if self._command is not None:
            if self._command.exit_code is None:
                return False
            self._keep_result()
        if not self._folder.is_dir():
            return True
        if self._left:
            self._start(self._left.pop(0))
            return False
        if self._results:
            content = json.dumps(lengths_points(self._results)).encode()
            door.keep_file(name, self.lease.id, FILE, content)
        return True

    def end(self) -> None:
        """End all of it."""
        self._left.clear()
        if self._command is not None:
            self._command.end()

    def _start(self, job: str) -> None:
        record = self._folder / "lengths"
        record.mkdir(exist_ok=True)
        file = self._folder / "lengths.yaml"
        file.write_text(job, encoding="utf-8")
        command = Command(
            ["plan", file.name, "--all", "--record", str(record), *self.lease.arguments],
            folder=self._folder,
            output=record / "output.txt",
            errors=record / "errors.txt",
            environment=self._environment,
            niceness=PLAN_NICENESS,
        )
        self._command = LimitedCommand(
            command, memory_bytes=self._memory_bytes, limit_s=self.lease.limit_s
        )

    def _keep_result(self) -> None:
        file = self._folder / "lengths" / "result.json"
        result = read_json(file)
        if isinstance(result, dict):
            self._results.append(result)
            file.unlink()
        self._command = None
