"""`autotune serve`."""

import contextlib
from pathlib import Path

import click

from autotune.cli.command import echo, guarded


@click.command("serve")
@click.option(
    "--runs",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("service"),
    show_default=True,
    help="Folder for run folders and, by default, the database.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The operator's settings, server.yaml.",
)
@click.option("--host", help="Address to listen at, in place of the settings'.")
@click.option(
    "--port", type=int, help="Port to listen at, in place of the settings'; 0: a free one."
)
@click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log on stderr: problems as text, or all that happens as a JSON object a line.",
)
@click.option("--add-token", metavar="NAME", help="Make a token for a user, print it, and end.")
@click.option("--worker", is_flag=True, help="With --add-token: for a worker of another machine.")
@click.option("--remove-token", metavar="NAME", help="Forget the tokens of a name, and end.")
@guarded
def command(
    folder: Path,
    config: Path | None,
    host: str | None,
    port: int | None,
    log: str,
    add_token: str | None,
    worker: bool,
    remove_token: str | None,
) -> int:
    """Serve plans, runs and history to browsers and programs.

    It listens at 127.0.0.1 unless told otherwise; any other address needs a token. Ctrl-C or
    SIGTERM ends it: runs return to the queue, and go on when it serves again.
    """
    from autotune.cli.views.log import log_to_stderr
    from autotune.errors import user_error
    from autotune.facts.stack import DISTRIBUTION

    try:
        from autotune.server.serve import serve
        from autotune.server.service import open_service
        from autotune.server.settings import load_settings
    except ModuleNotFoundError as error:
        raise user_error(
            f"the package `{error.name}` is missing",
            where="autotune serve",
            hint=f"pip install '{DISTRIBUTION}[server]'",
        ) from None
    given = {"host": host, "port": port}
    changes = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(config, changes)
    folder = folder.absolute()
    if worker and not add_token:
        hint = "`autotune worker` starts a worker; `--add-token NAME --worker` makes its token"
        raise user_error("it says what a new token is for", where="--worker", hint=hint)
    if add_token or remove_token:
        folder.mkdir(parents=True, exist_ok=True)
        tokens = open_service(settings, folder, "").tokens
        if remove_token:
            echo(f"forgot {tokens.remove_named(remove_token)} of {remove_token}", err=True)
        if add_token:
            echo(tokens.add(add_token, "worker" if worker else "user"))
            echo("this is shown once; the service keeps only its hash", err=True)
        return 0
    log_to_stderr(as_json=log == "json")

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # what reads it may be gone
            if log == "text":
                echo(text, err=True)

    serve(settings, folder, say)
    return 0
