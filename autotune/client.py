"""The service as a program sees it: plans and runs over HTTP (docs/client.md).

A work is a dict as the service has it (docs/server/openapi.json): `kind`, `id`, `state`, `outcome`,
`result`, `text` ... Times are seconds since 1970 (UTC), sizes bytes.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from autotune.errors import AutotuneError, MachineError, Problem, UserError, user_error
from autotune.plain_data import NONSENSE, from_plain

_T = TypeVar("_T")
Kind = Literal["plan", "run"]
Work = dict[str, Any]
Event = dict[str, Any]
"""`number` (from 1 on), `utc`, `kind`, `data`; of the kind `line`, `data` has a `text`."""
_WORK: dict[str, Any] = {"kind": Kind, "id": str}
_DETAILS = _WORK | {"state": str, "events": int, "files": list[str], "result": dict | None}
_DETAILS |= dict.fromkeys(("ahead", "exit_code"), int | None)
_DETAILS |= dict.fromkeys(("text", "error"), str | None)
_EVENT: dict[str, Any] = {"number": int, "kind": str, "data": dict}
_REFUSAL: dict[str, Any] = {"detail": str, "errors": list[Problem]}
"""What is read of an answer, here and by `--server`."""
TOKEN = "AUTOTUNE_TOKEN"
_TIMEOUTS_S = (10.0, 60.0)
"""Of a connection, and of the next byte."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_HERE = ("127.0.0.1", "localhost", "::1")
_WHERE = "look whether this is the URL of `autotune serve`, and whether it runs"
_OF_THE_SERVICE = (401, 403, 421, 429)
"""What is answered with these has nothing to do with the job."""


class _Away(MachineError):
    """The service does not answer now, and may later."""


class Client:
    """Speaks to a service.

    Args:
        url: such as `http://127.0.0.1:8642`.
        token: of a user; None: `AUTOTUNE_TOKEN` says it, if there is one. It goes to this URL only.
        patience_s: so long `follow` and `wait` bear that the service does not answer.

    Every method raises:
        UserError: the job, or what was asked for, is not right; with all problems at once.
        MachineError: the service does not answer, or does not take this client.
    """

    def __init__(self, url: str, token: str | None = None, *, patience_s: float = 300.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = "such as http://127.0.0.1:8642"
            raise user_error(f"`{url}` is not the URL of a service", hint=hint)
        self.url, self._patience_s, self._session = url.rstrip("/"), patience_s, requests.Session()
        # No password of ~/.netrc takes a token's place.
        self._session.auth = lambda request: request
        if token := token or os.environ.get(TOKEN):
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.headers["Accept-Encoding"] = "identity"  # nothing small grows
        self._session.trust_env = parts.hostname not in _HERE  # no proxy leads to this machine

    def submit(self, kind: Kind, job: str | Mapping[str, Any], **options: Any) -> Work:
        """Ask for a plan or a run.

        Args:
            job: the job file, as text or as data.
            options: `model_config_json`, a config.json that the job names as `model: config.json`;
                of a plan `device` (`h100,l40s` compares them), `devices`, `nodes`, `stack`, and
                for several `prices`, `deadline`, `at_most`; `parent`.
        """
        return self._json(_WORK, "POST", f"{kind}s", json={"job": job, **options})

    def get(self, kind: Kind, id: str) -> Work:
        """Return a plan or a run, with what it came to."""
        return self._json(_DETAILS, "GET", f"{kind}s/{id}")

    def list(self, kind: Kind, **filters: Any) -> dict[str, Any]:
        """Return a page of them, the newest first: `items`, `page`, `pages`, `total`.

        Args:
            filters: `state`, `method`, `text`, `page`, `per_page`.
        """
        return self._json({"items": list}, "GET", f"{kind}s", params=filters)

    def follow(self, work: Work, after: int = 0) -> Iterator[Event]:
        """Yield the events after a number as they come, to the end of the work: each once, in
        order, however often the connection is lost."""
        events = self._patiently(lambda: self._stream(work, after))  # after what is known by then
        for event in events:
            if event is not None:
                after = event["number"]
                yield event

    def wait(self, work: Work, after: int = 0) -> Work:
        """Return a work when it has ended, `after` events that are known."""
        for _ in self.follow(work, after):
            pass
        return next(self._patiently(lambda: iter([self.get(work["kind"], work["id"])])))

    def cancel(self, work: Work) -> Work:
        """End a work: at once where it waits, else as Ctrl-C does."""
        return self._json(_DETAILS, "POST", f"{_path(work)}/cancel", json={})

    def resume(self, work: Work) -> Work:
        """Go on with a run that was cancelled, failed or measured nothing."""
        return self._json(_DETAILS, "POST", f"{_path(work)}/resume", json={})

    def delete(self, work: Work) -> None:
        """Forget a work that has ended, and its folder."""
        self._whole("DELETE", _path(work), headers={"Content-Type": "application/json"})

    def bundle(self, work: Work) -> bytes:
        """Return the files of the answer, a ZIP file with a folder `bundle`."""
        return self._whole("GET", f"{_path(work)}/bundle.zip")

    def report(self, work: Work) -> str:
        """Return what `autotune report` prints of a run."""
        return self._whole("GET", f"{_path(work)}/report").decode(errors="replace")

    def _patiently(self, attempt: Callable[[], Iterator[_T]]) -> Iterator[_T]:
        """Yield what attempts bring until one goes through; patience begins anew with all that
        comes."""
        until, pause_s = None, _PAUSE_S
        while True:
            try:
                for found in attempt():
                    until, pause_s = None, _PAUSE_S
                    yield found
                return
            except _Away as away:
                until = until or time.monotonic() + self._patience_s
                if time.monotonic() > until:
                    raise MachineError(*away.problems) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _stream(self, work: Work, after: int) -> Iterator[Event | None]:
        """Yield the events that come by one connection; None: a sign of life."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        path = f"{_path(work)}/events"
        answer, begun = self._answer("GET", path, headers=headers), b""
        if headers["Accept"] not in answer.headers.get("Content-Type", ""):
            raise self._refusal(answer)
        for chunk in self._chunks(answer):
            *lines, begun = (begun + chunk).split(b"\n")
            for line in lines:
                if line == b"event: end":
                    return
                event = self._parsed(_EVENT, line[5:]) if line.startswith(b"data:") else None
                if event and event["kind"] == "line" and type(event["data"].get("text")) is not str:
                    raise self._strange("a line without a text")
                number = event["number"] if event else after
                if number > after + 1:
                    raise self._away("an event is missing")
                yield event if number > after else None
                after = max(after, number)
        raise self._away("the connection was lost")

    def _json(self, shape: dict[str, Any], method: str, path: str, **arguments: Any) -> Work:
        return self._parsed(shape, self._whole(method, path, **arguments))

    def _parsed(self, shape: dict[str, Any], text: bytes, status: int = 200) -> dict[str, Any]:
        """Return JSON data; a service is trusted no more than a file is."""
        try:
            data: dict[str, Any] = json.loads(text)
            for name, kind in shape.items():
                from_plain(kind, data[name])
        except (*NONSENSE, RecursionError) as error:
            raise self._strange(f"{type(error).__name__}: {error}", status) from None
        return data

    def _strange(self, why: str, status: int = 200) -> MachineError:
        what = f"it answered {status}, and not as the service does: {why}"
        return MachineError(Problem(where=self.url, what=what, hint=_WHERE))

    def _whole(self, method: str, path: str, **arguments: Any) -> bytes:
        """Return the body of an answer, if it is what was asked for."""
        return b"".join(self._chunks(self._answer(method, path, **arguments)))

    def _chunks(self, answer: requests.Response) -> Iterator[bytes]:
        """Yield a body as it comes."""
        try:
            with answer:
                while chunk := answer.raw.read1(2**16):
                    yield chunk
        except (HTTPError, OSError) as error:
            raise self._away(type(error).__name__) from None

    def _answer(self, method: str, path: str, **arguments: Any) -> requests.Response:
        """Return what the service answers, if it is what was asked for; its body is yet to come."""
        arguments |= {"timeout": _TIMEOUTS_S, "allow_redirects": False, "stream": True}
        arguments |= {"hooks": {"response": self._judge}}  # before a redirect's body is read whole
        try:
            return self._session.request(method, f"{self.url}/api/v1/{path}", **arguments)
        except requests.RequestException as error:
            raise self._away(type(error).__name__) from None

    def _judge(self, answer: requests.Response, **_: Any) -> None:
        if answer.status_code >= 300:
            raise self._refusal(answer)

    def _refusal(self, answer: requests.Response) -> AutotuneError:
        """Return what the service has against a request; or that it is another's answer."""
        status, hint, body = answer.status_code, None, b"".join(self._chunks(answer))
        try:
            document = self._parsed(_REFUSAL, body, status)
            problems = from_plain(list[Problem], document["errors"])
            problems = problems or [Problem(where="", what=document["detail"])]
            if status < 500 and status not in _OF_THE_SERVICE:
                return UserError(*problems)
            if status == 401:
                hint = f"put a user's token into the variable {TOKEN}"
        except MachineError as error:
            problems = list(error.problems)
            if to := answer.headers.get("Location"):
                what, hint = f"it sends on to {to}", "give that URL, if it is right"
                problems = [Problem(where=self.url, what=what)]
        problems = [replace(p, where=p.where or self.url, hint=hint or p.hint) for p in problems]
        return (_Away if status >= 500 or status == 429 else MachineError)(*problems)

    def _away(self, what: str) -> _Away:
        what = f"the service does not answer: {what}"
        return _Away(Problem(where=self.url, what=what, hint=_WHERE))


def _path(work: Work) -> str:
    return f"{work['kind']}s/{work['id']}"
