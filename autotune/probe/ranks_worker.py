"""The ranks of one probe: forked from the probe's child, watched by it, and reported as one.

The child that the forkserver made stays what its parent watches. Where a request asks for several
processes it forks them and waits; they are of its session and group, so that a kill of one
reaches all. Where DeepSpeed offloads for a single process it forks none: the child itself trains,
as the only rank of a process group. The first rank that fails ends the probe: those that wait for
it in a collective would wait for ever. Each rank has a folder of its own (`rank-0`, ...) for its
reply; the first one's progress is the probe's.

The rendezvous listens on a socket that was bound before any rank was made, on a port that the
kernel chose, and that the first rank inherits: no other process can take it in between. Where the
ranks are on several machines, such a child is on each; the first one's tells the port.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.probe import worker
from autotune.probe.extensions import keep_extensions_in_run
from autotune.probe.protocol import ProbeRequest
from autotune.probe.rank_replies import (
    OF_MEMORY,
    SILENT,
    folder_of_all,
    merged_reply,
    rank_folder,
)
from autotune.process.descendants import die_with_parent
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress
from autotune.training.spec import MEETS, Place

SETTLE_S = 0.3
"""Time for the ranks that break with the first one, before the others are killed."""
Folders = Mapping[int, ChildFolder]
"""The files of each rank that is here."""


@dataclass(frozen=True, kw_only=True)
class RankEnding:
    """The end of a rank: by itself with an exit code, or by a signal."""

    rank: int
    exit_code: int | None
    signal: int | None
    reply: dict[str, Any] | None


def probe(path: Path) -> None:
    """Measure the candidate of `path/request.json`, in as many processes as it asks for."""
    folder = ChildFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request))
    if not request.parsed_sharding.in_group:
        worker.probe(folder, request)
        return
    keep_extensions_in_run(request)
    listener = None if request.part.node else socket.create_server((request.part.host, 0))
    if listener and request.parsed_sharding.num_processes == 1:
        place = _place(0, request, listener)
        listener.detach()  # it is the rendezvous's from here on
        worker.probe(folder, request, place)
        return
    root = folder_of_all(path, request.part)
    folders = {rank: rank_folder(root, rank) for rank in request.local_ranks}
    failure = _first_failure(_start(folder, folders, request, listener), folders)
    if failure is None:
        replies = [read_json(files.reply) or {} for files in folders.values()]
        write_json(folder.reply, merged_reply(replies, request.local_ranks[0]))
    elif failure.reply is not None:
        write_json(folder.reply, {**failure.reply, "failed_rank": failure.rank})
    else:
        write_json(path / SILENT, {"rank": failure.rank})
        _end_like(failure)


def _start(
    folder: ChildFolder, folders: Folders, request: ProbeRequest, listener: socket.socket | None
) -> dict[int, int]:
    """Fork the ranks; return the rank of each pid."""
    supervisor = os.getpid()
    ranks = {}
    if listener and request.part.nodes > 1:
        Progress(folder.progress).tell(MEETS, port=listener.getsockname()[1])
    for rank, rank_files in folders.items():
        rank_files.path.mkdir(parents=True, exist_ok=True)
        place = _place(rank, request, listener)
        if not place.local_rank:
            rank_files.progress.symlink_to(os.path.relpath(folder.progress, rank_files.path))
        pid = os.fork()
        if pid == 0:
            if listener and rank:
                listener.close()
            _become_rank(supervisor, rank_files, request, place)
        ranks[pid] = rank
    if listener:
        listener.close()
    return ranks


def _place(rank: int, request: ProbeRequest, listener: socket.socket | None) -> Place:
    """Return the place of rank `rank`; the first machine's `listener` is bound where all meet."""
    return Place(
        rank=rank,
        count=request.parsed_sharding.num_processes,
        local_rank=rank - request.local_ranks[0],
        local_count=len(request.local_ranks),
        host=request.part.host,
        port=listener.getsockname()[1] if listener else request.part.port,
        listener=listener.fileno() if listener and rank == 0 else None,
    )


def _become_rank(supervisor: int, folder: ChildFolder, request: ProbeRequest, place: Place) -> None:
    """Train, write the reply and end; never returns."""
    try:
        die_with_parent()
        if os.getppid() == supervisor:
            worker.probe(folder, request, place)
    finally:
        os._exit(0)


def _first_failure(ranks: dict[int, int], folders: Folders) -> RankEnding | None:
    """Wait for all ranks; with the first failure end the others, and return it."""
    running = dict(ranks)
    while running:
        pid, status = os.wait()
        ending = _ending(running.pop(pid), status, folders)
        if _is_well(ending):
            continue
        time.sleep(SETTLE_S)
        endings = [ending]
        for peer, rank in running.items():
            peer_pid, status = os.waitpid(peer, os.WNOHANG)
            if peer_pid:
                endings.append(_ending(rank, status, folders))
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(peer, signal.SIGKILL)
                os.waitpid(peer, 0)
        return root_failure([ending for ending in endings if not _is_well(ending)], folders)
    return None


def root_failure(endings: list[RankEnding], folders: Folders) -> RankEnding:
    """Return the failure that the others followed: memory that ran out, whatever the others died
    of; else a death without a reply; else the earliest reply."""
    full = [ending for ending in endings if (ending.reply or {}).get("outcome") in OF_MEMORY]
    silent = [ending for ending in endings if ending.reply is None]
    if silent and not full:
        return silent[0]
    endings = full or endings
    return min(endings, key=lambda ending: folders[ending.rank].reply.stat().st_mtime_ns)


def _ending(rank: int, status: int, folders: Folders) -> RankEnding:
    reply = read_json(folders[rank].reply)
    return RankEnding(
        rank=rank,
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        reply=reply if isinstance(reply, dict) else None,
    )


def _is_well(ending: RankEnding) -> bool:
    """True if a rank trained to its end; it may have ended above its limit."""
    return ending.reply is not None and "failure" in ending.reply and not ending.reply["failure"]


def _end_like(ending: RankEnding) -> None:
    """End as the rank did, for the parent to name it."""
    if ending.signal is not None:
        with contextlib.suppress(OSError):  # of SIGKILL there is nothing to restore
            signal.signal(ending.signal, signal.SIG_DFL)
        os.kill(os.getpid(), ending.signal)
    os._exit(ending.exit_code or 1)
