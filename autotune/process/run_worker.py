"""Runs a worker in a child; as a program, in an interpreter of its own.

The forkserver starts that program where it cannot fork. It is slower by the imports, and otherwise
the same. The request's environment counts from the start, before anything that is imported can have
started CUDA; and for a GPU nothing is imported before the worker has looked at it, so that what the
imports take there counts as the training's. Ranks are forked from this process: it must not have
started CUDA itself.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.process.messages import ChildFolder, read_json
from autotune.process.proc import name_template


def run_worker(name: str, folder: Path) -> int:
    """Run `module:function` on a folder; return 0, its exit code, or 1 with a trace on stderr."""
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)(folder)
    except SystemExit as error:
        if isinstance(error.code, int):
            return error.code & 0xFF
        if error.code is None:
            return 0
        with contextlib.suppress(Exception):
            print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        import traceback

        with contextlib.suppress(Exception):
            traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def main(worker: str, path: Path, preload: Sequence[str]) -> int:
    """Run the worker in this interpreter; return its exit code."""
    request = read_json(ChildFolder(path=path).request)
    fields = request if isinstance(request, dict) else {}
    os.environ.update(fields.get("environment") or {})
    if fields.get("device_kind") != "cuda":
        for name in preload:
            importlib.import_module(name)
    name_template(os.getpid())
    return run_worker(worker, path)


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    finally:
        os._exit(exit_code)
