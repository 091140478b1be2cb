"""The process that has the libraries in memory when a child begins: what the child's own pages of
them are held against (`memory.py`). Forked processes know it from the one they are forked from."""

import os

_pids: list[int] = []


def name_template(pid: int) -> None:
    """Make process `pid` the template, here and in what is forked from here."""
    _pids[:] = [pid]


def template_pid() -> int:
    """Return the process with the libraries; this one's parent, unless another was named."""
    return _pids[0] if _pids else os.getppid()
