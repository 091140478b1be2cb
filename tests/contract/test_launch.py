"""A command as the user would start it, watched from outside."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from staging import still_running
from stubs import hold

from autotune.process import launch as launching
from autotune.process.launch import LaunchReport, launch
from autotune.process.processor_load import wait_share
from autotune.process.progress import LIMIT_BYTES

MIB = 2**20
TERM_S = 1.0


@pytest.fixture(autouse=True)
def short_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was asked to end is waited for a fifth of the usual time."""
    monkeypatch.setattr(launching, "_TERM_S", TERM_S)


def start(tmp_path: Path, *command: str, timeout_s: float = 30.0) -> LaunchReport:
    return launch(
        command,
        log=tmp_path / "launch.log",
        environment={"GREETING": "hello"},
        timeout_s=timeout_s,
        gpus=(),
    )


def bash(tmp_path: Path, script: str, timeout_s: float = 30.0) -> LaunchReport:
    return start(tmp_path, "bash", "-c", script, timeout_s=timeout_s)


def python(tmp_path: Path, script: str, timeout_s: float = 30.0) -> LaunchReport:
    return start(tmp_path, sys.executable, "-c", script, timeout_s=timeout_s)


def noted(tmp_path: Path) -> list[int]:
    return [int(pid) for pid in (tmp_path / "pids").read_text(encoding="ascii").split()]


def texts(report: LaunchReport) -> list[str]:
    return [text for _, text in report.lines]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9)])
def test_the_exit_code_is_the_commands_own(tmp_path: Path, script: str, code: int) -> None:
    report = bash(tmp_path, script)
    assert (report.exit_code, report.timed_out) == (code, False)
    assert report.seconds < 10


def test_lines_carry_the_time_at_which_they_came(tmp_path: Path) -> None:
    report = bash(tmp_path, "echo $GREETING; sleep 0.4; echo world >&2")
    assert texts(report) == ["hello", "world"]
    (first, _), (second, _) = report.lines
    assert first >= 0 and 0.35 <= second - first < 5
    assert (tmp_path / "launch.log").read_bytes() == b"hello\nworld\n"


def test_a_last_line_without_a_newline_is_not_lost(tmp_path: Path) -> None:
    report = bash(tmp_path, "printf 'one\\ntwo'")
    assert texts(report) == ["one", "two"]
    assert (tmp_path / "launch.log").read_bytes() == b"one\ntwo"


def test_output_that_is_not_utf8_is_kept_in_the_log_and_shown_as_it_can_be(tmp_path: Path) -> None:
    report = bash(tmp_path, r"printf '\xff\xfe a\nb\n'")
    assert texts(report) == ["\ufffd\ufffd a", "b"]
    assert (tmp_path / "launch.log").read_bytes() == b"\xff\xfe a\nb\n"


def test_much_output_is_kept_whole(tmp_path: Path) -> None:
    report = python(tmp_path, "for n in range(100000): print(n)")
    assert len(report.lines) == 100_000
    assert texts(report)[-1] == "99999"


@pytest.mark.parametrize("end", ["", "\\n"])
def test_output_without_end_fills_neither_the_disk_nor_our_memory(tmp_path: Path, end: str) -> None:
    """Nor does it keep a command from being ended in time."""
    sizes: list[int] = []
    script = f"import os\nwhile True: os.write(1, b'x' * 65535 + b'{end}')"
    report = launch(
        [sys.executable, "-c", script],
        log=tmp_path / "launch.log",
        environment={},
        timeout_s=2.0,
        gpus=(),
        stop=lambda: sizes.append((tmp_path / "launch.log").stat().st_size),
    )
    assert report.timed_out and report.seconds < 15
    assert len(sizes) > 200, "more than it may keep was said"
    assert max(sizes) <= LIMIT_BYTES + MIB
    assert (tmp_path / "launch.log").stat().st_size <= LIMIT_BYTES
    assert max(map(len, texts(report))) <= 4096


def test_a_timeout_kills_the_group_with_what_runs_in_its_background(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > '{tmp_path}/pids'; echo $$ >> '{tmp_path}/pids'; sleep 60"
    report = bash(tmp_path, script, timeout_s=0.5)
    assert report.timed_out
    assert report.seconds < 8
    assert still_running(noted(tmp_path)) == []


def test_a_timeout_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    script = f"trap '' TERM INT; echo $$ > '{tmp_path}/pids'; while :; do sleep 0.1; done"
    report = bash(tmp_path, script, timeout_s=0.5)
    assert (report.timed_out, report.exit_code) == (True, -9)
    assert still_running(noted(tmp_path)) == []


def test_a_timeout_lets_a_launcher_end_the_workers_it_put_in_sessions_of_their_own(
    tmp_path: Path,
) -> None:
    """As torch's elastic launcher does, under `accelerate launch` on several devices."""
    script = f"""
import os, signal, subprocess
worker = subprocess.Popen(["sleep", "60"], start_new_session=True)
def end(*_):
    os.kill(worker.pid, signal.SIGKILL)
    os._exit(9)
signal.signal(signal.SIGTERM, end)
open({str(tmp_path / "pids")!r}, "w").write(str(worker.pid))
worker.wait()
"""
    report = python(tmp_path, script, timeout_s=1.5)
    assert (report.timed_out, report.exit_code) == (True, 9)
    assert still_running(noted(tmp_path)) == []


@pytest.mark.parametrize("detach", ["", "setsid "])
def test_a_grandchild_that_holds_the_output_open_is_not_waited_for(
    tmp_path: Path, detach: str
) -> None:
    script = f"echo begun; {detach}sleep 7 & echo $! > '{tmp_path}/pids'; echo done; exit 4"
    report = bash(tmp_path, script)
    assert (report.exit_code, report.timed_out) == (4, False)
    assert report.seconds < 5
    assert texts(report) == ["begun", "done"]
    if not detach:
        assert still_running(noted(tmp_path)) == []


def test_a_command_that_closes_its_output_early_is_waited_for(tmp_path: Path) -> None:
    report = bash(tmp_path, "echo last words; exec >&- 2>&-; sleep 2; exit 3")
    assert (report.exit_code, report.timed_out) == (3, False)
    assert report.seconds >= 2 > TERM_S
    assert texts(report) == ["last words"]


def test_a_command_that_closes_its_output_early_still_times_out(tmp_path: Path) -> None:
    report = bash(tmp_path, "exec >&- 2>&-; sleep 60", timeout_s=0.5)
    assert report.timed_out
    assert report.seconds < 8


def test_the_peak_is_that_of_the_hungriest_process(tmp_path: Path) -> None:
    # It stays for a while: where this process has been as large, only looking at it tells.
    allocate = (
        "import time; x = bytearray(200 * 2**20); x[::4096] = b'x' * len(x[::4096]); time.sleep(1)"
    )
    report = start(tmp_path, "bash", "-c", f'{sys.executable} -c "{allocate}"; true')
    assert 200 * MIB <= report.peak_resident_bytes < 300 * MIB


def test_the_peak_is_not_that_of_whoever_starts_the_command(tmp_path: Path) -> None:
    data = hold(300 * MIB)
    report = bash(tmp_path, "sleep 0.4")
    assert report.peak_resident_bytes < 50 * MIB
    del data


def test_an_interrupted_launch_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from autotune.process.launch import launch
home = Path({str(tmp_path)!r})
launch(["bash", "-c", f"echo $$ > '{{home}}/pids'; kill -INT {{os.getpid()}}; sleep 60 & sleep 60"],
       log=home / "log", environment={{}}, timeout_s=30, gpus=())
"""
    began = time.monotonic()
    report = python(tmp_path, script + "\n")
    assert "KeyboardInterrupt" in texts(report)[-1]
    assert time.monotonic() - began < 10
    assert still_running(noted(tmp_path)) == []
    assert os.getpid() not in noted(tmp_path)


def test_a_timeout_kills_what_left_the_group_of_a_command_that_does_not_end_it(
    tmp_path: Path,
) -> None:
    script = (
        f"trap '' TERM; setsid sleep 60 & echo $! > '{tmp_path}/pids'; while :; do sleep 1; done"
    )
    report = bash(tmp_path, script, timeout_s=0.5)
    assert (report.timed_out, report.exit_code) == (True, -9)
    assert still_running(noted(tmp_path)) == []


RANK = """
import os, pathlib, time
pathlib.Path(f"rank-{os.environ['RANK']}").write_text(f"{os.getpid()} {os.getsid(0)}")
time.sleep(300)
"""


def test_ranks_in_sessions_of_their_own_end_when_the_one_who_asked_is_killed(
    tmp_path: Path,
) -> None:
    """torch's elastic launcher starts them so, under `accelerate launch` of several processes."""
    (tmp_path / "rank.py").write_text(RANK)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from autotune.process.launch import launch\n"
        "launch([sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node', '2',\n"
        "        '--master-port', '0', 'rank.py'],\n"
        "       log=Path('log'), environment={}, timeout_s=300, gpus=())\n"
    )
    asker = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    files = [tmp_path / f"rank-{rank}" for rank in range(2)]
    deadline = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline and asker.poll() is None
        time.sleep(0.05)
    pids_of_ranks = [[int(word) for word in file.read_text().split()] for file in files]
    assert all(pid == session for pid, session in pids_of_ranks)  # as it is thought to be
    children = descendants(asker.pid)
    assert {pid for pid, _ in pids_of_ranks} < children
    asker.kill()
    asker.wait()
    assert still_running(sorted(children), within_s=10) == []


def descendants(pid: int) -> set[int]:
    """The processes that `pid` has started, and those that they have."""
    pids_found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            pids_found |= {child} | descendants(child)
    return pids_found


def test_a_launch_ends_when_the_one_who_asked_is_killed(tmp_path: Path) -> None:
    """`kill -9` of us: nobody is left to end what we started, but the guard."""
    code = (
        "from pathlib import Path\n"
        "from autotune.process.launch import launch\n"
        "launch(['bash', '-c', 'sleep 300 & echo $! > inner; echo $$ > outer; wait'],\n"
        "       log=Path('log'), environment={}, timeout_s=300, gpus=())\n"
    )
    asker = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 20
    while not (tmp_path / "outer").exists() or not (tmp_path / "outer").read_text():
        assert time.monotonic() < deadline and asker.poll() is None
        time.sleep(0.02)
    pids = [int((tmp_path / name).read_text()) for name in ("inner", "outer")]
    asker.kill()
    asker.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_threads_that_wait_for_a_core_are_seen_from_outside(tmp_path: Path) -> None:
    """Two that compute on one core: each waits half of the time; where others compute, too, their
    sessions have shares of their own, and it was a quarter."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os, time; os.sched_setaffinity(0, {{{core}}}); end = time.monotonic() + 2.5\n"
    spin += "while time.monotonic() < end: pass"
    rival = subprocess.Popen([sys.executable, "-c", spin.replace("2.5", "60")])
    try:
        report = python(tmp_path, spin)
    finally:
        rival.kill()
        rival.wait()
    share = wait_share(report.processor_waits, 0.5, 2.0, threads=1)
    assert share is not None and 0.15 < share < 1.05
