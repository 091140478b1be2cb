"""Engines traced with few layers and other micro-batches, against traces with all layers.

python benchmarks/sharding_depths/run.py           # goes on where it was stopped
python benchmarks/sharding_depths/run.py --table   # results.md from results.jsonl again
"""

import json
import logging
import os
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from benchmarks.command import (  # noqa: E402
    Results,
    about_this_run,
    failures,
    parser_of,
    run_and_tell,
)
from benchmarks.sharding_depths.cases import (  # noqa: E402
    ASKED,
    MODELS,
    TRACED,
    Case,
    cases,
    micro_batches,
    write_model,
)

HERE = Path(__file__).parent
FIGURES = ("allocated", "fixed", "expandable", "host", "operators", "flops", "moved")
HEAD = "| | cases | " + " | ".join(FIGURES) + " |\n" + "|---" * (len(FIGURES) + 2) + "|\n"


def compared(case: Case, models: Path) -> dict[str, Any]:
    """The row of one case: each figure from few layers, and from all."""
    from autotune.estimate.allocator.replay import replayed
    from autotune.estimate.records.depths import at_depth, depths
    from autotune.estimate.records.shapes import lagrange
    from autotune.estimate.variants.sharded import ContinuedStep, trace_depth, work_of_all
    from autotune.space.sharding.sharding import Sharding

    request, began = case.request(models), time.process_time()
    known = depths(request.layers, Sharding(**request.sharding or {}), adapters=case.lora)
    few = [
        trace_depth(request, layers, micro_batches(*TRACED), accumulates=False, optim=None)
        for layers in known
    ]
    continued = ContinuedStep(
        steps=[one.steps[:-1] for one in few],
        sizes=lagrange(TRACED, ASKED),
        depths=at_depth(known, request.layers),
        request=request,
    )
    use, host = continued.use, continued.host_bytes
    reserved = [continued.replay(expandable=way).reserved_bytes for way in (False, True)]
    seconds, began = time.process_time() - began, time.process_time()
    whole = trace_depth(request, None, micro_batches(ASKED), accumulates=False, optim=None)
    truth = whole.steps[0]
    replays = [replayed(truth.device, None, expandable_segments=way) for way in (False, True)]
    short = work_of_all(few, at_depth(known, request.layers), -1)
    return {
        "depths": [*known, request.layers],
        "few": [use.peak_bytes, *reserved, host, *_work(short)],
        "whole": [
            replays[0].use.peak_bytes,
            *(replay.reserved_bytes for replay in replays),
            truth.host_bytes,
            *_work([(work, 1) for work in whole.steps[-1].work]),
        ],
        "peak_at": [[use.phase, use.operator], [replays[0].use.phase, replays[0].use.operator]],
        "cpu_s": [round(seconds, 1), round(time.process_time() - began, 1)],
    }


def _work(works: Sequence[tuple[Any, int]]) -> list[int]:
    """Operators, FLOPs, moved bytes of a micro-step of one short row."""
    totals = [sum(getattr(w, name) * n for w, n in works) for name in ("flops", "moved_bytes")]
    return [sum(n for _, n in works), *totals]


def in_fork(case: Case, models: Path, reply: Path) -> dict[str, Any]:
    """The row, made in a process of its own."""
    process = os.fork()
    if not process:
        with reply.with_suffix(".log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                text = json.dumps(compared(case, models))
            except BaseException:
                text = json.dumps({"failure": traceback.format_exc()[-2000:]})
            reply.write_text(text, encoding="utf-8")
            os._exit(0)
    os.waitpid(process, 0)
    found: dict[str, Any] = json.loads(reply.read_text(encoding="utf-8"))
    return found


def errors(row: dict[str, Any]) -> list[float | None]:
    """Of each figure, relative; None where there is nothing of it."""
    return [
        few / whole - 1 if whole else None
        for few, whole in zip(row["few"], row["whole"], strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    text = "# Few layers against all\n\nThe size of the errors: median / most.\n\n"
    text += HEAD + _line("all", done)
    for strategy in dict.fromkeys(row["case"]["strategy"] for row in done):
        text += _line(strategy, [row for row in done if row["case"]["strategy"] == strategy])
    text += (
        "\nSigned errors of each case, its depths, and the processor seconds of few and all.\n\n"
    )
    text += HEAD.replace("| cases ", "| depths ").replace("moved |\n", "moved | s |\n", 1)[:-1]
    text += "---|\n"
    for row in done:
        cells = " | ".join("" if e is None else f"{e:+.2%}" for e in errors(row))
        spent = " / ".join(f"{s:.0f}" for s in row["cpu_s"])
        depths = ", ".join(map(str, row["depths"]))
        text += f"| {row['name']} | {depths} | {cells} | {spent} |\n"
    return text + failures(rows)


def _line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for figure in range(len(FIGURES)):
        known = [errors(row)[figure] for row in rows]
        sizes = [abs(error) for error in known if error is not None]
        cells.append(f"{statistics.median(sizes):.2%} / {max(sizes):.2%}" if sizes else "")
    return f"| {name} | {len(rows)} | " + " | ".join(cells) + " |\n"


def run(results: Results) -> None:
    """Compare what is missing, each combination in a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import deepspeed  # noqa: F401
    import torch

    torch.set_num_threads(1)
    about = about_this_run()
    with tempfile.TemporaryDirectory(prefix="sharding-depths-") as scratch:
        for name in MODELS:
            write_model(name, Path(scratch, "models", name))
        for number, case in enumerate(results.waiting(cases())):
            row = in_fork(case, Path(scratch, "models"), Path(scratch, str(number)))
            row = {"name": case.name, "case": case.plain(), **row, "about": about}
            results.add(row)
            print(case.name, row.get("failure") or row["few"][:3], row.get("whole"), flush=True)


def main() -> None:
    """Run what is missing, then write the table."""
    run_and_tell(parser_of(__doc__, HERE / "results.jsonl").parse_args(), run, table)


if __name__ == "__main__":
    main()
