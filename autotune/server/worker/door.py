"""A worker's client of the service: leases, beats, events, endings, over HTTP."""

from collections.abc import Callable, Sequence
from typing import Any

import requests
from pydantic import TypeAdapter, ValidationError

from autotune.errors import machine_error
from autotune.server.store.values import (
    MOST_UPLOAD,
    Arrived,
    Beat,
    Beats,
    Ending,
    Kind,
    Lease,
    WorkerInfo,
)
from autotune.server.worker.output import Tail


class Away(Exception):
    """The service does not answer now, or not as one; the report is sent again later."""


class Lost(Exception):
    """The work belongs to another worker now, or was deleted."""


class Refused(Exception):
    """The service never takes this report of a work: it is too large."""


class Door:
    """A connection to a service.

    Args:
        address: returns its URL each time: a service that restarts may have another.
        token: of a worker.

    Attributes:
        timeout_s: patience with each answer.

    Every method raises:
        Away: the service does not answer, or with what no service of this kind does.
        Lost: the work is not ours.
        Refused: the service does not take the report of a work.
        MachineError: it does not take this worker.
    """

    def __init__(self, address: Callable[[], str], token: str) -> None:
        self._address, self._session, self.timeout_s = address, requests.Session(), 20.0
        self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.trust_env = False

    def lease(
        self, worker: WorkerInfo, kinds: Sequence[Kind], works: Sequence[str]
    ) -> Lease | None:
        """Return the next work, or None.

        Args:
            works: those that it does already.
        """
        body = {"worker": worker.model_dump(), "kinds": list(kinds), "works": list(works)}
        lease: Lease | None = self._call("POST", "lease", Lease | None, json=body)
        return lease

    def beat(
        self, name: str, works: Sequence[str], kept: Sequence[str]
    ) -> tuple[list[Beat], list[str]]:
        """Return the service's answers about the works, and the kept folders to be deleted."""
        body = {"name": name, "works": list(works), "kept": list(kept)}
        answer: Beats = self._call("POST", "beat", Beats, json=body)
        return answer.works, answer.forget

    def send(self, name: str, lease: Lease, tail: Tail, lines: list[Any]) -> int:
        """Return how many lines of a file the service has now."""
        body = {
            "worker": name,
            "attempt": lease.attempt,
            "record": tail.record,
            "source": tail.source,
            "first": tail.first,
            "lines": lines,
        }
        arrived: Arrived = self._call("POST", f"works/{lease.id}/events", Arrived, json=body)
        return arrived.lines

    def finish(self, name: str, id: str, ending: Ending) -> None:
        """Report how a work ended."""
        body = {"worker": name, "ending": ending.model_dump()}
        self._call("POST", f"works/{id}/ending", json=body)

    def keep_file(self, name: str, id: str, file: str, content: bytes) -> None:
        """Send a file of a work."""
        if len(content) > MOST_UPLOAD:
            raise Refused(f"it has more than {MOST_UPLOAD} bytes")
        self._call("PUT", f"works/{id}/files/{file}", data=content, params={"worker": name})

    def _call(self, method: str, path: str, shape: Any = Any, **arguments: Any) -> Any:
        try:
            url = f"{self._address()}/api/v1/worker/{path}"
            answer = self._session.request(
                method, url, timeout=self.timeout_s, allow_redirects=False, **arguments
            )
        except (requests.RequestException, OSError) as error:
            raise Away(str(error)) from None
        if answer.status_code == 410:
            raise Lost
        if (
            300 <= answer.status_code < 400
            or answer.status_code >= 500
            or answer.status_code == 429
        ):
            raise Away(f"{answer.status_code} of {path}")
        if answer.status_code in (400, 413, 422) and path.startswith("works/"):
            raise Refused(_detail(answer))
        if answer.status_code >= 400:
            raise machine_error(_detail(answer), where=url, hint=_HINTS.get(answer.status_code))
        try:
            return TypeAdapter(shape).validate_json(answer.content or b"null")
        except ValidationError as error:
            raise Away(f"no answer of a service to {path}: {error.errors()[0]['msg']}") from None


_HINTS = {
    401: "give the token of a worker: `autotune serve --add-token NAME --worker`",
    421: "use a name of the service that its `names` has",
}


def _detail(answer: requests.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {answer.status_code}"
