"""`autotune worker`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import guarded
from autotune.cli.job_options import engine_options


@click.command("worker")
@click.option("--server", help="URL of the service.")
@click.option(
    "--server-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that holds the URL, in place of --server.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the worker's token; by default AUTOTUNE_TOKEN holds it.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("works"),
    show_default=True,
    help="Folder for the runs of this worker.",
)
@click.option(
    "--plans", type=click.IntRange(0, 60), default=1, help="Number of plans at once, beside runs."
)
@click.option("--no-runs", is_flag=True, help="Only plans: the devices are left alone.")
@click.option("--plan-memory", default="8GiB", help="Memory for all processes of a plan.")
@click.option(
    "--keep", default="20GiB", help="Size of all folders; beyond it the oldest are removed."
)
@guarded
@engine_options
def command(
    server: str | None,
    server_file: Path | None,
    token_file: Path | None,
    folder: Path,
    plans: int,
    no_runs: bool,
    plan_memory: str,
    keep: str,
    runs_on: Any,
) -> int:
    """Do the plans and runs of a service, on this machine's devices or on a Ray cluster's.

    Several workers share a service: one for each machine, or for each part of its GPUs
    (CUDA_VISIBLE_DEVICES). It does a run at a time; on a cluster as many as that has devices for
    when the worker starts. SIGTERM ends it cleanly: what it did returns to the queue.
    """
    from autotune.cli.views.log import log_to_stderr
    from autotune.engine.opening import EngineOptions
    from autotune.errors import user_error
    from autotune.job.text_file import MOST_BYTES, readable_text, text_of
    from autotune.server.worker.loop import Capacity, start_worker
    from autotune.units import parse_bytes

    if (server is None) == (server_file is None):
        raise user_error("the service is missing", hint="add --server http://host:8642")
    token = os.environ.get("AUTOTUNE_TOKEN", "")
    if token_file is not None:
        token = text_of(token_file, "file with a token").strip()
    if not token:
        raise user_error(
            "a worker's token is needed",
            where="--token-file",
            hint="make one where the service is: `autotune serve --add-token NAME --worker`",
        )

    def address() -> str:
        if server_file is None:
            return str(server).rstrip("/")
        text = readable_text(server_file, MOST_BYTES)
        if text is None:  # the service may be about to write it
            raise FileNotFoundError(f"{server_file}: there is no such text file")
        return text.strip()

    try:
        capacity = Capacity(
            runs=int(not no_runs),
            plans=plans,
            plan_memory=parse_bytes(plan_memory),
            folders=parse_bytes(keep),
        )
    except ValueError as error:
        raise user_error(str(error), hint="such as --plan-memory 8GiB") from None
    log_to_stderr()
    engine = runs_on or EngineOptions()
    engine = replace(engine, at_once=engine.at_once or 1)  # runs beside each other, not probes
    start_worker(address, token, folder.absolute(), capacity, engine)
    return 0
