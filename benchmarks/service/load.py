"""Whether a service under load disturbs the run that its worker makes.

    python -m benchmarks.service.load --minutes 20
    python -m benchmarks.service.load --minutes 0    # one run, and the pages when nothing happens

A service is started with a tiny job's run, alone and then beside `--readers` live event streams and
`--rate` requests a second, in turns (A B A B). A row says each probe's speed, the latency of the
requests, the service's memory, and whether a reader lost or doubled an event: each reader is cut
off now and then, and goes on after the last number that it had. At the end each page is asked for
a hundred times, one after the other, by a client that stands back for nobody.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from autotune.client import Client
from autotune.facts.stack import installed
from autotune.process.niceness import session_standing_back
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import served
from tests.server.restarts import small_job

RESULTS = Path(__file__).parent / "results.jsonl"
PAGES = ("/plan", "/runs", "/history", "/api/v1/runs", "/api/v1/health")
CUT_S = 20.0
"""A reader is cut off after so long, in the mean."""
READ_S = 600.0
"""Readers that have not come to the end of the work by then have lost what is missing."""


@dataclass
class Load:
    """Readers and requests of one service.

    Attributes:
        numbers: of each reader, the events that it has heard, in their order.
        latencies_s: of each request that was answered.
        errors: requests and readers that were not answered with 200.
    """

    url: str
    work: str
    readers: int
    rate: float
    numbers: list[list[int]] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def run(self, ended: asyncio.Event) -> None:
        """Load the service until told to end."""
        limits = httpx2.Limits(max_connections=self.readers + 50)
        async with httpx2.AsyncClient(base_url=self.url, limits=limits, timeout=60) as client:
            self.numbers = [[] for _ in range(self.readers)]
            tasks = [self._read(client, heard) for heard in self.numbers]
            reading = asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), READ_S)
            await asyncio.gather(reading, self._ask(client, ended), return_exceptions=True)

    async def _read(self, client: httpx2.AsyncClient, heard: list[int]) -> None:
        while True:  # to the end of the work: what does not come by then is lost
            until = time.monotonic() + random.expovariate(1 / CUT_S)
            last = {"Last-Event-ID": str(heard[-1])} if heard else {}
            try:
                path = f"/api/v1/runs/{self.work}/events"
                async with client.stream("GET", path, headers=last) as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("id: "):
                            heard.append(int(line[4:]))
                        if line == "event: end":
                            return
                        if time.monotonic() > until:
                            break
            except httpx2.HTTPError as error:
                self.errors.append(repr(error))
                await asyncio.sleep(1)

    async def _ask(self, client: httpx2.AsyncClient, ended: asyncio.Event) -> None:
        asked, due = set(), time.monotonic()
        while not ended.is_set():
            task = asyncio.create_task(self._request(client, random.choice(PAGES)))
            asked.add(task)
            task.add_done_callback(asked.discard)
            due += 1 / self.rate  # a client that is late does not ask less
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
        await asyncio.gather(*asked)

    async def _request(self, client: httpx2.AsyncClient, path: str) -> None:
        began = time.monotonic()
        try:
            answer = await client.get(path)
            if answer.status_code != 200:
                self.errors.append(f"{answer.status_code} {path}")
        except httpx2.HTTPError as error:
            self.errors.append(repr(error))
        self.latencies_s.append(time.monotonic() - began)


async def loaded_run(url: str, job: str, readers: int, rate: float) -> dict[str, Any]:
    """A run beside a load; without readers, alone."""
    client = Client(url)
    work = await asyncio.to_thread(client.submit, "run", job)
    load, ended = Load(url, work["id"], readers, rate), asyncio.Event()
    task = asyncio.create_task(load.run(ended)) if readers else None
    done = await asyncio.to_thread(client.wait, work)
    ended.set()
    if task is not None:
        await task
    events = await asyncio.to_thread(lambda: list(client.follow(work)))
    complete = list(range(1, len(events) + 1))
    probes = [event["data"]["measurement"] for event in events if event["kind"] == "probed"]
    ordered = sorted(load.latencies_s)
    return {
        "readers": readers,
        "rate": rate if readers else 0,
        "state": done["state"],
        "outcome": done["outcome"],
        "seconds": round(done["ended"] - done["started"], 1),
        "probes": [
            {name: probe[name] for name in ("outcome", "tokens_per_s", "relative_uncertainty")}
            for probe in probes
        ],
        "requests": len(ordered),
        "latency_s": {
            name: round(ordered[int(share * (len(ordered) - 1))], 4)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        }
        if ordered
        else None,
        "events": len(events),
        "lost": sum(len(set(complete) - set(heard)) for heard in load.numbers),
        "doubled": sum(len(heard) - len(set(heard)) for heard in load.numbers),
        "out_of_order": sum(heard != sorted(heard) for heard in load.numbers),
        "errors": load.errors[:20],
    }


def idle_latencies(url: str, run: str) -> dict[str, dict[str, float]]:
    """Seconds that each page takes when nothing happens: median and 95th percentile of 100."""
    latencies: dict[str, dict[str, float]] = {}
    with httpx2.Client(base_url=url) as client:
        for path in (*PAGES, f"/runs/{run}", f"/runs/{run}/report"):
            taken = []
            for _ in range(100):
                began = time.monotonic()
                client.get(path).raise_for_status()
                taken.append(time.monotonic() - began)
            name = path.replace(run, "ID")
            latencies[name] = {
                "p50": round(sorted(taken)[49], 4),
                "p95": round(sorted(taken)[94], 4),
            }
    return latencies


def resident_bytes(pid: int) -> int:
    """Resident memory of the service."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


@contextlib.contextmanager
def as_elsewhere() -> Iterator[None]:
    """Clients are on other machines: here they take what the others leave. The service stands back
    by itself, in a session of its own."""
    with session_standing_back(19):
        yield


def main() -> None:
    """Run in turns until the time is over, and add the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--probes", type=int, default=4)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-load-") as scratch, as_elsewhere():
        base = Path(scratch)
        with served(base, base / "cache", {"limits": {"live": 400}, "niceness": 19}) as service:
            write_model(service.models / "tiny", LLAMA)
            job = small_job(service.models / "tiny" / "config.json", options.probes)
            until = time.monotonic() + 60 * options.minutes
            turn = 0
            while turn == 0 or time.monotonic() < until:
                readers = options.readers if turn % 2 else 0
                row = asyncio.run(loaded_run(service.url, job, readers, options.rate))
                row |= {
                    "service_bytes": resident_bytes(service.process.pid),
                    "versions": installed().versions,
                    "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                }
                speeds = [probe["tokens_per_s"] for probe in row["probes"] if probe["tokens_per_s"]]
                print(json.dumps({n: row[n] for n in row if n != "versions"}), flush=True)
                print("median tokens/s of its probes:", statistics.median(speeds or [0]))
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                turn += 1
            run = Client(service.url).list("run")["items"][0]["id"]
            row = {"idle": idle_latencies(service.url, run), "versions": installed().versions}
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
