"""A real launch whose memory creeps and whose speed decays: a soak sees both."""

import json
import os
from pathlib import Path

import pytest

from autotune.run import soak, verdict
from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, write_job

SPOILT = """
import os, sys, threading, time

def spoil():
    while not hasattr(sys.modules.get("transformers.trainer"), "Trainer"):
        time.sleep(0.05)
    if "--max_steps" not in sys.argv:  # no launch
        return
    if not os.path.exists(os.environ["LAUNCHED"]):
        open(os.environ["LAUNCHED"], "w").close()
        return
    trainer = sys.modules["transformers.trainer"].Trainer
    real, kept, held, began = trainer.training_step, [], 0, []

    def training_step(*arguments, **named):
        nonlocal held
        now = time.monotonic()
        began.append(now)
        lasted = now - began[0]
        kept.append(b"x" * int(10 * 2**20 * lasted - held))
        held += len(kept[-1])
        loss = real(*arguments, **named)
        time.sleep((time.monotonic() - now) * min(lasted / 12, 2))
        return loss

    trainer.training_step = training_step

threading.Thread(target=spoil, daemon=True).start()
"""
"""10 MiB a second that are never given back, and steps that take up to 3 times as long, more and
more through all of it: of the second launch, which is the soak."""


@pytest.fixture
def short_soaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A soak of seconds may be asked for, too."""
    monkeypatch.setattr(soak, "LEAST_S", 5.0)
    monkeypatch.setattr(verdict, "SPEED_TOLERANCE", 10.0)  # beside other tests


@pytest.mark.nightly("launches")
@pytest.mark.usefixtures("short_soaks")
def test_a_soak_finds_what_creeps_and_what_decays(
    autotune: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"num_train_epochs": 10000}
    write_job(autotune.folder, budget={"probes": 1, "minutes": 5}, fixed=FEW, training=long)
    autotune("run", "job.yaml", "--out", "run", "--no-verify")
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "sitecustomize.py").write_text(SPOILT, encoding="utf-8")
    monkeypatch.setenv("LAUNCHED", str(tmp_path / "launched"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "spoilt"), prepend=os.pathsep)
    ill = json.loads(autotune("verify", "run", "--soak", "24s", "--json", expect=1))
    assert ill["soaked_s"] and not ill["verified"], ill
    assert "its memory creeps by " in ill["reason"] and " a minute: the limit of " in ill["reason"]
    assert "its speed decays: " in ill["reason"]
    assert "between 5.0 s and 24" in autotune.refused("verify", "run", "--soak", "4s")
