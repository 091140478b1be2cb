"""The child: one combination traced with few tokens and continued, then generated for real."""

import time
from pathlib import Path
from typing import Any

from autotune.process.messages import ChildFolder, read_json, write_json

PHASES = ("generation", "decode", "scoring", "micro-step", "clip", "step")


def moved(rows: list[Any]) -> int:
    """Bytes that the work of a pass reads and writes."""
    return sum(int(row[5]) for row in rows)


def compare(path: Path) -> None:
    """Estimate and truth, by phase, of the combination that `path` asks for."""
    import logging
    import warnings

    from autotune.estimate.protocol import RolloutTraceRequest
    from autotune.estimate.records.decoding import (
        DECODE,
        GENERATION,
        with_all_tokens,
        without_generations,
    )
    from autotune.estimate.records.events import live_bytes
    from autotune.estimate.tracing.rollout import trace_rollout
    from benchmarks import real_steps

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    real_steps.threads(1)
    folder = ChildFolder(path=path)
    asked = read_json(folder.request) or {}
    few = RolloutTraceRequest.from_plain(asked["few"])
    whole = RolloutTraceRequest.from_plain(asked["whole"])
    began = time.perf_counter()
    reply = trace_rollout(few)
    traced = time.perf_counter()
    traced_events = [tuple(e) for e in reply.events]
    real = real_steps.real_rollout_peaks(whole)
    if few.config.get("use_vllm"):
        events = without_generations(traced_events)
        real = {name: peak for name, peak in real.items() if name not in (GENERATION, DECODE)}
    else:
        events = with_all_tokens(
            traced_events,
            few.tokens,
            whole.tokens,
            prompt=max(few.prompts),
            windows=reply.windows,
        )
    use = live_bytes(events)
    peak = max(real.values())
    write_json(
        folder.reply,
        {
            "estimate_bytes": use.peak_bytes,
            "real_bytes": peak,
            "error": use.peak_bytes / peak - 1,
            "phases": {n: use.phases.get(n, 0) / real[n] - 1 for n in PHASES if n in real},
            "decode_bytes": [moved(reply.work[name]) for name in ("before", "decode")],
            "peak_at": [use.phase, use.operator],
            "trace_s": round(traced - began, 2),
            "real_s": round(time.perf_counter() - traced, 2),
        },
    )
