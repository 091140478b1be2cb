"""The traces of earlier plans: each is a function of what was asked, the model and the versions.

Runs in a child only.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autotune.estimate.protocol import (
    EstimateRequest,
    RolloutTraceReply,
    RolloutTraceRequest,
    TraceReply,
)
from autotune.estimate.records.events import ALLOCATE, WORKSPACES
from autotune.estimate.records.layers import Irregular
from autotune.estimate.tracing.kernels.cpu import processor
from autotune.estimate.variant import variant_of

SIZES = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size"),
    *("optim", "local_rollout_forward_batch_size"),
)
_Reply = TypeVar("_Reply", TraceReply, RolloutTraceReply)


class TraceCache:
    """The traces of one variant."""

    def __init__(self, request: EstimateRequest) -> None:
        self._request = request

    def reply(self, request: Any, kind: type[_Reply], trace: Callable[[Any], _Reply]) -> _Reply:
        """Return the trace of a request: that which was kept, or one made now.

        Raises:
            Irregular: fewer layers than all are asked for, and the model's cannot be found.
        """
        reply = self._load(request, kind) or self._make(request, trace)
        if request.layers is not None and reply.layers != request.layers:
            raise Irregular("the model's layers cannot be found")
        return reply

    def _load(self, request: Any, kind: type[_Reply]) -> _Reply | None:
        """Return a trace that was kept; None where there is none that can be read."""
        file = self._file(request)
        if file is None:
            return None
        with contextlib.suppress(OSError, EOFError, ValueError, TypeError, KeyError, zlib.error):
            # As `from_plain`, which would look at each of its hundred thousand values.
            reply = kind(**json.loads(gzip.decompress(file.read_bytes())))
            return _with_workspaces_of(reply, request.cuda)
        return None

    def _make(self, request: Any, trace: Callable[[Any], _Reply]) -> _Reply:
        """Trace, and keep it for the next plan; a full or read-only disk only costs that one its
        speed."""
        with contextlib.redirect_stdout(io.StringIO()):
            reply = trace(request)
        file = self._file(request)
        if file is not None:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                # As `plain()`, which would copy each of its hundred thousand values.
                data = gzip.compress(json.dumps(vars(reply)).encode(), 1)
                unfinished = file.with_suffix(f".{os.getpid()}")
                unfinished.write_bytes(data)
                unfinished.replace(file)
        return reply

    def _file(self, request: Any) -> Path | None:
        if self._request.cache is None:
            return None
        key_fields = request.plain()
        key_fields["config"] = variant_of({**request.config, "max_length": None})
        if isinstance(request, RolloutTraceRequest):  # it is one point of its variant
            key_fields["sizes"] = [request.config.get(name) for name in SIZES]
        key_fields |= {"model": self._request.model, "versions": self._request.versions}
        if request.cuda is None:  # its scratch is that of this processor
            key_fields["processor"] = processor()
        else:  # the same trace, but for the size of workspaces
            key_fields["cuda"] = {**request.cuda, _WORKSPACE: None}
        del key_fields["model_path"], key_fields["seed"]
        key = hashlib.sha256(json.dumps(key_fields, sort_keys=True).encode()).hexdigest()
        return Path(self._request.cache) / f"{key[:32]}.json.gz"


_WORKSPACE = "workspace_bytes"


def _with_workspaces_of(reply: _Reply, cuda: Mapping[str, Any] | None) -> _Reply:
    """Return a trace with the workspaces of these rules: it may have been made for another
    device."""
    if cuda is None:
        return reply

    def sized(event: Any) -> Any:
        is_one = event[0] == ALLOCATE and event[3] == WORKSPACES
        return [*event[:2], cuda[_WORKSPACE], *event[3:]] if is_one else event

    return dataclasses.replace(reply, events=list(map(sized, reply.events)))
