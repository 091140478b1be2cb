"""What the trace of a plan says of one device: what lasts, by part. Runs in a child only.

Nothing is computed here but sums: the records are those of `sharded.trace_depth`, and what
more layers bring is continued as a plan does it, between the same depths.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.estimate.formula.devices import with_buckets
from autotune.estimate.records.depths import at_depth, depths
from autotune.estimate.records.events import MICRO_STEP, PARTS, PHASE, STEP, Event, Live
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import Weights, lagrange
from autotune.estimate.variants.sharded import ContinuedStep, Depth, trace_depth
from benchmarks.public_tables.cases import ROW, Case

Parts = dict[str, int]
MOMENTS = ("between", "before_step", "in_step")


def weights_of(path: Path) -> tuple[int, int]:
    """(weights of a model, those of its largest layer), as DeepSpeed's estimators count them."""
    import torch
    from deepspeed.runtime.zero.stage3 import model_to_params
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    # Its own total takes all tensors without storage for one.
    return sum(p.numel() for p in model.parameters()), int(model_to_params(model)[1])


def estimated(case: Case, models: Path) -> dict[str, Any]:
    """Bytes of one device by part, and of the host, in an optimizer step of two micro-steps.

    Returns:
        `between`: what is live as the second micro-step begins: what lasts, with gradients;
        `before_step`: as the optimizer step begins; `in_step`: at its highest moment; `peak`: at
        the highest moment of all, as a plan tells it (None: it would trace all layers);
        `host_bytes`: what one process keeps on the host.
    """
    began = time.process_time()
    request = case.request(models)
    known = depths(request.layers, case.sharding, adapters=False)
    whole = known == (request.layers,)
    traces = [
        trace_depth(request, None if whole else few, [ROW], accumulates=True, optim=None)
        for few in known
    ]
    if request.sharding is None and case.ranks > 1:
        for one in traces:
            one.steps[0].device = with_buckets(one.steps[0].device)
    deep = at_depth(known, request.layers)
    found = [lasting(one.steps[0].device) for one in traces]
    hosts = [one.steps[0].host_bytes for one in traces]
    return {
        "depths": [*known, request.layers],
        **{name: _between([one[name] for one in found], deep) for name in MOMENTS},
        "peak": _peak(traces, deep, request),
        "host_bytes": deep.interpolate(hosts),
        "cpu_s": round(time.process_time() - began, 1),
    }


def lasting(events: Sequence[Event]) -> dict[str, Parts]:
    """What is live at each of `MOMENTS` of the last optimizer step of a record, by part."""
    last = max(n for n, event in enumerate(events) if event[:2] == (PHASE, MICRO_STEP))
    live, found, most = Live(), {name: Parts() for name in MOMENTS}, 0
    for number, event in enumerate(events):
        if number == last:
            found["between"] = dict(live.parts)
        if number > last and event[:2] == (PHASE, STEP) and not found["before_step"]:
            found["before_step"] = dict(live.parts)
        live.take(event)
        if found["before_step"] and live.phase == STEP and live.total > most:
            found["in_step"], most = dict(live.parts), live.total
    return found


def _between(known: Sequence[Mapping[str, int]], weights: Weights) -> Parts:
    parts = {part: weights.interpolate([one[part] for one in known]) for part in PARTS}
    return {part: size for part, size in parts.items() if size}


def _peak(traces: Sequence[Depth], deep: Weights, request: Any) -> dict[str, Any] | None:
    continued = ContinuedStep(
        steps=[one.steps for one in traces], sizes=lagrange([1], 1), depths=deep, request=request
    )
    try:
        use = continued.use
    except Irregular:
        return None
    return {"bytes": use.peak_bytes, "phase": use.phase, "parts": use.parts}
