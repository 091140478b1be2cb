"""Runs a worker, and makes an exit code of however it ended."""

import contextlib
import importlib
import sys
from pathlib import Path


def run_worker(name: str, folder: Path) -> int:
    """Run `module:function` on a folder: 0, what it exits with, or 1 and a trace on stderr."""
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
