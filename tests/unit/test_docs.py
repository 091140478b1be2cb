"""The pages that are generated are up to date, and documents name what is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click

from autotune.cli import COMMANDS
from autotune.cli import main as cli
from autotune.space.job_file.load import load_job

ROOT = Path(__file__).parents[2]
FOLDERS = ("autotune", "benchmarks", "docs", "examples", "scripts", "search_spaces", "tests")
PATHS = [f"/{path.relative_to(ROOT)}" for name in FOLDERS for path in (ROOT / name).rglob("*")]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PRESENT = [page for page in PAGES if page.name != "log.md" and page.parent.name != "decisions"]
"""What tells of today. The log and the decisions tell of files as they were."""
TO_COME = {"benchmarks/recorded/"}
"""A folder that the first records of a GPU will make."""
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


def test_the_pages_name_commands_and_options_that_exist() -> None:
    wrong = []
    for page in [*PRESENT, *sorted((ROOT / "examples").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"^```(?:bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            lines = [line.removeprefix("$ ") for line in block.splitlines()]
            wrong += [
                (str(page.relative_to(ROOT)), line)
                for line in lines
                if line.startswith("autotune ") and not exists(shlex.split(line, comments=True)[1:])
            ]
    assert not wrong


def exists(words: list[str]) -> bool:
    """Whether there is such a command with such options."""
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        if found is None:
            return False
        command = found
    theirs = words.index("--") if "--" in words else len(words)
    options = {name for parameter in command.get_params(context) for name in parameter.opts}
    return {word.split("=")[0] for word in words[:theirs] if word.startswith("-")} <= options


def test_links_of_documents_lead_somewhere() -> None:
    missing = [
        (str(page.relative_to(ROOT)), target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert not missing


def test_paths_that_documents_name_exist() -> None:
    missing = []
    for page in PRESENT:
        text = page.read_text(encoding="utf-8")
        words = set(re.findall(r"`([\w./-]+)`", text))
        commands = " ".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL))
        for name in words.union(re.findall(r"[\w./-]+", commands)) - TO_COME:
            if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
                exists = (ROOT / name).exists()
            else:  # inside autotune/, or a name alone
                exists = any(f"{path}/".endswith(f"/{name.rstrip('/')}/") for path in PATHS)
                exists = exists or name not in words or not name.endswith((".py", "/"))
            missing += [] if exists else [(str(page.relative_to(ROOT)), name)]
    assert not missing


def test_lines_of_documents_end_at_120_characters_but_for_tables_and_screens() -> None:
    long = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        long += [line for line in text.splitlines() if len(line) > 120 and line[0] != "|"]
    assert not long


def test_lists_are_written_as_the_site_reads_them() -> None:
    """A list inside a list is indented by four spaces, and an empty line stands before a list."""
    wrong = []
    for page in PRESENT:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        inner = re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE)
        joined = re.findall(r"^(?![-*\s]|\d+\.).+\n[-*] .*", text, re.MULTILINE)
        wrong += [(page.name, line) for line in inner + joined]
    assert not wrong


def test_every_decision_and_page_of_the_house_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.split("## The rooms")[1].split("## The rules")[0]
    for name in re.findall(r"\b(\w+\.py)\b", rooms):
        assert list((ROOT / "autotune").rglob(name)), name


def test_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    sources = ("README.md", "peers/README.md", "peers/published.md", "search/peers/peers.md")
    rows = [
        line
        for name in sources
        for line in (ROOT / "benchmarks" / name).read_text(encoding="utf-8").splitlines()
    ]
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    measured = page.partition("## Whose answer")[2]
    quoted = [line for line in measured.splitlines() if line.startswith("|")]
    assert len(quoted) > 20
    assert not set(quoted) - set(rows)


def test_the_list_of_decisions_has_each_of_them() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d.*?)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == [file.name for file in sorted(folder.glob("0*.md"))]
