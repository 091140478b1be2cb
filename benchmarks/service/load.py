"""Whether people and works get on with each other on a busy machine.

    python -m benchmarks.service.load --minutes 2

A service makes a plan and a run at once, one of each after the other, for all the minutes. Beside
them `--readers` follow their events, each cut off now and then and back after the last number that
it had, and `--clients` look at pages, a second after the last one came. The row that it adds says
how long pages took, which events a reader lost, had twice or out of order, which works needed a
second attempt because their lease was lost, and the service's memory.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from autotune.client import Client
from autotune.facts.stack import installed
from autotune.process.proc import resident_bytes
from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import served
from tests.server.restarts import small_job

RESULTS = Path(__file__).parent / "results.jsonl"
PAGES = ("/", "/works", "/plans/{plan}", "/runs/{run}", "/api/v1/runs")
CUT_S = 10.0
"""A reader is cut off after so long, in the mean."""
READ_S = 60.0
"""Readers that have not come to the end of an ended work by then have lost what is missing."""


@dataclass
class Load:
    """People at a service.

    Attributes:
        ids: of the plan and the run that are under way.
        latencies_s: of each page that was answered, by its path.
        errors: requests and readers that were not answered with 200.
    """

    client: httpx2.AsyncClient
    ids: dict[str, str] = field(default_factory=dict)
    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    async def look(self, pages: tuple[str, ...]) -> None:
        """Ask for one page after the other."""
        while True:
            page = random.choice(pages)
            began = time.monotonic()
            try:
                answer = await self.client.get(page.format(**self.ids))
                if answer.status_code != 200:
                    self.errors.append(f"{answer.status_code} {page}")
            except httpx2.HTTPError as error:
                self.errors.append(repr(error))
            self.latencies_s[page].append(time.monotonic() - began)
            await asyncio.sleep(random.expovariate(1.0))

    async def follow(self, path: str, heard: list[int]) -> None:
        """Hear the events of a work to its end."""
        while True:
            until = time.monotonic() + random.expovariate(1 / CUT_S)
            last = {"Last-Event-ID": str(heard[-1])} if heard else {}
            try:
                async with self.client.stream("GET", path, headers=last) as answer:
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


async def works(load: Load, api: Client, kind: Any, job: str, readers: int, until: float) -> Any:
    """Works of a kind, one after the other, and what their readers heard: a row for each."""
    rows: list[dict[str, Any]] = []
    while not rows or time.monotonic() < until:
        device = {"device": "h100"} if kind == "plan" else {}
        work = await asyncio.to_thread(api.submit, kind, job, **device)
        load.ids[kind] = work["id"]
        heard: list[list[int]] = [[] for _ in range(readers)]
        path = f"/api/v1/{kind}s/{work['id']}/events"
        reading = [asyncio.create_task(load.follow(path, one)) for one in heard]
        done = await asyncio.to_thread(api.wait, work)
        _, late = await asyncio.wait(reading, timeout=READ_S) if reading else (set(), set())
        for task in late:
            task.cancel()
        complete = set(range(1, done["events"] + 1))
        rows.append(
            {
                **{name: done[name] for name in ("kind", "state", "outcome", "attempt", "events")},
                "seconds": round(done["ended"] - done["started"], 1),
                "lost": sum(len(complete - set(one)) for one in heard),
                "doubled": sum(len(one) - len(set(one)) for one in heard),
                "out_of_order": sum(one != sorted(one) for one in heard),
            }
        )
    return rows


async def measure(url: str, pid: int, job: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a load that goes on for some minutes."""
    first_bytes, until = resident_bytes(pid), time.monotonic() + 60 * options.minutes
    limits = httpx2.Limits(max_connections=options.readers + options.clients)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        load = Load(client)
        making = [
            asyncio.create_task(works(load, Client(url), kind, job, options.readers // 2, until))
            for kind in ("plan", "run")
        ]
        while len(load.ids) < 2:
            await asyncio.sleep(0.05)
        looking = [
            asyncio.create_task(load.look(tuple(options.pages))) for _ in range(options.clients)
        ]
        made = await asyncio.gather(*making)
        for task in looking:
            task.cancel()
    rows = [row for some in made for row in some]
    pages = {page: shares(taken) for page, taken in sorted(load.latencies_s.items())}
    return {
        "readers": options.readers,
        "clients": options.clients,
        "cores": len(os.sched_getaffinity(0)),
        "pages_s": {"all": shares(sum(load.latencies_s.values(), [])), **pages},
        **{name: sum(row[name] for row in rows) for name in ("lost", "doubled", "out_of_order")},
        "leases_lost": sum(row["attempt"] - 1 for row in rows),
        "service_bytes": [first_bytes, resident_bytes(pid)],
        "errors": load.errors[:20],
        "works": rows,
    }


def shares(taken_s: list[float]) -> dict[str, float]:
    """How many, the median, and the 95th percentile."""
    ordered = sorted(taken_s)
    marks = {f"p{mark}": round(ordered[len(ordered) * mark // 100], 3) for mark in (50, 95)}
    return {"count": len(ordered), **marks}


def main() -> None:
    """Measure once, and add a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="0: one plan and one run")
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--probes", type=int, default=4)
    parser.add_argument("--pages", nargs="+", default=PAGES, help="paths that the clients look at")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-load-") as scratch:
        base = Path(scratch)
        with served(base, base / "cache") as service:
            write_model(service.models / "tiny", LLAMA)
            job = small_job(service.models / "tiny" / "config.json", options.probes)
            row = asyncio.run(measure(service.url, service.process.pid, job, options))
    print(json.dumps(row, indent=1))
    row |= {"utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "versions": installed().versions}) + "\n")


if __name__ == "__main__":
    main()
