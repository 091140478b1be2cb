"""Traces of earlier plans, kept on disk: each is a function of what was asked, the model and the
versions. Runs in a child only."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from autotune.estimate.protocol import EstimateRequest, RolloutTraceRequest
from autotune.estimate.tracing.kernels.cpu_scratch import processor
from autotune.estimate.variant import variant_of
from autotune.process.messages import Message

SIZES = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size"),
    *("optim", "local_rollout_forward_batch_size"),
)
_Reply = TypeVar("_Reply", bound=Message)


class TraceCache:
    """The traces of one variant."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request

    def known(self, asked: Any, kind: type[_Reply]) -> _Reply | None:
        """A trace that was kept; None where there is none that can be read."""
        file = self._file(asked)
        if file is None:
            return None
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError, KeyError, zlib.error):
            return kind.from_plain(json.loads(gzip.decompress(file.read_bytes())))
        return None

    def keep(self, asked: Any, trace: Callable[[Any], _Reply]) -> _Reply:
        """Trace, and keep it for the next plan; a full or read-only disk only costs that one its
        speed."""
        with contextlib.redirect_stdout(io.StringIO()):
            reply = trace(asked)
        file = self._file(asked)
        if file is not None:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                data = gzip.compress(json.dumps(reply.plain()).encode(), 1)
                own = file.with_suffix(f".{os.getpid()}")
                own.write_bytes(data)
                own.replace(file)
        return reply

    def _file(self, asked: Any) -> Path | None:
        if self._request.cache is None:
            return None
        told = asked.plain()
        told["config"] = variant_of({**asked.config, "max_length": None})
        if isinstance(asked, RolloutTraceRequest):  # it is one point of its variant
            told["sizes"] = [asked.config.get(name) for name in SIZES]
        told |= {"model": self._request.model, "versions": self._request.versions}
        if asked.cuda is None:  # its scratch is that of this processor
            told["processor"] = processor()
        del told["model_path"], told["seed"]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return Path(self._request.cache) / f"{key[:32]}.json.gz"
