"""`autotune worker`."""

import os
from pathlib import Path

import click

from autotune.cli.command import guarded


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
@click.option("--devices", help="GPUs of this worker, such as 0,1. Default: all, or the CPU.")
@click.option(
    "--machine",
    metavar="NAME",
    help="Name of this machine, if another one has the same host name. Two workers of a machine "
    "share no device.",
)
@click.option(
    "--plans", type=click.IntRange(0, 60), default=1, help="Number of plans at once, beside a run."
)
@click.option("--no-runs", is_flag=True, help="Only plans: the devices are left alone.")
@click.option("--plan-memory", default="8GiB", help="Memory for all processes of a plan.")
@click.option(
    "--keep", default="20GiB", help="Size of all folders; beyond it the oldest are removed."
)
@guarded
def command(
    server: str | None,
    server_file: Path | None,
    token_file: Path | None,
    folder: Path,
    devices: str | None,
    machine: str | None,
    plans: int,
    no_runs: bool,
    plan_memory: str,
    keep: str,
) -> int:
    """Do the plans and runs of a service, on this machine's devices.

    Several workers share a service: one for each machine, or for each part of its GPUs. SIGTERM
    ends it cleanly: what it did returns to the queue.
    """
    from autotune.cli.views.log import log_to_stderr
    from autotune.errors import user_error
    from autotune.job.text_file import MOST_BYTES, readable_text, text_of
    from autotune.server.worker.loop import Capacity, start_worker, worker_info
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
        wanted = None if devices is None else [int(one) for one in devices.split(",")]
        capacity = Capacity(
            runs=not no_runs,
            plans=plans,
            plan_memory=parse_bytes(plan_memory),
            folders=parse_bytes(keep),
        )
    except ValueError as error:
        raise user_error(str(error), hint="such as --devices 0,1 or --plan-memory 8GiB") from None
    log_to_stderr()
    start_worker(address, token, folder.absolute(), worker_info(wanted, machine), capacity)
    return 0
