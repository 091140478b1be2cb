"""`launch.sh` of a script: its own command, with flags, or with the hook beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.probe.protocol import Measurement
from autotune.run.opening import new_folder
from autotune.script.command import HOOK
from autotune.script.files import ScriptBundle, files_of
from tests.unit.script.looks import looked

PRINTS = "import os, sys; print(os.getcwd(), sys.argv[1:], os.environ.get('AUTOTUNE_SCRIPT'))"


def write(folder: Path, changes: dict[str, Any], *, flags: bool, where: Path) -> Path:
    found = ScriptBundle(
        words=(sys.executable, "-c", PRINTS, "--config", "a b'c.yaml"),
        folder=str(where),
        look=looked(flags=flags),
        changes=changes,
        environment={"MY_VARIABLE": "x:True"},
        probe=0,
        measurement=Measurement(outcome="ok", reason="", tokens_per_s=5.0, peak_memory_bytes=2**30),
        reasons=("it is fast",),
    )
    for name, text in files_of(found, "raise SystemExit('the hook')").items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "launch.sh"


def test_flags_stand_behind_those_of_the_user(nasty_dir: Path) -> None:
    changes = {"gradient_checkpointing": False, "per_device_train_batch_size": 8}
    launch = write(nasty_dir, changes, flags=True, where=nasty_dir)
    command = ["bash", str(launch), "--more", "1"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = ["--config", "a b'c.yaml", "--gradient_checkpointing", "false"]
    words += ["--per_device_train_batch_size", "8", "--more", "1"]
    assert out.strip() == f"{nasty_dir} {words} None"
    assert not (nasty_dir / "sitecustomize.py").exists()


@pytest.mark.parametrize(
    ("flags", "changes"),
    [(False, {"optim": "adamw_torch"}), (True, {"steps_per_generation": None})],
)
def test_what_flags_cannot_say_is_said_by_the_hook(
    flags: bool, changes: dict[str, Any], nasty_dir: Path, tmp_path: Path
) -> None:
    launch = write(nasty_dir, changes, flags=flags, where=tmp_path)
    assert json.loads((nasty_dir / "fields.json").read_text()) == {"fields": changes}
    done = subprocess.run(["bash", str(launch)], capture_output=True, text=True)
    assert "the hook" in done.stderr  # Python has loaded it
    (nasty_dir / "sitecustomize.py").write_text("", encoding="utf-8")
    out = subprocess.run(["bash", str(launch)], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith(f"{nasty_dir}/fields.json")


@pytest.mark.parametrize(
    ("words", "command_line", "by_flags"),
    [
        ("python t.py --lr 1", "t.py --lr 1", True),
        ("torchrun --nproc_per_node 2 t.py", "/a/t.py", True),
        ("bash run.sh", "t.py --lr 1", False),
        ("bash run.sh", "t.py", False),
    ],
)
def test_flags_are_added_only_where_the_script_gets_what_is_typed(
    words: str, command_line: str, by_flags: bool
) -> None:
    bundle = ScriptBundle(
        words=words.split(),
        folder="",
        look=looked(command_line=command_line.split()),
        changes={"optim": "adamw_torch"},
        environment={},
        probe=0,
        measurement=Measurement(outcome="ok", reason=""),
        reasons=(),
    )
    assert bundle.by_flags is by_flags


def test_two_searches_of_one_second_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    first = new_folder("trainer")
    first.mkdir(parents=True)
    assert new_folder("trainer") != first


STACK = """
class TrainingArguments:
    def __init__(self, **fields):
        self.size, self.left = 1, "mine"
        vars(self).update(fields)
        self.__post_init__()

    def __post_init__(self):
        self.total = 10 * self.size
"""
SCRIPT = """
from transformers.training_args import TrainingArguments

class Mine(TrainingArguments):
    def __post_init__(self):
        self.seen = self.size
        super().__post_init__()

print(TrainingArguments().total, Mine(size=3).seen, Mine(size=3).total, Mine().left)
import also
"""


def test_the_hook_sets_fields_before_arguments_check_themselves_and_lets_others_load(
    tmp_path: Path,
) -> None:
    package, other = tmp_path / "transformers", tmp_path / "other"
    package.mkdir()
    other.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "training_args.py").write_text(STACK, encoding="utf-8")
    (other / "sitecustomize.py").write_text("print('the other one')", encoding="utf-8")
    (other / "also.py").write_text("print('imported')", encoding="utf-8")
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT, encoding="utf-8")
    fields = tmp_path / "fields.json"
    fields.write_text(json.dumps({"fields": {"size": 7, "absent": 1}}), encoding="utf-8")
    path = os.pathsep.join(map(str, (HOOK, tmp_path, other)))
    for named, expected in ((str(fields), "70 7 70 mine"), ("", "10 3 30 mine")):
        environment = {**os.environ, "PYTHONPATH": path, "AUTOTUNE_SCRIPT": named}
        command = [sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.stdout.split("\n")[:3] == ["the other one", expected, "imported"], done.stderr
