"""Whether a service under load disturbs the runs that its worker makes.

    python -m benchmarks.service.load --minutes 10
    python -m benchmarks.service.load --minutes 0    # one run, and the pages when nothing happens

A service makes a tiny job's run, some times alone, then one after the other beside `--readers` live
event streams and `--rate` requests a second that go on for all the minutes, then some times alone
again. A row says each probe's speed, the latency of the requests, the service's memory, and whether
a reader lost or doubled an event: each reader is cut off now and then, and goes on after the last
number that it had. At the end each page is asked for a hundred times, one after the other, by a
client that stands back for nobody.
"""

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2

from autotune.client import Client
from autotune.facts.stack import installed
from autotune.process.niceness import session_standing_back
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import Served, served
from tests.server.restarts import small_job

RESULTS = Path(__file__).parent / "results.jsonl"
PAGES = ("/plan", "/runs", "/history", "/api/v1/runs", "/api/v1/health")
CUT_S = 20.0
"""A reader is cut off after so long, in the mean."""
READ_S = 600.0
"""Readers that have not come to the end of the work by then have lost what is missing."""


@dataclass
class Load:
    """Requests to a service for as long as the block lasts, and readers of one run after the other.

    Attributes:
        readers: how many follow each run.
        rate: requests a second.
        latencies_s: of each request that was answered, in the order of the answers.
        errors: requests and readers that were not answered with 200.
    """

    url: str
    readers: int
    rate: float
    latencies_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        limits = httpx2.Limits(max_connections=self.readers + 50)
        self._client = httpx2.AsyncClient(base_url=self.url, limits=limits, timeout=60)
        self._ended = asyncio.Event()
        self._asking = asyncio.create_task(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        await self._asking
        await self._client.aclose()

    async def follow(self, work: str) -> list[list[int]]:
        """The numbers of the events that each reader of a run heard, to its end."""
        numbers: list[list[int]] = [[] for _ in range(self.readers)]
        reading = asyncio.gather(*(self._read(work, heard) for heard in numbers))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, READ_S)
        return numbers

    async def _read(self, work: str, heard: list[int]) -> None:
        while True:  # to the end of the work: what does not come by then is lost
            until = time.monotonic() + random.expovariate(1 / CUT_S)
            last = {"Last-Event-ID": str(heard[-1])} if heard else {}
            try:
                path = f"/api/v1/runs/{work}/events"
                async with self._client.stream("GET", path, headers=last) as answer:
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

    async def _ask(self) -> None:
        asked, due = set(), time.monotonic()
        while self.rate and not self._ended.is_set():
            task = asyncio.create_task(self._request(random.choice(PAGES)))
            asked.add(task)
            task.add_done_callback(asked.discard)
            due += 1 / self.rate  # a client that is late does not ask less
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
        await asyncio.gather(*asked)

    async def _request(self, path: str) -> None:
        began = time.monotonic()
        try:
            answer = await self._client.get(path)
            if answer.status_code != 200:
                self.errors.append(f"{answer.status_code} {path}")
        except httpx2.HTTPError as error:
            self.errors.append(repr(error))
        self.latencies_s.append(time.monotonic() - began)


async def block(
    service: Served, job: str, load: Load, least_runs: int, minutes: float, results: Path
) -> None:
    """Runs one after the other beside a load that goes on; a row of the results for each."""
    until = time.monotonic() + 60 * minutes
    async with load:
        count = 0
        while count < least_runs or time.monotonic() < until:
            row = await run_beside(service.url, job, load)
            row |= {"service_bytes": resident_bytes(service.process.pid)}
            add_row(results, row)
            count += 1


async def run_beside(url: str, job: str, load: Load) -> dict[str, Any]:
    """The row of a run, and of the load beside it."""
    client, first, first_error = Client(url), len(load.latencies_s), len(load.errors)
    work = await asyncio.to_thread(client.submit, "run", job)
    reading = asyncio.create_task(load.follow(work["id"]))
    done = await asyncio.to_thread(client.wait, work)
    numbers = await reading
    events = await asyncio.to_thread(lambda: list(client.follow(work)))
    complete = list(range(1, len(events) + 1))
    probes = [event["data"]["measurement"] for event in events if event["kind"] == "probed"]
    ordered = sorted(load.latencies_s[first:])
    return {
        "readers": load.readers,
        "rate": load.rate,
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
        "lost": sum(len(set(complete) - set(heard)) for heard in numbers),
        "doubled": sum(len(heard) - len(set(heard)) for heard in numbers),
        "out_of_order": sum(heard != sorted(heard) for heard in numbers),
        "errors": load.errors[first_error:][:20],
    }


def add_row(results: Path, row: dict[str, Any]) -> None:
    """Add a row, with what it was measured with, and print it."""
    print(json.dumps(row), flush=True)
    row |= {"utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "versions": installed().versions}) + "\n")


def idle_latencies(url: str, run: str) -> dict[str, dict[str, float]]:
    """Seconds that each page takes when nothing happens: median and 95th percentile of 100."""
    latencies: dict[str, dict[str, float]] = {}
    with httpx2.Client(base_url=url, timeout=60) as client:
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
    """Measure alone, under load and alone again, and add the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of load, at once")
    parser.add_argument("--alone", type=int, default=4, help="runs before and after it")
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

            def measure(load: Load, least: int, minutes: float = 0.0) -> None:
                asyncio.run(block(service, job, load, least, minutes, options.results))

            measure(Load(service.url, 0, 0.0), max(options.alone, 1))
            if options.minutes:
                load = Load(service.url, options.readers, options.rate)
                measure(load, 1, options.minutes)
                measure(Load(service.url, 0, 0.0), options.alone)
            run = Client(service.url).list("run")["items"][0]["id"]
            add_row(options.results, {"idle": idle_latencies(service.url, run)})


if __name__ == "__main__":
    main()
