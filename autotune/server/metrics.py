"""The service's metrics, for Prometheus. Routes are named by their templates: ids and names in a
request make no new series."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from autotune.probe.protocol import OUTCOMES
from autotune.server.live import Live
from autotune.server.store.events import Line
from autotune.server.store.queue import Queue
from autotune.server.store.values import ENDED, Work
from autotune.server.store.works import Works

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_ANSWERS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_WORKS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200)


class Metrics:
    """The figures of a service since it was started, and how its queue stands."""

    def __init__(self, works: Works, queue: Queue, live: Live) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._registry.register(_Standing(works, queue))
        readers = Gauge(
            "autotune_live_readers", "Pages and clients that follow events", registry=self._registry
        )
        readers.set_function(lambda: live.readers)
        self._requests = self._counter(
            "autotune_http_requests", "Requests answered", ("method", "route", "status")
        )
        self._answers = self._histogram(
            "autotune_http_request_seconds", "Time to an answer", ("route",), _ANSWERS_S
        )
        self._waited = self._histogram(
            "autotune_work_queue_seconds", "From asked for to taken", ("kind",), _WORKS_S
        )
        self._took = self._histogram(
            "autotune_work_run_seconds", "From taken to its end", ("kind", "state"), _WORKS_S
        )
        self._probes = self._counter("autotune_probes", "Probes that ended", ("outcome",))
        for outcome in OUTCOMES:
            self._probes.labels(outcome)

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request that was answered.

        Args:
            seconds: None for one that follows events, which lasts as long as its reader likes.
        """
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self._answers.labels(route).observe(seconds)

    def ended(self, work: Work) -> None:
        """Count a work that has ended."""
        if work.state in ENDED and work.started is not None and work.ended is not None:
            self._waited.labels(work.kind).observe(max(work.started - work.created, 0.0))
            self._took.labels(work.kind, work.state).observe(max(work.ended - work.started, 0.0))

    def count_probes(self, lines: Sequence[Line]) -> None:
        """Count the probes among events that arrived for the first time."""
        for line in lines:
            measurement = line.data.get("measurement") if line.kind == "probed" else None
            if isinstance(measurement, dict):
                outcome = measurement.get("outcome")
                self._probes.labels(outcome if outcome in OUTCOMES else "other").inc()

    def text(self) -> bytes:
        """Return all metrics, as Prometheus reads them."""
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, what, labels, registry=self._registry)

    def _histogram(
        self, name: str, what: str, labels: tuple[str, ...], buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(name, what, labels, buckets=buckets, registry=self._registry)


class _Standing(Collector):
    """Metrics that are read from the database when they are asked for."""

    def __init__(self, works: Works, queue: Queue) -> None:
        self._works, self._queue = works, queue

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the database is not read before it has to be."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the works by state, those that wait, and the workers."""
        counts = self._works.counts()
        works = GaugeMetricFamily(
            "autotune_works", "Plans and runs that are kept", labels=("kind", "state", "outcome")
        )
        for labels, count in sorted(counts.items()):
            works.add_metric(labels, count)
        yield works
        length = GaugeMetricFamily(
            "autotune_queue_length", "Plans and runs that wait", labels=("kind",)
        )
        for kind in ("plan", "run"):
            waiting = [n for (of, state, _), n in counts.items() if (of, state) == (kind, "queued")]
            length.add_metric((kind,), sum(waiting))
        yield length
        workers = GaugeMetricFamily("autotune_workers", "Workers that were heard of lately")
        workers.add_metric((), len(self._queue.workers()))
        yield workers
