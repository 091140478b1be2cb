"""`--server`: what a service plans and runs, told as the local commands tell it."""

import contextlib
import io
import json
import re
import stat
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import click

from autotune.cli.command import echo, is_quiet, print_json, say
from autotune.cli.job_options import FLAG_NAMES, say_imported
from autotune.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    EXIT_NOTHING_FITS,
    EXIT_NOTHING_MEASURED,
    EXIT_USER,
    AutotuneError,
    Problem,
    UserError,
    machine_error,
    user_error,
)
from autotune.process.files import make_executable, refuse_used

JOB = frozenset({"job", "sets", *FLAG_NAMES})
"""Options that make the job."""
_CONFIG = "config.json"
_MOST_FILES, _MOST_BYTES = 1000, 256 * 2**20
_CODES = (EXIT_DONE, EXIT_NOTHING_FITS, EXIT_USER, EXIT_NOTHING_MEASURED, EXIT_INTERRUPTED)


def server_option(what: str) -> Callable[..., Any]:
    """Add `--server`."""
    return click.option("--server", metavar="URL", help=f"Let the service there {what}")


def refuse_local(allowed: Collection[str]) -> None:
    """Refuse options that say how this machine does it.

    Args:
        allowed: options by the names of their parameters.

    Raises:
        UserError: all of them.
    """
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    problems = [
        Problem(
            where=max(option.opts, key=len) if isinstance(option, click.Option) else "JOB",
            what="a service does not take this",
            hint="leave it out with --server",
        )
        for option in context.command.params
        if option.name is not None
        and option.name not in {*allowed, "server", "as_json"}
        and context.get_parameter_source(option.name) is given
    ]
    if problems:
        raise UserError(*problems)


def plan_there(
    url: str,
    job: Path | None,
    sets: Sequence[str],
    *,
    emit: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Return what `autotune plan` does, by a service; the exit code. Ctrl-C ends the plan, too.

    Args:
        sets: of all flags.
        options: `device`, `stack` and `only_default`.
    """
    from autotune.client import Client

    client = Client(url)
    refuse_used_folder(emit)
    sent, model = _job(job, sets)
    work = client.submit("plan", **sent, **options)
    _say_where(client, work)
    done = _followed(client, work, _say_line)
    result = done["result"] or {}
    if sent["model_config_json"] is not None and isinstance(result.get("model"), dict):
        result["model"]["name"] = model  # there it is the file that came along
    if emit is not None and "bundle.zip" in done["files"]:
        unpack(client.bundle(work), emit)
        result["bundle"] = str(emit.absolute())
    code = _print_result(done, as_json)
    if emit is None or code != EXIT_DONE:
        return code
    if "bundle.zip" not in done["files"]:
        echo(f"{emit} was not written: nothing is safe", err=True)
        return EXIT_NOTHING_FITS
    if not as_json:
        from autotune.bundle.planned import MARK

        echo(f"bundle: {emit.absolute()} ({MARK})")
    return code


def run_there(
    url: str,
    job: Path | None,
    sets: Sequence[str],
    *,
    out: Path | None,
    attach: str | None,
    resume: str | None,
    as_json: bool,
) -> int:
    """Return what `autotune run` does, by a service; the exit code. Ctrl-C leaves the run alone,
    and says how to come back to it.

    Args:
        sets: of all flags.
        attach: the id of a run, to follow it.
        resume: the id of a run that was cancelled or failed, to go on with it.
    """
    from autotune.cli.views.live import remote_view
    from autotune.client import Client

    id = attach or resume
    if id and not re.fullmatch(r"[0-9a-f]{16}", id):
        hint = "the service printed it when you asked for the run; its pages show it, too"
        raise user_error(f"`{id}` is not the id of a run", hint=hint)
    client = Client(url)
    bundle = None if out is None else out.absolute() / "bundle"
    refuse_used_folder(bundle)
    work, after = {"kind": "run", "id": id}, 0
    if resume:
        after = client.get("run", resume)["events"]
        work = client.resume(work)
    elif not attach:
        work = client.submit("run", **_job(job, sets)[0])
    _say_where(client, work)
    try:
        with remote_view(_say_line, quiet=is_quiet()) as hear:
            done = _followed(client, work, hear, after)
    except KeyboardInterrupt:
        back = f"autotune run --server {url} --attach {work['id']}"
        echo(f"the run goes on without you; come back with: {back}", err=True)
        return EXIT_INTERRUPTED
    if "bundle.zip" in done["files"] and bundle is not None:
        unpack(client.bundle(work), bundle)
        done["result"] = {**(done["result"] or {}), "bundle": str(bundle)}
    code = _print_result(done, as_json)
    if "bundle.zip" in done["files"]:
        there = f"{client.url}/api/v1/runs/{work['id']}/bundle.zip"
        say(f"bundle: {bundle or there}")
    if done["state"] in ("cancelled", "failed"):
        back = f"autotune run --server {url} --resume {work['id']}"
        echo(f"{done['state']}; go on with: {back}", err=True)
    return code


def unpack(data: bytes, folder: Path) -> None:
    """Write the files of a bundle's archive into a folder, and nothing beside it.

    Raises:
        MachineError: it is none, or not one that a service makes.
    """
    where = str(folder)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        size = sum(entry.file_size for entry in entries)
        if len(entries) > _MOST_FILES or size > _MOST_BYTES:
            raise machine_error("the bundle from the service is too large", where=where)
        files = [(_place(entry, folder), entry, archive.read(entry)) for entry in entries]
    except AutotuneError:
        raise
    except Exception as error:  # of zipfile, and of three that decompress
        what = f"the bundle from the service cannot be read: {error or type(error).__name__}"
        raise machine_error(what, where=where) from None
    for place, entry, content in files:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        if entry.external_attr >> 16 & stat.S_IXUSR:
            make_executable(place)


def _place(entry: zipfile.ZipInfo, folder: Path) -> Path:
    """Return where a file of the archive goes: in the folder, as a file of its own."""
    name = PurePosixPath(entry.filename)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    strange = {"..", "/"} & set(name.parts) or "\\" in entry.filename or ":" in entry.filename
    if strange or len(name.parts) < 2 or kind not in (0, stat.S_IFREG):
        what = f"the bundle from the service has an unexpected file: {entry.filename}"
        raise machine_error(what, where=str(folder))
    return folder.joinpath(*name.parts[1:])


def refuse_used_folder(folder: Path | None) -> None:
    """Refuse a folder for a bundle that is neither new nor empty; None: nothing is written."""
    if folder is not None:
        refuse_used(folder)


def _job(path: Path | None, sets: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the job as it is sent: as its file and flags have it, judged here, paths absolute; a
    bare config goes along where nothing beside it is needed. And its model, as it is called
    here."""
    from autotune.space.job_file.load import load_job

    if path is None and not sets:
        hint = "name a job file, or give --model, --dataset and so on"
        raise user_error("a job is needed", hint=hint)
    job, _ = load_job(path, sets, elsewhere=True, imported=say_imported(path))
    data, config = job.model_dump(mode="json", exclude_unset=True), None
    model = Path(job.model)
    if model.suffix == ".json" and model.is_file() and isinstance(data["dataset"], dict):
        try:
            config = json.loads(model.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise user_error(f"cannot read the model's config: {error}", where=str(model)) from None
        data["model"] = _CONFIG
    return {"job": data, "model_config_json": config}, job.model


def _say_where(client: Any, work: dict[str, Any]) -> None:
    now = client.get(work["kind"], work["id"])
    waits = f", {now['ahead']} before it" if now["ahead"] else ""
    where = f"{client.url}/{work['kind']}s/{work['id']}"
    say(f"{work['kind']} {work['id']} is {now['state']}{waits}: {where}")


def _followed(
    client: Any,
    work: dict[str, Any],
    hear: Callable[[dict[str, Any]], None],
    after: int = 0,
) -> dict[str, Any]:
    """Return the work when it has ended; `hear` hears of what happens meanwhile."""
    lines: list[str] = []
    cancelling = False
    while True:
        try:
            for event in client.follow(work, after):
                after = event["number"]
                if event["kind"] == "line":
                    lines.append(event["data"]["text"])
                hear(event)
            done: dict[str, Any] = client.wait(work, after)
            break
        except KeyboardInterrupt:
            if work["kind"] == "run" or cancelling:
                raise
            cancelling = True
            with contextlib.suppress(UserError):  # it has ended by now
                client.cancel(work)
    error = done["error"] or ""
    if error and (is_quiet() or error.splitlines()[0] not in lines):
        echo(error, err=True)
    return done


def _say_line(event: dict[str, Any]) -> None:
    if event["kind"] == "line":
        say(event["data"]["text"])


def _print_result(done: dict[str, Any], as_json: bool) -> int:
    """Print what the command printed; its exit code."""
    if as_json and done["result"] is not None:
        print_json(done["result"])
    elif not as_json:
        echo(done["text"] or "", nl=False)
    if done["state"] == "cancelled":
        return EXIT_INTERRUPTED
    code = done["exit_code"]
    return code if code in _CODES else EXIT_MACHINE
