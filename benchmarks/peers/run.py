"""What others estimate, what we estimate, and what the real CPU allocator then says.

    python benchmarks/peers/run.py                     # about 15 minutes
    python benchmarks/peers/run.py --table             # results.md from results.jsonl again
    pip install --no-deps --target DIR fm-training-estimator dataclass-wizard
    PYTHONPATH=DIR python benchmarks/peers/run.py      # with the fourth peer

Each point gets a child of its own, which asks every estimator and then trains two optimizer steps
of the real trainer under torch's profiler.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.process.limits import Limits  # noqa: E402
from autotune.process.messages import ChildFolder, read_json, write_json  # noqa: E402
from autotune.process.server import ChildServer  # noqa: E402
from benchmarks.command import done_in, run_and_tell  # noqa: E402
from benchmarks.estimate_exactness import models  # noqa: E402
from benchmarks.estimate_exactness.cases import Case  # noqa: E402
from benchmarks.estimate_exactness.run import (  # noqa: E402
    IMPORTED,
    about_this_run,
    server_environment,
)
from benchmarks.peers.points import LARGE, QWEN_05B, points  # noqa: E402

HERE = Path(__file__).parent
WORKER = "benchmarks.peers.worker:compare"
HEAD = "| estimator | points | median | p90 | most | signed median | failed | seconds, median |\n"


def compare(case: Case, server: ChildServer, scratch: Path) -> dict[str, Any]:
    """The row of one point; `failure` is set where it could not be run."""
    folder = ChildFolder(path=scratch / case.name)
    folder.path.mkdir(parents=True)
    write_json(folder.request, case.request(scratch / "models" / case.model).plain())
    ending = server.run(folder, WORKER, Limits(wall_s=1200, stall_s=1200))
    found = read_json(folder.reply)
    if found is None:
        said = folder.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found = {"failure": said[-1] if said else ending.why}
    return {"name": case.name, **found, "case": case.plain()}


def run(results: Path) -> None:
    """Run what `results` does not hold yet, and add to it."""
    known = done_in(results)
    about = about_this_run()
    models.CONFIGS[LARGE] = QWEN_05B
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        scratch = Path(name)
        for model in {case.model for case in points()}:
            models.write_model(model, scratch / "models" / model)
        with ChildServer(scratch / "server.log", IMPORTED, server_environment()) as server:
            for case in points():
                if case.name in known:
                    continue
                row = {**compare(case, server, scratch), "about": about}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row.get("failure") or ratios(row), case.name, flush=True)


def ratios(row: dict[str, Any]) -> dict[str, float | None]:
    """Estimate over truth, by estimator."""
    return {
        name: None if told["bytes"] is None else round(told["bytes"] / row["real_bytes"], 4)
        for name, told in row["told"].items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    done = [row for row in rows if "failure" not in row]
    text = "# Estimators against the real CPU allocator\n\nSize of the relative error of the peak "
    text += "of allocated bytes. `-`: the estimator does not claim to know. Made by `run.py`.\n"
    groups = {
        "small models, full tuning": lambda c: c["model"] != LARGE and c["method"] == "full",
        "small models, LoRA": lambda c: c["model"] != LARGE and c["method"] != "full",
        "0.5B shape, full tuning": lambda c: c["model"] == LARGE and c["method"] == "full",
        "0.5B shape, LoRA": lambda c: c["model"] == LARGE and c["method"] != "full",
    }
    for title, belongs in groups.items():
        some = [row for row in done if belongs(row["case"])]
        text += f"\n## {title}\n\n{HEAD}|---|---|---|---|---|---|---|---|\n"
        for name in some[0]["told"] if some else ():
            text += line(name, some)
    text += "\n## Every point: estimate / truth\n\n"
    for row in done:
        told = ", ".join(f"{name} {value or '-'}" for name, value in ratios(row).items())
        text += f"- {row['name']} ({row['real_bytes'] / 2**20:.0f} MiB): {told}\n"
    failures = {
        f"{name}: {told['failure']}"
        for row in done
        for name, told in row["told"].items()
        if told.get("failure")
    }
    return text + "".join(f"\nFailed: {failure}\n" for failure in sorted(failures))


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """One estimator's line."""
    told = [row["told"][name] for row in rows]
    errors = [ratio - 1 for row in rows if (ratio := ratios(row)[name]) is not None]
    failed = sum("failure" in one for one in told)
    if not errors:
        return f"| {name} | 0 | - | - | - | - | {failed} | - |\n"
    sizes = sorted(map(abs, errors))
    cells = (statistics.median(sizes), sizes[int(0.9 * (len(sizes) - 1))], sizes[-1])
    spread = " | ".join(f"{cell:.2%}" for cell in cells)
    seconds = statistics.median(one["seconds"] for one in told)
    signed = f"{statistics.median(errors):+.1%}"
    return f"| {name} | {len(errors)} | {spread} | {signed} | {failed} | {seconds:.1f} |\n"


def main() -> None:
    """Run, then write and print the table."""
    run_and_tell(__doc__, HERE, run, table)


if __name__ == "__main__":
    main()
