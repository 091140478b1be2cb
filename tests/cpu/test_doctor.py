"""`autotune doctor` on this machine, and with a torch that cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IN_THIS_PROCESS = """
import sys
from autotune.cli import main
try:
    main(["doctor", "--json"], prog_name="autotune")
finally:
    print(sorted({"torch", "transformers", "trl"} & set(sys.modules)), file=sys.stderr)
"""
NAMES = (
    *("driver", "torch and CUDA", "imports", "/dev/shm"),
    *("autotune's cache", "models and data of the hub", "temporary files"),
)


def findings(folder: Path, *command: str, **variables: str) -> tuple[Any, str]:
    """What the doctor prints, whose exit code must be that of its findings, and its stderr."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = json.loads(done.stdout)
    failed = [finding for finding in found["findings"] if finding["state"] == "fail"]
    assert (done.returncode, found["fail"]) == (bool(failed), len(failed)), done.stderr
    return found["findings"], done.stderr


def test_this_machine_is_looked_at_by_a_process_that_imports_no_torch(tmp_path: Path) -> None:
    found, err = findings(tmp_path, "-c", IN_THIS_PROCESS)
    assert err.strip().splitlines()[-1] == "[]"
    by_name = {finding["name"]: finding for finding in found}
    assert set(NAMES) <= set(by_name)
    assert by_name["imports"]["state"] == "ok", by_name["imports"]
    imported = set(by_name["imports"]["found"].removesuffix(" can be imported").split(", "))
    assert imported >= {"torch", "transformers", "datasets", "accelerate", "peft", "deepspeed"}
    assert by_name["torch and CUDA"]["found"].startswith("torch 2.")
    assert all(bool(finding["remedy"]) == (finding["state"] != "ok") for finding in found)
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ImportError('libcudart.so.13: no such file')", "cannot be imported: ImportError"),
        ("import os; os.abort()", "importing torch: SIGABRT ended it"),
        ("raise SystemExit('not for this machine')", "SystemExit: not for this machine"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_one_finding(
    tmp_path: Path, code: str, told: str
) -> None:
    (tmp_path / "torch.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found, _ = findings(tmp_path, "-m", "autotune", "doctor", "--json", PYTHONPATH=path)
    about_torch = [f for f in found if "torch" in f["found"]]
    (finding,) = (f for f in about_torch if f["state"] != "ok")
    assert (finding["name"], finding["state"]) == ("imports", "fail")
    assert told in finding["found"]
