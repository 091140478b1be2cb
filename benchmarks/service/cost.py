"""What a request costs the service, in processor seconds: they do not depend on who else works.

    python -m benchmarks.service.cost --label before    # adds a row to costs.jsonl

A service has 30 runs and 20 plans that have ended, and one run under way. Each page is asked for so
many times, one request after the other; then so many readers follow the run while its worker says
events. A row says what the service's process took for a request, and for an event to a reader.
Two versions are compared by running this in the folder of each, in turns (A B A B).
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from autotune.server.store.database import open_database, sqlite_url
from autotune.server.store.queue import Queue
from autotune.server.store.values import Ending, Kind, NewWork, WorkerInfo
from autotune.server.store.works import Works
from benchmarks.service.load import PAGES
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import Served, served
from tests.server.restarts import small_job
from tests.server.simulated_worker import GPU, KNOBS, SURVEYED, SimulatedWorker

COSTS = Path(__file__).parent / "costs.jsonl"
RUNS, PLANS, CANDIDATES = 30, 20, 192
_TICKS = os.sysconf("SC_CLK_TCK")
_ESTIMATE = {
    "tokens_per_s": 1e4,
    "peak_memory_bytes": 2**33,
    "parts": {"weights": 2**30},
    "x": "x" * 900,
}
_ANSWER = {"tokens_per_s": 1e4, "peak_memory_bytes": 2**33, "knobs": KNOBS, "text": "use it"}


def fill(folder: Path, job: str) -> None:
    """Works that have ended, as a service has them after a while."""
    folder.mkdir(parents=True, exist_ok=True)
    database = open_database(sqlite_url(folder / "service.db"))
    works, queue = Works(database), Queue(database)
    worker = WorkerInfo.model_validate({**GPU, "name": "earlier", "machine": "earlier"})
    run = {"outcome": "recommended", "knobs": KNOBS, "measurement": _ANSWER}
    candidates = [{"knobs": KNOBS, "estimate": _ESTIMATE, "fits": True}] * CANDIDATES
    plan = {"answer": _ANSWER, "candidates": candidates}
    results: tuple[tuple[Kind, int, Any], ...] = (("run", RUNS, run), ("plan", PLANS, plan))
    for kind, count, result in results:
        for _ in range(count):
            works.add(NewWork(kind=kind, job=job, method="sft", model="tiny", submitter="local"))
            lease = queue.lease(worker, [kind])
            assert lease is not None
            text = "what the command printed\n" * 40
            queue.finish(
                "earlier", lease.id, Ending(attempt=1, exit_code=0, result=result, text=text)
            )
    database.close()


def processor_s(pid: int) -> float:
    """Seconds of a processor that a process has taken, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def of_pages(service: Served, run: str, count: int) -> dict[str, float]:
    """Milliseconds of a request of each page."""
    costs = {}
    with httpx2.Client(base_url=service.url, timeout=60) as client:
        for path in (*PAGES, run, "/runs/queue"):
            client.get(path).raise_for_status()
            before = processor_s(service.process.pid)
            for _ in range(count):
                client.get(path).raise_for_status()
            took_s = processor_s(service.process.pid) - before
            costs[path.replace(run, "/runs/ID")] = round(1000 * took_s / count, 3)
    return costs


async def of_events(service: Served, worker: SimulatedWorker, readers: int, events: int) -> float:
    """Microseconds of an event to a reader."""
    path = f"/api/v1/runs/{worker.work['id']}/events"
    heard = [0] * readers
    limits = httpx2.Limits(max_connections=readers)

    async def read(client: httpx2.AsyncClient, place: int) -> None:
        async with client.stream("GET", path) as answer:
            async for line in answer.aiter_lines():
                heard[place] += line.startswith("id: ")
                if heard[place] > events:
                    return

    async with httpx2.AsyncClient(base_url=service.url, limits=limits, timeout=120) as client:
        tasks = [asyncio.create_task(read(client, place)) for place in range(readers)]
        while min(heard) < 1:
            await asyncio.sleep(0.05)
        before = processor_s(service.process.pid)
        for number in range(events):
            await asyncio.to_thread(worker.say, "estimating", done=number, total=events)
        await asyncio.gather(*tasks)
        took_s = processor_s(service.process.pid) - before
    return round(1e6 * took_s / readers / events, 1)


def main() -> None:
    """Measure once, and add a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--label", required=True)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--results", type=Path, default=COSTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-cost-") as scratch:
        base = Path(scratch)
        model = write_model(base / "models" / "tiny", LLAMA)
        job = small_job(model)
        fill(base / "service", job)
        with served(base, base / "cache", {"limits": {"live": 400}, "niceness": 0}) as service:
            worker = SimulatedWorker(service)
            run = worker.ask(json.dumps({**json.loads(job), "devices": {"kind": "cuda"}}))
            worker.say("surveyed", **SURVEYED)
            for number in range(4):
                worker.probe(
                    number, "ok", {}, tokens_per_s=1000.0 + number, peak_memory_bytes=2**33
                )
            costs = of_pages(service, run, options.requests)
            event_us = asyncio.run(of_events(service, worker, options.readers, options.events))
    row = {
        "label": options.label,
        "ms_of_a_request": costs,
        "ms_of_the_load": round(statistics.mean(costs[path] for path in PAGES), 3),
        "us_of_an_event_to_a_reader": event_us,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
