"""The service as a program sees it: plans and runs over HTTP (docs/client.md).

A work is a dict as the service has it (docs/server/openapi.json): `kind`, `id`, `state`, `outcome`,
`result`, `text` ... Times are seconds since 1970 (UTC), sizes bytes.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

import requests

from autotune.errors import MachineError, Problem, UserError, machine_error, user_error

Kind = Literal["plan", "run"]
Work = dict[str, Any]
Event = dict[str, Any]
"""`number` (from 1 on, without gaps), `utc`, `kind`, `data`; of the kind `line`, `data` has a
`text` that the command said."""
ENDED = ("done", "failed", "cancelled")
TOKEN = "AUTOTUNE_TOKEN"
_STREAM = "text/event-stream"
_LOCAL = ("127.0.0.1", "localhost", "::1")
_CONNECT_S, _READ_S = 10.0, 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
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
        self.url, self._patience_s = url.rstrip("/"), patience_s
        self._token = token or os.environ.get(TOKEN)
        self._session = requests.Session()
        self._session.auth = self._authorized  # so that no password of ~/.netrc takes its place
        self._session.trust_env = parts.hostname not in _LOCAL  # no proxy leads to this machine

    def submit(
        self,
        kind: Kind,
        job: str | Mapping[str, Any],
        *,
        model_config_json: str | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Work:
        """Ask for a plan or a run.

        Args:
            job: the job file, as text or as data.
            model_config_json: a config.json that the job names as `model: config.json`.
            options: `device`, `devices`, `nodes` and `stack` of a plan; `priority`, `parent`.
        """
        body = {"job": job, "model_config_json": model_config_json, **options}
        return self._json("POST", f"{kind}s", json=body)

    def get(self, kind: Kind, id: str) -> Work:
        """A plan or a run, with what it came to."""
        return self._json("GET", f"{kind}s/{id}")

    def list(self, kind: Kind, **filters: Any) -> dict[str, Any]:
        """A page of them, the newest first: `items`, `page`, `pages`, `total`.

        Args:
            filters: `state`, `method`, `text`, `submitter`, `page`, `per_page`.
        """
        return self._json("GET", f"{kind}s", params=filters)

    def follow(self, work: Work, after: int = 0) -> Iterator[Event]:
        """The events after a number as they come, to the end of the work: each once, in order,
        however often the connection is lost."""
        patience = _Patience(self._patience_s)
        while True:
            try:
                for event in self._stream(work, after):
                    if event is not None and event["number"] > after + 1:
                        raise self._away("an event is missing")
                    if event is not None and event["number"] == after + 1:
                        after += 1
                        yield event
                    patience = _Patience(self._patience_s)
                return
            except _Away as away:
                patience.bear(away)

    def wait(self, work: Work, after: int = 0) -> Work:
        """A work when it has ended, `after` events that are known."""
        for _ in self.follow(work, after):
            pass
        patience = _Patience(self._patience_s)
        while True:
            try:
                return self.get(work["kind"], work["id"])
            except _Away as away:
                patience.bear(away)

    def cancel(self, work: Work) -> Work:
        """End a work: at once where it waits, else as Ctrl-C does."""
        return self._json("POST", f"{_path(work)}/cancel", json={})

    def resume(self, work: Work) -> Work:
        """Go on with a run that was cancelled, failed or measured nothing."""
        return self._json("POST", f"{_path(work)}/resume", json={})

    def delete(self, work: Work) -> None:
        """Forget a work that has ended, and its folder."""
        self._answer("DELETE", _path(work), headers={"Content-Type": "application/json"})

    def bundle(self, work: Work) -> bytes:
        """The files of the answer, a ZIP file with a folder `bundle`."""
        return self._answer("GET", f"{_path(work)}/bundle.zip").content

    def report(self, work: Work) -> str:
        """What `autotune report` prints of a run."""
        return self._answer("GET", f"{_path(work)}/report").content.decode()

    def _stream(self, work: Work, after: int) -> Iterator[Event | None]:
        """The events that come by one connection; None: a sign of life.

        Raises:
            _Away: it broke off before the work ended.
        """
        headers = {"Accept": _STREAM, "Last-Event-ID": str(after)}
        with self._answer("GET", f"{_path(work)}/events", headers=headers, stream=True) as answer:
            if not answer.headers.get("Content-Type", "").startswith(_STREAM):
                raise _not_ours(self.url, answer)
            try:
                for line in answer.iter_lines(chunk_size=None):
                    if line == b"event: end":
                        return
                    is_data = line.startswith(b"data:")
                    yield json.loads(line.removeprefix(b"data:")) if is_data else None
            except (requests.RequestException, ValueError) as error:  # in the middle of a line
                raise self._away(type(error).__name__) from None
        raise self._away("the connection was lost")

    def _json(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        answer = self._answer(method, path, **arguments)
        try:
            data: dict[str, Any] = answer.json()
        except ValueError:
            raise _not_ours(self.url, answer) from None
        return data

    def _answer(self, method: str, path: str, **arguments: Any) -> requests.Response:
        """What the service answers, if it is what was asked for."""
        url, timeout = f"{self.url}/api/v1/{path}", (_CONNECT_S, _READ_S)
        try:
            answer = self._session.request(
                method, url, timeout=timeout, allow_redirects=False, **arguments
            )
            if answer.status_code >= 300:
                raise _refusal(answer, self.url)
        except requests.RequestException as error:
            raise self._away(type(error).__name__) from None
        return answer

    def _away(self, what: str) -> _Away:
        hint = "look whether `autotune serve` runs there, and listens at this address"
        return _Away(
            Problem(where=self.url, what=f"the service does not answer: {what}", hint=hint)
        )

    def _authorized(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _path(work: Work) -> str:
    return f"{work['kind']}s/{work['id']}"


class _Patience:
    """Bears that the service is away for so many seconds, and waits ever longer between tries."""

    def __init__(self, seconds: float) -> None:
        self._until, self._pause_s = time.monotonic() + seconds, _FIRST_PAUSE_S

    def bear(self, away: _Away) -> None:
        if time.monotonic() > self._until:
            raise MachineError(*away.problems) from None
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _not_ours(url: str, answer: requests.Response) -> MachineError:
    to = answer.headers.get("Location")
    what = f"it answered {answer.status_code}, and not as the service does"
    hint = "look whether this is the URL of `autotune serve`"
    if to is not None:
        what, hint = f"it sends on to {to}", "give that URL, if it is right"
    return machine_error(what, where=url, hint=hint)


def _refusal(answer: requests.Response, url: str) -> UserError | MachineError:
    """What the service has against a request."""
    status = answer.status_code
    try:
        told = answer.json()
        found = [Problem(**one) for one in told["errors"]]
        found = found or [Problem(where="", what=told["detail"])]
    except (ValueError, KeyError, TypeError):
        wrong = _not_ours(url, answer)
        return _Away(*wrong.problems) if status >= 500 else wrong
    if status < 500 and status not in _OF_THE_SERVICE:
        return UserError(*found)
    named = [replace(one, where=one.where or url) for one in found]
    if status == 401:
        hint = f"a user's token is taken from the variable {TOKEN}"
        named = [replace(one, hint=hint) for one in named]
    return (_Away if status >= 500 or status == 429 else MachineError)(*named)
