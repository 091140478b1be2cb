"""What each operator of a training holds and takes: torch's CUDA allocator against the trace.

Runs on a virtual GPU (or a real one), with the CUDA build of torch:
    python benchmarks/virtual_gpu/operators.py [WORD ...]   # cases whose names hold a word

Four figures a case, in requested bytes above what the inputs and weights take: held after the
forward pass, its peak, held after the backward pass, its peak. Workspaces are warm. Cases that
differ are printed, all are kept in `operators_CAPABILITY.jsonl`.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import operator_cases
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.estimate.records import events as record
from autotune.estimate.tracing.kernels.cuda import CudaRules
from autotune.estimate.tracing.patches import fake_run
from autotune.estimate.tracing.tracer import Tracer
from autotune.facts.device_kinds import rules_of

FIGURES = ("held", "forward", "kept", "backward")


def real(case: operator_cases.Case) -> list[int]:
    """The figures of torch's own allocator; the second of two runs."""
    forward, leaves = case.make("cuda")
    stats = torch.cuda.memory_stats
    found: list[int] = []
    for _ in range(2):
        clear(leaves)
        base = stats()["requested_bytes.all.current"]
        found = []
        torch.cuda.reset_peak_memory_stats()
        with autocast(case, "cuda"):
            out = forward()
        found += [stats()[f"requested_bytes.all.{which}"] - base for which in ("current", "peak")]
        torch.cuda.reset_peak_memory_stats()
        backward(out)
        del out
        found += [stats()[f"requested_bytes.all.{which}"] - base for which in ("current", "peak")]
    return found


def traced(case: operator_cases.Case, cuda: CudaRules) -> list[int]:
    """The figures of the trace."""
    tracer = Tracer(None, cuda)
    with FakeTensorMode(allow_non_fake_inputs=True), fake_run(tracer, cuda), tracer:
        forward, leaves = case.make("cpu")
        for turn in range(2):
            clear(leaves)
            tracer.enter_phase(f"forward{turn}")
            with autocast(case, "cpu"):
                out = forward()
            tracer.enter_phase(f"backward{turn}")
            backward(out)
            del out
        tracer.enter_phase("end")
    return figures(tracer.finish())


def figures(events: list[record.Event]) -> list[int]:
    """Held and peak of the last forward and backward pass of a trace."""
    sizes: dict[int, int] = {}
    live = peak = base = 0
    found: list[int] = []
    for event in events:
        if event[0] == record.PHASE:
            if event[1] == "forward1":
                base = live
            elif event[1] in {"backward1", "end"}:
                found += [live - base, peak - base]
            peak = live
        elif event[0] == record.ALLOCATE:
            sizes[event[1]] = event[2]
            live += event[2]
            peak = max(peak, live)
        elif event[0] == record.FREE:
            live -= sizes.pop(event[1], 0)
    return found


def clear(leaves: list[torch.Tensor]) -> None:
    """No gradients."""
    for leaf in leaves:
        leaf.grad = None


def backward(out: Any) -> None:
    """Back through the first result, where it has a graph."""
    out = out[0] if isinstance(out, tuple | list) else out
    if isinstance(out, torch.Tensor) and out.requires_grad:
        out.backward(torch.empty_like(out))


def autocast(case: operator_cases.Case, device: str) -> Any:
    """bf16 autocast, where the case has it."""
    on = torch.autocast(device, torch.bfloat16)
    return on if case.autocast else contextlib.nullcontext()


def rules() -> CudaRules:
    """What the traces of a candidate for this device go by."""
    known = rules_of(torch.cuda.get_device_capability(), torch.__version__)
    return CudaRules(
        workspace_bytes=known.cublas_workspace_bytes,
        flash=known.flash_sdpa,
        cudnn_first=known.cudnn_sdpa_first,
    )


def tried(measure: Callable[..., list[int]], *args: Any) -> Any:
    """The figures by name, or what was raised in their place."""
    try:
        return dict(zip(FIGURES, measure(*args), strict=True))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"


def main() -> None:
    """Every case, or those whose names hold a word of the command line."""
    cuda = rules()
    rows = []
    for case in operator_cases.cases():
        if sys.argv[1:] and not any(word in case.name for word in sys.argv[1:]):
            continue
        row: dict[str, Any] = {"case": case.name}
        row["real"] = tried(real, case)
        row["trace"] = tried(traced, case, cuda)
        rows.append(row)
        if row["real"] != row["trace"]:
            print(json.dumps(row))
    print(f"{sum(r['real'] == r['trace'] for r in rows)} of {len(rows)} cases are equal")
    if not sys.argv[1:]:
        name = "operators_{}{}.jsonl".format(*torch.cuda.get_device_capability())
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        Path(__file__).with_name(name).write_text(lines)


if __name__ == "__main__":
    main()
