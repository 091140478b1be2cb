"""What scripts/virtual_gpu says where it cannot start, and its exit codes."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.virtual_gpu import run

ROOT = Path(__file__).parents[2]
LOCKED = "2.13.0"
TOOLS = ("bash", "cat", "cut", "dirname", "env", "find", "flock", "gcc", "grep", "nm", "readelf")
MORE_TOOLS = ("sed", "sha256sum", "touch", "uname")
CONSTRAINTS = f"torch=={LOCKED}\n"


@dataclass(frozen=True)
class Said:
    code: int
    text: str


def said_by(*command: str | Path, **variables: str) -> Said:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    environment.pop("PYTHON", None)
    completed = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in completed.stdout
    return Said(completed.returncode, completed.stdout)


@dataclass(frozen=True)
class Checkout:
    """A checkout whose .venv-cuda is made, with a torch of a few files."""

    root: Path

    @property
    def site(self) -> Path:
        return next((self.root / ".venv-cuda" / "lib").glob("python3*")) / "site-packages"

    def give_torch(self, version: str, links: Mapping[str, str]) -> None:
        """A torch whose libraries, by their names, link one other."""
        lib = self.site / "torch" / "lib"
        lib.mkdir(parents=True)
        (lib.parent / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")
        for name, linked in links.items():
            link = self.root / linked
            empty = ("-x", "c", "/dev/null", "-shared")
            subprocess.run(["gcc", *empty, "-o", link, f"-Wl,-soname,{linked}"], check=True)
            flags = ("-x", "none", "-Wl,--no-as-needed", link)
            subprocess.run(["gcc", *empty, "-o", lib / name, *flags], check=True)

    def run_script(self, *arguments: str, without: str = "") -> Said:
        """What the script says, with few programs on PATH."""
        programs = self.root / "programs"
        programs.mkdir()
        for name in (*TOOLS, *MORE_TOOLS):
            tool = shutil.which(name)
            assert tool is not None, name
            if name != without:
                (programs / name).symlink_to(tool)
        script = self.root / "scripts" / "virtual_gpu"
        return said_by(script, *arguments, PATH=str(programs))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a checkout"
    root.mkdir()
    for name in ("scripts", "tests", "autotune"):
        (root / name).symlink_to(ROOT / name)
    (root / "constraints.txt").write_text(CONSTRAINTS, encoding="utf-8")
    venv.create(root / ".venv-cuda", symlinks=True)
    digest = hashlib.sha256(CONSTRAINTS.encode()).hexdigest()[:16]
    (root / ".venv-cuda" / ".installed").write_text(f"{digest}\n{root}\n", encoding="utf-8")
    return Checkout(root)


@pytest.mark.parametrize(("tool", "package"), [("gcc", "gcc libc6-dev"), ("nm", "binutils")])
def test_a_missing_compiler_is_named_with_its_package(
    checkout: Checkout, tool: str, package: str
) -> None:
    answer = checkout.run_script("--", "true", without=tool)
    assert answer.code == 3
    assert f"virtual_gpu: {tool} is missing" in answer.text
    assert f"apt-get install {package}" in answer.text


@pytest.mark.parametrize(
    ("version", "links", "message"),
    [
        ("", {}, f"has torch (none), and constraints.txt has {LOCKED}"),
        (
            f"{LOCKED}+cpu",
            {"libtorch_cpu.so": "libm.so.6"},
            f"{LOCKED}+cpu, which is no CUDA build",
        ),
        ("2.8.0+cu130", {"libtorch_cuda.so": "libcudart.so.13"}, f"has {LOCKED}"),
        (f"{LOCKED}+cu128", {"libtorch_cuda.so": "libcudart.so.12"}, "links libcudart.so.12, and"),
        (
            f"{LOCKED}+cu130",
            {"libtorch_cuda.so": "libcunew.so.1"},
            "links libcunew.so.1, and there",
        ),
    ],
)
def test_another_torch_than_the_locked_cuda_build_is_refused(
    checkout: Checkout, version: str, links: Mapping[str, str], message: str
) -> None:
    if version:
        checkout.give_torch(version, links)
    answer = checkout.run_script("--", "true")
    assert answer.code == 3, answer.text
    assert message in answer.text
    assert "hint: remove .venv-cuda; the next call of scripts/virtual_gpu makes it" in answer.text


def test_the_real_libraries_beside_torch_are_refused(checkout: Checkout) -> None:
    checkout.give_torch(f"{LOCKED}+cu130", {"libtorch_cuda.so": "libcudart.so.13"})
    (checkout.site / "nvidia").mkdir()
    answer = checkout.run_script("--setup")
    assert answer.code == 3
    assert "has nvidia-* packages" in answer.text


def test_the_locked_torch_is_taken(checkout: Checkout) -> None:
    checkout.give_torch(f"{LOCKED}+cu130", {"libtorch_cuda.so": "libcudart.so.13"})
    marker = checkout.root / ".venv-cuda" / "virtual_gpu" / ".built"
    marker.parent.mkdir()
    marker.touch()
    assert checkout.run_script("--setup") == Said(0, "")


def test_an_environment_over_a_real_gpus_is_refused(checkout: Checkout) -> None:
    (checkout.root / ".venv-cuda" / ".installed").unlink()
    (checkout.root / ".venv" / "bin").mkdir(parents=True)
    (checkout.root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    stamp = f"hash\n{checkout.root}\ncuda\n"
    (checkout.root / ".venv" / ".installed").write_text(stamp, encoding="utf-8")
    answer = checkout.run_script("--setup")
    assert answer.code == 3
    assert ".venv holds torch with NVIDIA's libraries" in answer.text


def test_a_second_caller_waits_for_the_environment_that_the_first_makes(checkout: Checkout) -> None:
    """Each would empty what the other installs."""
    (checkout.root / ".venv-cuda" / ".installed").unlink()
    python = checkout.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    makes = 'case $* in "-m venv"*) echo begins >>"$LOG"; sleep 1; echo ends >>"$LOG"; exit 1; esac'
    python.write_text(f"#!/bin/sh\n{makes}\n", encoding="utf-8")
    python.chmod(0o755)
    log = checkout.root / "log"
    script = checkout.root / "scripts" / "virtual_gpu"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHON"}
    callers = [
        subprocess.Popen(
            [script, "--setup"], env={**environment, "LOG": str(log)}, stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    assert [caller.wait(timeout=60) for caller in callers] == [3, 3]
    assert log.read_text(encoding="utf-8").split() == ["begins", "ends"] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("--kind", "h2000", "--", "true"), "`h2000` is not a known kind of GPU"),
        (("--devices", "0", "--", "true"), "--devices must be 1 to 16, but got 0"),
        (("--devices", "two", "--", "true"), "invalid int value: 'two'"),
        (("--kind", "h200"), "there is no command to run"),
        (("--", "no-such-command"), "there is no command `no-such-command`"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    call: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    script = ROOT / "tests" / "virtual_gpu" / "run.py"
    answer = said_by(sys.executable, script, "--libraries", tmp_path, "--virtual", *call)
    assert answer.code == 2
    assert message in answer.text


def test_a_call_that_cannot_be_is_refused_before_anything_is_installed(checkout: Checkout) -> None:
    (checkout.root / ".venv-cuda" / ".installed").unlink()
    (checkout.root / ".venv" / "bin").mkdir(parents=True)
    (checkout.root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    answer = checkout.run_script("--devices", "99", "--virtual", "--", "true")
    assert answer == Said(2, "virtual_gpu: --devices must be 1 to 16, but got 99\n")


def test_a_real_gpu_is_not_hidden_unless_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "DRIVER", tmp_path)
    call = ["run.py", "--libraries", str(tmp_path), "--", "true"]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as caught:
        run.main()
    assert caught.value.code == 3
    error_text = capsys.readouterr().err
    assert "has an NVIDIA GPU, and a virtual one would hide it" in error_text
    assert "hint: run the command without scripts/virtual_gpu, or add --virtual" in error_text
    monkeypatch.setattr(sys, "argv", [*call[:1], "--virtual", *call[1:]])
    arguments, kind = run.read_call()
    assert arguments.command == ["true"] and kind is not None


@pytest.mark.parametrize("setup_fails", [False, True])
def test_the_rest_of_the_suite_runs_where_the_virtual_gpu_cannot(
    setup_fails: bool, tmp_path: Path
) -> None:
    fakes = {
        "scripts/setup": "",
        "scripts/virtual_gpu": f"echo virtual_gpu $1; exit {3 if setup_fails else 0}",
        ".venv/bin/python": "echo python $*",
        ".venv-ppo/bin/python": "",
    }
    for name, text in fakes.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        file.chmod(0o755)
    (tmp_path / "examples" / "quickstart" / "build").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts" / "test")
    answer = said_by(tmp_path / "scripts" / "test")
    first_line, *virtual = answer.text.splitlines()
    assert first_line.startswith("python -m pytest") and first_line.endswith("tests/unit")
    if setup_fails:
        assert answer.code == 3
        assert virtual[0] == "virtual_gpu --setup"
        assert "tests/virtual_gpu did not run; all the rest passed" in virtual[1]
    else:
        assert answer.code == 0
        assert virtual[:2] == ["virtual_gpu --setup", "virtual_gpu --kind"]
