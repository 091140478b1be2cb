"""The measurement `memory`: estimates against real probes, of memory and of speed.

    scripts/gpu.sh memory [FILE] --predict h200        without a GPU: estimate, into FILE
    scripts/gpu.sh memory [OUT] --predictions FILE     on a GPU: probe what FILE predicts
    scripts/gpu.sh memory OUT --minutes 8              what is left of an earlier call into OUT
    scripts/gpu.sh memory OUT --table                  nothing but the table of what OUT has
    scripts/gpu.sh memory [OUT] --rehearse             both on the CPU, with something tiny

Predictions are made first, by the planner that `autotune plan` uses, and committed before anything
is measured. Without `--predictions` they are made for the device that is there, and kept in OUT.
What is predicted: a few candidates of each job in `benchmarks/gpu_memory/cases.py`, most of which
fit and some of which lie near the limit. A call on a GPU writes into OUT

    memory_predictions.jsonl    what was expected: a header, then a row a candidate
    memory_rows.jsonl           a header a call; a row a probe: candidate, estimate, measurement
    memory_table.md             errors, wrong verdicts, ranks

The order is that of the predictions: one candidate of each job after the other, those nearest to
the limit first. `--minutes` starts no probe after that time. A machine that starts bare goes on
where another stopped if memory_rows.jsonl and memory_predictions.jsonl are put into its OUT first.
"""

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from autotune.cli.command import guarded  # noqa: E402
from autotune.errors import user_error  # noqa: E402
from autotune.facts import devices  # noqa: E402
from autotune.facts.device_kinds import find_kind  # noqa: E402
from benchmarks.gpu_memory.cases import CASES, TINY  # noqa: E402
from benchmarks.gpu_memory.predictions import (  # noqa: E402
    Predictions,
    predict,
    read,
    read_rows,
    write,
)
from benchmarks.gpu_memory.probes import Rows, check_device, measure  # noqa: E402
from benchmarks.gpu_memory.table import table  # noqa: E402

RECORDED = ROOT / "benchmarks" / "recorded"


@guarded
def main() -> int:
    """Predict, or measure and write the table."""
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="autotune-memory-") as scratch:
        if arguments.predict is not None:
            return write_predictions(arguments, Path(scratch))
        return hold_against(arguments, Path(scratch))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hold estimates against real probes.")
    parser.add_argument(
        "out", type=Path, nargs="?", help="folder (with --predict: file) for results"
    )
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with something tiny")
    parser.add_argument("--predict", metavar="DEVICE", help="only predict, for this kind of device")
    parser.add_argument(
        "--predictions", type=Path, metavar="FILE", help="measure what FILE predicts"
    )
    parser.add_argument("--minutes", type=float, help="start no probe after this time")
    parser.add_argument("--table", action="store_true", help="only write the table of OUT")
    parser.add_argument("--seed", type=int, default=0, help="of the choice and the order")
    return parser.parse_args()


def write_predictions(arguments: argparse.Namespace, scratch: Path) -> int:
    """Estimate without a device."""
    if arguments.predictions is not None or arguments.minutes is not None:
        raise user_error("--predict measures nothing", hint="leave --predictions and --minutes out")
    if arguments.predict != "cpu":
        find_kind(arguments.predict)  # so that a wrong name is refused before anything is written
    name = f"predictions-memory-{arguments.predict}-{today()}.jsonl"
    file = arguments.out or (ROOT / "runs" if arguments.rehearse else RECORDED) / name
    if file.exists():
        raise user_error("the file exists already", where=str(file), hint="name another")
    made = predict(
        TINY if arguments.rehearse else CASES, arguments.predict, arguments.seed, scratch
    )
    write(file, made)
    print(f"memory: {len(made.rows)} candidates predicted in {file}")
    return 0


def hold_against(arguments: argparse.Namespace, scratch: Path) -> int:
    """Probe, and hold the estimates against what was measured."""
    out = arguments.out or default_out(arguments.rehearse)
    kept, rows_file = out / "memory_predictions.jsonl", out / "memory_rows.jsonl"
    predictions = predicted(arguments, kept, scratch)
    rows = Rows(rows_file, predictions)
    if rows.missing(predictions) and not arguments.table:
        check_device(predictions)
    if not kept.exists():
        write(kept, predictions)
    try:
        if not arguments.table:
            measure(predictions, rows, arguments.minutes, scratch / "probes")
    finally:
        if rows.probed:
            text = table(predictions.about, read_rows(rows_file), len(predictions.rows))
            (out / "memory_table.md").write_text(text, encoding="utf-8")
            print(text)
    left = len(rows.missing(predictions))
    print(f"memory: results in {out}" + (f"; {left} candidates are left" if left else ""))
    return 0


def predicted(arguments: argparse.Namespace, kept: Path, scratch: Path) -> Predictions:
    """The predictions that were named, else those of an earlier call, else new ones."""
    if arguments.predictions is not None:
        return read(arguments.predictions)
    if kept.exists() or arguments.table:
        return read(kept)
    if not arguments.rehearse:
        devices.detect("cuda", 0)  # said before minutes are spent
    return predict(
        TINY if arguments.rehearse else CASES, None, arguments.seed, scratch / "predictions"
    )


def default_out(rehearse: bool) -> Path:
    """Recorded results are kept in the repository; a rehearsal's are not."""
    if rehearse:
        return ROOT / "runs" / f"gpu-memory-rehearsal-{time.strftime('%Y%m%d-%H%M%S')}"
    return RECORDED / f"gpu-memory-{today()}"


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


if __name__ == "__main__":
    main()
