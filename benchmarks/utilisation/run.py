"""What share of a GPU's peak the published and the recorded runs reached:
`autotune/facts/utilisation.csv`.

    python -m benchmarks.utilisation.run           # writes it, and prints every run
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from autotune.facts.device_kinds import DeviceKind, device_kinds, find_kind
from autotune.facts.known_models import known_models
from autotune.facts.utilisation import LEAST_TOKENS, PEAK_DTYPES, flops_per_token, size_of, tuned
from benchmarks.gpu_memory.cases import MODELS as RECORDED_MODELS
from benchmarks.published_runs.models import MODELS as PUBLISHED_MODELS
from benchmarks.published_runs.settings import DEVICES, name_of

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "autotune" / "facts" / "utilisation.csv"
PUBLISHED, RECORDED = ROOT / "benchmarks" / "published_runs", ROOT / "benchmarks" / "recorded"
SEVERAL_GPUS = "qwen_full_"
"""Published runs under ZeRO-3 on several GPUs, of which the source says no number."""
SMOKE_MODELS = {"7b-lora": "qwen2.5-7b"}
"""Of `scripts/gpu.sh smoke` and `outcome`; the other cases are of Qwen2.5-0.5B's shape."""
SMALL = "qwen2.5-0.5b"


class Run(NamedTuple):
    """One measured training on one GPU; `tokens` of a micro-step."""

    name: str
    kind: DeviceKind
    size: str
    tuning: str
    tokens: float
    mfu: float


def runs() -> list[Run]:
    """All that are measured, with at least `LEAST_TOKENS`."""
    found = [*_published(), *_probes(), *_trainings()]
    return [run for run in found if run.tokens >= LEAST_TOKENS]


def table(found: list[Run]) -> str:
    """The range of each kind and tuning, as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["kind", "capability", "size", "tuning", "runs", "low", "middle", "high"])
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in found:
        groups.setdefault((run.kind.name, run.size, run.tuning), []).append(run)
    for key in sorted(groups):
        same, (name, size, tuning) = groups[key], key
        shares = [run.mfu for run in same]
        capability = ".".join(map(str, same[0].kind.capability or ()))
        figures = (f"{one:.3f}" for one in (min(shares), median(shares), max(shares)))
        writer.writerow([name, capability, size, tuning, len(same), *figures])
    return file.getvalue()


def _published() -> Iterator[Run]:
    """Rows of full length, as `settings.py` takes them; the count of parameters is the plan's."""
    lines = (PUBLISHED / "results.jsonl").read_text(encoding="utf-8").splitlines()
    plans = {row["name"]: row for row in map(json.loads, lines) if "failure" not in row}
    with (PUBLISHED / "runs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, speed = name_of(row), row["measured_tokens_per_s"]
            if not speed or name.startswith(SEVERAL_GPUS):
                continue
            yield _run(
                name,
                find_kind(DEVICES[row["gpu"]]),
                row["tuning"],
                config=PUBLISHED_MODELS[row["model"]],
                parameters=plans[name]["model"]["parameters"],
                micro_batch=int(row["micro_batch"]),
                length=float(row["seq_length"]),
                tokens_per_s=float(speed),
            )


def _probes() -> Iterator[Run]:
    """Probes of ours that went through; their tokens are real ones, without padding."""
    for file in sorted(RECORDED.glob("*/*_*.jsonl")):
        if file.name not in ("smoke_probes.jsonl", "memory_rows.jsonl"):
            continue
        for row in _rows(file):
            measured = row.get("measurement") or {}
            if measured.get("outcome") == "ok":
                case = row["run"] if "run" in row else row["case"]
                yield _recorded(file, case, row["knobs"], measured)


def _trainings() -> Iterator[Run]:
    """Whole epochs, as `trl sft` was launched, and the probe that each pick was made by."""
    for file in sorted(RECORDED.glob("*/outcome_rows.jsonl")):
        rows = list(_rows(file))
        picked = next(row["found"] for row in rows if row["pick"] == "autotune")
        measured = picked["measurement"]
        yield _recorded(file, rows[0]["case"], picked["knobs"], measured)
        for row in rows:
            if row["row"] == "training" and row["outcome"] == "ok":
                knobs = {**picked["knobs"], "per_device_train_batch_size": row["micro_batch"]}
                speed = {**measured, "tokens_per_s": row["tokens_per_s"]}
                yield _recorded(file, row["case"], knobs, speed)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


def _recorded(file: Path, case: str, knobs: dict[str, Any], measured: dict[str, Any]) -> Run:
    model = next((name for name in RECORDED_MODELS if case.startswith(name)), None)
    model = model or SMOKE_MODELS.get(case, SMALL)
    return _run(
        f"{file.parent.name}: {case}",
        _kind_of(file.parent.name),
        "lora" if knobs.get("lora_r") else "full",
        config=RECORDED_MODELS[model],
        parameters=next(one.parameters for one in known_models() if one.name == model),
        micro_batch=knobs["per_device_train_batch_size"],
        length=measured["tokens_per_step"] / knobs["global_batch_size"],
        tokens_per_s=measured["tokens_per_s"],
    )


def _kind_of(folder: str) -> DeviceKind:
    """The GPU that a folder is named after: `gpu-memory-h100-2026-11-26`."""
    return next(kind for kind in device_kinds() if set(kind.aliases) & set(folder.split("-")))


def _run(
    name: str,
    kind: DeviceKind,
    tuning: str,
    *,
    config: dict[str, Any],
    parameters: int,
    micro_batch: int,
    length: float,
    tokens_per_s: float,
) -> Run:
    flops = flops_per_token(
        parameters,
        config.get("num_hidden_layers") or config["n_layer"],
        config.get("hidden_size") or config["n_embd"],
        length,
        frozen=tuning != "full",
    )
    peak = next(rate for dtype in PEAK_DTYPES if (rate := kind.matrix_flops_per_s.get(dtype)))
    mfu = tokens_per_s * flops / peak
    return Run(name, kind, size_of(parameters), tuned(tuning), micro_batch * length, mfu)


if __name__ == "__main__":
    measured = runs()
    for run in measured:
        print(f"{run.mfu:6.1%} {run.tokens:7.0f} {run.size:11} {run.tuning:8} {run.name}")
    TABLE.write_text(table(measured), encoding="utf-8")
    print(table(measured))
