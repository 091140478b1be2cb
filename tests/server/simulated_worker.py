"""A simulated worker: it takes a run as one of a GPU would, and says what happened in it."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.cpu.conftest import LLAMA, write_model
from tests.server.conftest import Served
from tests.server.finished_run import FinishedRun

GPU = {
    "name": "simulated:0",
    "device_kind": "cuda",
    "devices": 1,
    "device_name": "NVIDIA H100 80GB HBM3",
}
KNOBS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": False,
    "attn_implementation": "sdpa",
    "use_liger_kernel": False,
    "max_length": 2048,
}
SURVEYED = {
    "model": {"name": "m", "architecture": "LlamaForCausalLM", "parameters": 7_615_616_512},
    "rows": 10_000,
    "longest": 2048,
    "device": GPU["device_name"],
    "limit_bytes": 79 * 2**30,
    "candidates": 168,
    "free_knobs": [*KNOBS][:5],
    "notes": [],
}


def run_job(service: Served, **fields: Any) -> str:
    """A job for GPUs."""
    model = service.models / "simulated"
    if not model.exists():
        write_model(model, LLAMA)
    job = {
        "model": str(model / "config.json"),
        "dataset": {"lengths": {"max": 64}},
        "global_batch_size": 4,
        "max_length": 64,
        "budget": {"probes": 4, "minutes": 5},
        "devices": {"kind": "cuda"},
        **fields,
    }
    return json.dumps(job, indent=1)


@dataclass
class SimulatedWorker:
    """Takes one run, and says what happens in it."""

    service: Served
    work: dict[str, Any] = field(default_factory=dict)
    said: int = 0

    def ask(self, **fields: Any) -> str:
        """Ask for a run that the service's own worker has no device for, take it, and say its
        path."""
        job = run_job(self.service, **fields)
        answer = requests.post(f"{self.service.url}/api/v1/runs", json={"job": job}, timeout=60)
        answer.raise_for_status()
        return self.take()

    def take(self) -> str:
        """Take the run that waits, and say its path."""
        self.work = self._call("POST", "lease", json={"worker": GPU, "kinds": ["run"]})
        self.said = 0
        return self.path

    @property
    def path(self) -> str:
        """The page of the run."""
        return f"/runs/{self.work['id']}"

    def say(self, kind: str, **data: Any) -> None:
        """Something happens."""
        self._send([(kind, data)])

    def say_line(self, text: str) -> None:
        """Its command prints a line."""
        self.say("line", text=text)

    def replay(self, run: FinishedRun) -> str:
        """Ask for a run, let happen all that happened in another, and say its path."""
        path = self.ask()
        self._send(run.events)
        for name, content in run.files.items():
            self.keep_file(name, content)
        self.end(0, result=run.result)
        return path

    def _send(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        lines = [{"utc": time.time(), "kind": kind, "data": data} for kind, data in events]
        body = {"worker": GPU["name"], "attempt": self.work["attempt"], "source": "events"}
        self._call(
            "POST",
            f"works/{self.work['id']}/events",
            json={**body, "first": self.said, "lines": lines},
        )
        self.said += len(lines)

    def probe(self, number: int, outcome: str, knobs: dict[str, Any], **measured: Any) -> None:
        """A probe begins and ends."""
        all_knobs = {**KNOBS, **knobs}
        self.say("probing", probe=number, knobs=all_knobs)
        names = ("tokens_per_s", "peak_memory_bytes", "relative_uncertainty", "failure")
        measurement = {
            **dict.fromkeys(names),
            "outcome": outcome,
            "reason": f"it was {outcome}",
            "seconds": 20.0,
            **measured,
        }
        data = {"estimate": None, "probe": number, "knobs": all_knobs, "measurement": measurement}
        self.say("probed", **data)

    def end(
        self,
        exit_code: int,
        error: str = "",
        result: dict[str, Any] | None = None,
        text: str = "",
    ) -> None:
        """It ends."""
        ending = {"attempt": self.work["attempt"], "exit_code": exit_code, "error": error}
        body = {"worker": GPU["name"], "ending": {**ending, "result": result, "text": text}}
        self._call("POST", f"works/{self.work['id']}/ending", json=body)

    def keep_file(self, name: str, content: bytes) -> None:
        """A file comes out of it."""
        place = f"works/{self.work['id']}/files/{name}"
        self._call("PUT", place, data=content, params={"worker": GPU["name"]})

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        token = (self.service.folder / "worker.token").read_text(encoding="ascii")
        answer = requests.request(
            method,
            f"{self.service.url}/api/v1/worker/{path}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            **arguments,
        )
        assert answer.ok, answer.text
        return answer.json() if answer.content else None
