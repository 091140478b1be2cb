"""A worker in an interpreter of its own: what the forkserver runs where it cannot fork.

Slower by the imports, and otherwise the same. The request's environment counts from the start,
before anything that is imported can have started CUDA; and for a GPU nothing is imported before
the worker has looked at it, so that what the imports take there counts as the training's. Ranks
are forked from this process: it must not have started CUDA itself.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.process.messages import ChildFolder, read_json
from autotune.process.run_worker import run_worker
from autotune.process.template import name_template


def main(worker: str, path: Path, preload: Sequence[str]) -> int:
    """Run the worker; its exit code."""
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
