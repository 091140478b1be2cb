"""The pages that are generated are up to date, and the README says what is there."""

import re
import subprocess
import sys
from pathlib import Path

from autotune.cli import COMMANDS
from autotune.space.loading.load import load_job

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run scripts/make_docs.py"


def test_the_job_of_the_readme_is_valid(tmp_path: Path) -> None:
    (job,) = blocks("yaml")
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-data").mkdir()
    file = tmp_path / "job.yaml"
    file.write_text(job, encoding="utf-8")
    loaded, _ = load_job(file)
    assert loaded.global_batch_size == 64
    assert loaded.training == {"learning_rate": 2e-4}
    assert loaded.budget.minutes == 20


def test_every_command_of_the_readme_exists() -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert lines
    for line in lines:
        words = line.split("#")[0].split()
        if words[0] == "autotune":
            assert words[1] in COMMANDS
        elif words[0] == "bash":
            assert words[1].startswith("runs/")
        else:
            assert (ROOT / words[0]).is_file(), line


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_decision_and_page_of_the_house_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.split("## The rooms")[1].split("## The rules")[0]
    for name in re.findall(r"\b(\w+\.py)\b", rooms):
        assert list((ROOT / "autotune").rglob(name)), name
