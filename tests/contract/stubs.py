"""Workers that end in every way a probe can end. Each runs in a child of the forkserver.

`settings.json` in the folder holds what a test wants to tell a worker; `pids` holds the processes
that must be gone afterwards, one a line.
"""

import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOREVER_S = 120.0
SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


def settings(folder: Path) -> Any:
    return json.loads((folder / "settings.json").read_text(encoding="utf-8"))


def note_pid(folder: Path) -> None:
    with (folder / "pids").open("a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def progress(folder: Path, data: bytes) -> None:
    with (folder / "progress.jsonl").open("ab") as file:
        file.write(data)


def fills_its_disk(folder: Path) -> None:
    """Ends as who cannot write: by an exception, which it may be able to reply."""
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
    except OSError as error:
        reply = {"outcome": "crash", "reason": f"OSError: {error.strerror}"}
        (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def hold(size: int) -> bytearray:
    """Resident memory: every page of it touched."""
    data = bytearray(size)
    data[:: resource.getpagesize()] = b"x" * len(data[:: resource.getpagesize()])
    return data


def silent(folder: Path) -> None:
    """Ends well, and says nothing."""


def says(folder: Path) -> None:
    """Leaves the given text as its reply."""
    (folder / "reply.json").write_text(settings(folder)["reply"], encoding="utf-8")


def says_its_surroundings(folder: Path) -> None:
    """The server, the variables that are asked for, and the folder it works in, one a line."""
    values = [os.environ.get(name, "") for name in settings(folder)["names"]]
    text = "\n".join([str(os.getppid()), *values, str(Path.cwd())])
    (folder / "surroundings").write_text(text, encoding="utf-8")


def meets(folder: Path) -> None:
    """Ends, with the given exit code, when each of the given folders has its process."""
    note_pid(folder)
    while not all((Path(peer) / "pids").exists() for peer in settings(folder)["peers"]):
        time.sleep(0.02)
    os._exit(settings(folder)["code"])


def draft_only(folder: Path) -> None:
    (folder / "reply.json.draft").write_text('{"outcome": "ok", "reason": "x"}', encoding="utf-8")


def large_reply(folder: Path) -> None:
    reply = {"outcome": "crash", "reason": "x" * (30 * 2**20), "unknown": list(range(500_000))}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def deaf(folder: Path) -> None:
    """Ignores every polite signal and uses the processor, as does its child."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.fork()
    note_pid(folder)
    while True:
        pass


def asleep(folder: Path) -> None:
    note_pid(folder)
    time.sleep(FOREVER_S)


def stopped(folder: Path) -> None:
    """As by `kill -STOP`."""
    note_pid(folder)
    os.kill(os.getpid(), signal.SIGSTOP)


def waits_for_a_compiler(folder: Path) -> None:
    """Uses no processor itself: what it started does."""
    subprocess.run([sys.executable, "-c", SPIN.replace("20", "1.5")], check=True)


def waits_for_a_forgotten_compiler(folder: Path) -> None:
    """The same, and it never ends."""
    subprocess.run([sys.executable, "-c", SPIN], check=True)


def talks_while_asleep(folder: Path) -> None:
    for number in range(6):
        progress(folder, json.dumps({"event": "tick", "number": number}).encode() + b"\n")
        time.sleep(0.25)


def talks_once(folder: Path) -> None:
    """Works on in silence, with a hundredth of a core."""
    progress(folder, b'{"event": "tick"}\n')
    while True:
        time.sleep(0.02)
        sum(range(5000))


def holds_and_sleeps(folder: Path) -> None:
    data = hold(settings(folder)["bytes"])
    time.sleep(FOREVER_S)
    del data


def loads_then_trains(folder: Path) -> None:
    """Holds much, then its first step begins, with little; it stays until it has been looked at."""
    data = hold(settings(folder)["loading"])
    time.sleep(0.6)
    del data
    progress(folder, b'{"event": "step", "n": 0}\n')
    data = hold(settings(folder)["training"])
    time.sleep(0.6)
    del data


def forks_while_holding(folder: Path) -> None:
    """Private pages that its children have from it, and memory that all of them share."""
    private, count = hold(settings(folder)["private"]), settings(folder)["children"]
    shared = mmap.mmap(-1, settings(folder)["shared"])
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            touched = shared[:: resource.getpagesize()]
            time.sleep(0.8)
            os._exit(len(touched) % 2)
        children.append(pid)
    touched = shared[:: resource.getpagesize()]
    for pid in children:
        os.waitpid(pid, 0)
    del private, touched


def starts_a_large_program(folder: Path) -> None:
    """One that is no Python, and holds as much as it is told to in a shell's variable."""
    size = settings(folder)["bytes"]
    text = f"x=$(head -c {size} /dev/zero | tr '\\0' x); sleep 1"
    subprocess.run(["bash", "-c", text], check=True)


def holds_and_is_killed(folder: Path) -> None:
    data = hold(settings(folder)["bytes"])
    os.kill(os.getpid(), signal.SIGKILL)
    del data


def killed(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def waits_to_be_killed(folder: Path) -> None:
    """So many times; then it ends well."""
    told, note = settings(folder), folder / "pids"
    before = len(note.read_text(encoding="ascii").splitlines()) if note.exists() else 0
    note_pid(folder)
    if before < told["times"]:
        time.sleep(FOREVER_S)
    (folder / "reply.json").write_text(json.dumps(told["reply"]), encoding="utf-8")


def aborts(folder: Path) -> None:
    os.abort()


def segfaults(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves_one_in_its_group(folder: Path) -> None:
    if os.fork() == 0:
        note_pid(folder)
        time.sleep(FOREVER_S)
    wait_for_pids(folder, 1)


def leaves_one_that_escaped(folder: Path) -> None:
    escape(folder)
    wait_for_pids(folder, 1)


def escapes_and_sleeps(folder: Path) -> None:
    escape(folder)
    wait_for_pids(folder, 1)
    note_pid(folder)
    time.sleep(FOREVER_S)


def escape(folder: Path) -> None:
    """A daemon, as the textbook has it: a session of its own, and a parent that is gone."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            note_pid(folder)
            time.sleep(FOREVER_S)
        os._exit(0)
    os.waitpid(pid, 0)


def wait_for_pids(folder: Path, count: int) -> None:
    path = folder / "pids"
    while not path.exists() or len(path.read_text(encoding="ascii").splitlines()) < count:
        time.sleep(0.005)


def shouts(folder: Path) -> None:
    """100 MB on stdout, and a last line; then it replies."""
    line = b"x" * 1023 + b"\n"
    for _ in range(100):
        os.write(1, line * 1024)
    time.sleep(0.12)
    print("the last line")
    (folder / "reply.json").write_text('{"outcome": "crash", "reason": "loud"}', encoding="utf-8")


def shouts_slowly(folder: Path) -> None:
    """60 MB in 1.2 s."""
    for number in range(20):
        os.write(1, b"x" * (3 * 2**20))
        progress(folder, json.dumps({"event": "tick", "number": number}).encode() + b"\n")
        time.sleep(0.06)


def garbled_output(folder: Path) -> None:
    os.write(1, b"\xff\xfe\x00 not utf-8 \x80\n")
    os.write(2, b"\xc3\x28\n")
    (folder / "reply.json").write_text('{"outcome": "crash", "reason": "x"}', encoding="utf-8")


def garbled_progress(folder: Path) -> None:
    good = [json.dumps({"event": "tick", "number": n}).encode() + b"\n" for n in range(3)]
    progress(folder, good[0] + b"\xff\xfe\x80\n{half\n\n[1, 2]\n7\n" + b"[" * 200_000 + b"\n")
    progress(folder, good[1][:9])
    time.sleep(0.2)
    progress(folder, good[1][9:] + good[2] + b'{"event": "never fini')


def garbled_reply(folder: Path) -> None:
    (folder / "reply.json").write_bytes(b'{"outcome": "ok", "reason": "\xff\xfe"}')


def raises(folder: Path) -> None:
    raise RuntimeError("no such luck")


def raises_without_stderr(folder: Path) -> None:
    sys.stderr.close()
    raise RuntimeError("nobody hears this")


def exits(folder: Path) -> None:
    sys.exit(settings(folder)["code"])


def exits_past_threads(folder: Path) -> None:
    """Returns while a thread that is no daemon would keep an interpreter alive."""
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()


def closes_its_outputs(folder: Path) -> None:
    os.close(1)
    os.close(2)
    (folder / "reply.json").write_text('{"outcome": "crash", "reason": "mute"}', encoding="utf-8")


def kills_the_server(folder: Path) -> None:
    if os.fork() == 0:
        note_pid(folder)
        time.sleep(FOREVER_S)
    wait_for_pids(folder, 1)
    note_pid(folder)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(FOREVER_S)


def stops_the_server(folder: Path) -> None:
    note_pid(folder)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(FOREVER_S)


def ticks(folder: Path) -> None:
    note_pid(folder)
    for number in range(1000):
        progress(folder, json.dumps({"event": "tick", "number": number}).encode() + b"\n")
        time.sleep(0.01)


def wants_too_much(folder: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (256 * 2**20, hard))
    bytearray(2**30)


def names_its_folder(folder: Path) -> None:
    print(folder)
    progress(folder, json.dumps({"event": "here", "folder": str(folder)}).encode() + b"\n")
    reply = {"outcome": "crash", "reason": str(folder)}
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


def lists_its_descriptors(folder: Path) -> None:
    paths = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            paths[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue
    (folder / "reply.json").write_text(json.dumps(paths), encoding="utf-8")


def tells_its_process(folder: Path) -> None:
    """What runs it, its open files, and how much of the libraries it thinks it has not mapped.

    `notes_a_variable`, a module that a test has made and preloads, says what it saw.
    """
    from autotune.process.proc import unmapped_bytes

    noted = sys.modules["notes_a_variable"]
    fields = {
        "command": Path("/proc/self/cmdline").read_text(encoding="utf-8").split("\0"),
        "unmapped_bytes": unmapped_bytes(),
        "seen_at_import": noted.SEEN,
        "descriptors": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()),
    }
    (folder / "reply.json").write_text(json.dumps(fields), encoding="utf-8")


def meets_others(folder: Path) -> None:
    """A part of two machines: the first says where they meet, and fails with the other."""
    part = json.loads((folder / "request.json").read_text(encoding="utf-8"))["part"]
    assert part["port"] == (7 if part["node"] else 0)
    if part["node"] == 0:
        progress(folder, b'{"event": "meets", "port": 7}\n')
        wait_for_pids(folder / "node-1", 1)
        threading.Thread(target=fails_with, args=(folder / "node-1",), daemon=True).start()
    waits_once(folder, ranks=[{"rank": part["node"]}])


def fails_with(other: Path) -> None:
    """Fails as a rank does whose peer has gone."""
    while Path("/proc", (other / "pids").read_text(encoding="ascii").split()[0]).exists():
        time.sleep(0.02)
    if not (other / "reply.json").exists():
        os._exit(1)


def waits_once(folder: Path, **reported: Any) -> None:
    """Replies when it is told to, or at once where it is made once more, unless that may never."""
    note_pid(folder)
    progress(folder, b'{"event": "tick", "number": 0}\n')
    again = "-again" in f"{folder.parent.name}{folder.name}"
    never = (folder.parent / "never").exists()
    while not (folder / "go").exists() and not (again and not never):
        time.sleep(0.02)
        sum(range(5000))  # else it would be a hang
    progress(folder, b'{"event": "tick", "number": 1}\n')
    reply = {"outcome": "ok", "reason": "fine", "tokens_per_s": 12.0, "peak_memory_bytes": 9}
    (folder / "reply.json").write_text(json.dumps({**reply, **reported}), encoding="utf-8")
