"""The settings that are simulated, under their names."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.scale.cluster import Failures
from benchmarks.scale.simulation import SIZES, Setting

CLUSTER = 1024
LANES = (1, 2, 4, 8, 16, 32)
NODE_DAYS = 24 * 1000
"""Hours of 1,000 node-days."""
RATES = {
    "RSC-2": 2.34 / NODE_DAYS,
    "Llama 3": 3.8 / NODE_DAYS,
    "RSC-1": 6.5 / NODE_DAYS,
    "spot, 1% an hour": 0.01,
    "spot, 10% an hour": 0.1,
}
"""Deaths of a node of 8 GPUs in an hour. RSC-1 and RSC-2: from memory of arXiv 2410.21680, to be
checked. Llama 3: 419 unexpected interruptions in 54 days on 16,384 H100. Spot: scenarios."""
MOST = max(RATES.values())
USUAL = Failures(per_hour=RATES["RSC-1"])
SLOW_S = 65.0
"""Seconds until the defaults of Ray have named a node whose cable was cut."""


@dataclass(frozen=True)
class Case:
    """A setting of a table.

    Attributes:
        seeds: runs of each problem.
    """

    table: str
    row: str
    setting: Setting
    seeds: int = 1

    @property
    def name(self) -> str:
        """Its name, which no other has."""
        at_once = f"{self.setting.at_once} at once"
        return f"{self.table}: {self.setting.gpus} GPUs, {self.row}, {at_once}"


def cases() -> Iterator[Case]:
    """Yield all cases, table by table."""
    for gpus in SIZES:
        for lanes in LANES:
            if lanes * gpus <= CLUSTER:
                setting = Setting(CLUSTER, gpus, lanes, failures=USUAL)
                yield Case("lanes", "usual", setting, seeds=2 if gpus == 8 and lanes <= 8 else 1)
    usual = Setting(CLUSTER, 8, failures=USUAL)
    others = {
        "a job of 1 hour": replace(usual, job_hours=1.0),
        "a job of 100 hours": replace(usual, job_hours=100.0),
        "probes 10 times as long": replace(usual, longer=10.0),
        "a quarter of the noise": replace(usual, noise=0.25),
    }
    for row, setting in others.items():
        for lanes in (1, 2, 4, 8):
            yield Case("others", row, replace(setting, at_once=lanes))
    for row, per_hour in RATES.items():
        is_spot = row.startswith("spot")
        for detected_s in (15.0, SLOW_S) if per_hour == MOST else (15.0,):
            failures = Failures(per_hour, detected_s)
            for lanes in (1, 2, 4) if per_hour == MOST else (1, 2):
                setting = Setting(CLUSTER, 64, lanes, failures=failures)
                known = f"{row}, known after {detected_s:.0f} s"
                yield Case("failures", known, setting, seeds=2 if is_spot else 1)
    for gpus, clusters in {8: (8, 16, 64), 64: (64, 128, 256)}.items():
        for cluster in clusters:
            setting = Setting(cluster, gpus, 2, failures=Failures(MOST))
            yield Case("room", f"a cluster of {cluster} GPUs, spot, 10% an hour", setting, seeds=2)
