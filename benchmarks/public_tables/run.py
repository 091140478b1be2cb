"""Published figures of model states against autotune's own estimate of the same setting.

python benchmarks/public_tables/run.py           # goes on where it was stopped
python benchmarks/public_tables/run.py --table   # results.md from results.jsonl again
"""

import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
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
from benchmarks.public_tables.cases import Case, cases, write_model  # noqa: E402
from benchmarks.public_tables.figures import PAPER, by_estimator, by_paper  # noqa: E402
from benchmarks.public_tables.table import table  # noqa: E402

HERE = Path(__file__).parent
COMMAND = "python benchmarks/public_tables/run.py"


def compared(case: Case, models: Path) -> dict[str, Any]:
    """The row of one case: what was published, and what we say."""
    from benchmarks.public_tables.states import estimated, weights_of

    parameters, largest = weights_of(models / case.model)
    stage = case.sharding.zero_stage
    if case.table == PAPER:
        told: dict[str, Any] = {
            "device": round(sum(by_paper(parameters, stage, case.ranks).values()))
        }
    else:
        told = {
            str(init): by_estimator(
                case.sharding, parameters, largest, nodes=case.nodes, zero_init=init
            )
            for init in (True, False)
        }
    return {
        "parameters": parameters,
        "largest_layer": largest,
        "told": told,
        "ours": estimated(case, models),
    }


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


def run(results: Results) -> None:
    """Compare what is missing, each case in a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import deepspeed  # noqa: F401
    import torch
    import trl  # noqa: F401

    torch.set_num_threads(1)
    about = {**about_this_run(), "deepspeed": version("deepspeed"), "command": COMMAND}
    with tempfile.TemporaryDirectory(prefix="public-tables-") as scratch:
        for number, case in enumerate(results.waiting(cases())):
            folder = Path(scratch, "models", case.model)
            if not folder.exists():
                write_model(case.model, folder)
            row = in_fork(case, folder.parent, Path(scratch, str(number)))
            row = {"name": case.name, "case": case.plain(), **row, "about": about}
            results.add(row)
            print(case.name, row.get("failure") or "done", flush=True)


def main() -> None:
    """Run what is missing, then write the table."""
    run_and_tell(parser_of(__doc__, HERE / "results.jsonl").parse_args(), run, told)


def told(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    return table([row for row in rows if "failure" not in row]) + failures(rows)


if __name__ == "__main__":
    main()
