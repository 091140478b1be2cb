"""What DeepSpeed compiles at first use (minutes), kept for later test runs on this machine.

python -m tests.cpu.compiled        compiles it, if that has not been done
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

COMPILE = """
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder, ShareMemCommBuilder
for builder in (ShareMemCommBuilder, CPUAdamBuilder):
    builder().load()
"""


def kept_folder() -> Path:
    """Return the folder of the user's cache for this stack on this processor."""
    versions = [version(name) for name in ("deepspeed", "torch")]
    processor = [
        line
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith(("model name", "flags", "Features"))
    ]
    parts = [sys.prefix, sys.version, *versions, *sorted(set(processor))]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "autotune-tests" / f"compiled-{key}"


KEPT = kept_folder()
"""Looked up before a test has a home of its own."""


def compile_once(folder: Path) -> None:
    """Put the compiled code into a folder of all processes of a test run, unless it is there."""
    with FileLock(folder / "of all tests.lock"):
        if not (folder / "done").exists():
            compile_into(folder, KEPT)
            (folder / "done").touch()


def compile_into(folder: Path, kept: Path) -> None:
    """Put the compiled code into `folder`, on all cores, and keep it. Each run works on a copy: a
    process that is killed while it loads leaves a lock behind."""
    if kept.exists():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder)},
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, range(os.cpu_count() or 1)),
    )
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as draft:
        leave_out = shutil.ignore_patterns("*lock")
        whole = shutil.copytree(folder, Path(draft) / "whole", ignore=leave_out)
        with contextlib.suppress(OSError):  # another test run was faster
            whole.rename(kept)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if not KEPT.exists():
            compile_into(Path(scratch), KEPT)
