"""`autotune run --script` and `--command`: what is refused before anything is started."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.cli import main
from autotune.cli.script import limits_of
from autotune.errors import UserError


@pytest.mark.parametrize(
    ("sets", "limits"),
    [
        (["budget=5m"], {"budget": {"minutes": 5.0}}),
        (["budget=7"], {"budget": {"probes": 7}}),
        (["budget.probes=3", "budget.total=30m"], {"budget": {"probes": 3, "total": "30m"}}),
        (["devices.memory=20GiB"], {"devices": {"memory": "20GiB"}}),
        (["headroom=0.2"], {"headroom": 0.2}),
        (
            ["optim=adamw_torch", "fixed.packing=false"],
            {"fixed": {"optim": "adamw_torch", "packing": False}},
        ),
    ],
)
def test_flags_are_limits_or_pinned_knobs(sets: list[str], limits: dict[str, Any]) -> None:
    assert limits_of(sets) == limits


@pytest.mark.parametrize("name", ["devices.count", "training.seed", "budget.hours"])
def test_what_only_a_job_has_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"`{name}` is not a limit"):
        limits_of([f"{name}=1"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--script", "absent.py"], "there is no such file"),
        (["--command"], "the command must follow `--`"),
        (["job.yaml", "--script", "mine.py"], "a script is searched without a job"),
        (["--script", "mine.py", "--command", "--", "x"], "the command names the script"),
        (["--script", "mine.py", "--no-history"], "--no-history: the search of a script"),
        (["--script", "mine.py", "--track", "wandb"], "pip install wandb"),
        (["--resume", "run", "--out", "other"], "a resumed run keeps its folder"),
        (["--resume", "run", "--script", "mine.py"], "a resumed run keeps its script"),
        (["--resume", "run"], "its record of the command is damaged"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_left_behind(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    (tmp_path / "job.yaml").write_text("", encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "script.json").write_text('{"words": []}', encoding="utf-8")
    result = CliRunner().invoke(main, ["run", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert not (tmp_path / "runs").exists()
