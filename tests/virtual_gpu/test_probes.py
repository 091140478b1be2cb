"""What probes on a GPU say: limits, refused memory, retries, other processes, stalled kernels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.facts import devices
from autotune.probe.measure import measure
from autotune.probe.protocol import Measurement
from autotune.process.limits import Limits
from tests.cpu.conftest import LLAMA, Bench, Sweep, open_bench
from tests.cpu.conftest import server as server  # of all tests here
from tests.guards import some_of
from tests.virtual_gpu.test_stand_ins import HOLD

WIDE = {**LLAMA, "hidden_size": 256, "intermediate_size": 4096, "vocab_size": 8000}
"""Its activations outweigh the granules of the allocator."""
FIXED = {"gradient_checkpointing": False, "attn_implementation": "sdpa", "loss_type": "nll"}
MIB = 2**20


@pytest.fixture(scope="module")
def bench(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    lengths = "dataset={lengths: {max: 128, p50: 90, p99: 120, rows: 400}}"
    sets = [lengths, "global_batch_size=32", "devices.kind=cuda"]
    return open_bench(tmp_path_factory.mktemp("gpu"), server, WIDE, sets)


@pytest.fixture(scope="module")
def roomy(bench: Bench) -> Sweep:
    """Without a limit, by `expandable_segments`."""
    return Sweep(lambda expandable: bench.probe(f"roomy {expandable}", **knobs(expandable, 32)))


def knobs(expandable: bool, size: int) -> dict[str, Any]:
    return {
        **FIXED,
        "expandable_segments": expandable,
        "per_device_train_batch_size": size,
    }


def outside(measurement: Measurement) -> int:
    """What the process holds beside the allocator. Bytes."""
    return (measurement.peak_memory_bytes or 0) - (measurement.reserved_peak_bytes or 0)


@pytest.mark.parametrize("expandable", some_of([False, True], {True}, "virtual_gpu"))
def test_a_refused_allocation_is_oom_with_the_missing_bytes_and_the_next_probe_runs(
    bench: Bench, roomy: Sweep, expandable: bool
) -> None:
    free = roomy[expandable]
    assert free.outcome == "ok", free.reason
    assert outside(free) == 520 * MIB
    assert free.allocated_peak_bytes is not None
    limit = outside(free) + free.allocated_peak_bytes - 100 * MIB
    tight = bench.probe(f"tight {expandable}", limit=limit, **knobs(expandable, 32))
    assert tight.outcome == "oom", tight.reason
    assert tight.missing_bytes is not None and 0 < tight.missing_bytes < 2 * 100 * MIB
    assert tight.peak_memory_bytes is not None and tight.peak_memory_bytes <= limit
    small = bench.probe(f"small {expandable}", limit=limit, **knobs(expandable, 4))
    assert small.outcome == "ok", small.reason


@pytest.mark.nightly("virtual_gpu")
def test_a_training_that_must_empty_its_cache_is_unstable(bench: Bench, roomy: Sweep) -> None:
    """Between what its tensors need and what the allocator would like."""
    free = roomy[False]
    assert free.allocated_peak_bytes is not None and free.reserved_peak_bytes is not None
    outcomes = {}
    for share in (0.2, 0.5, 0.8):
        room = share * (free.reserved_peak_bytes - free.allocated_peak_bytes)
        limit = outside(free) + free.allocated_peak_bytes + int(room)
        found = bench.probe(f"between {share}", limit=limit, **knobs(False, 32))
        outcomes[found.outcome] = found
        assert found.outcome in ("oom", "unstable"), found.reason
    assert outcomes["unstable"].allocator_retries
    assert "empty its cache" in outcomes["unstable"].reason


@pytest.mark.nightly("virtual_gpu")
def test_another_process_on_the_gpu_is_named_and_the_probe_is_busy_while_it_is_there(
    bench: Bench, virtual_gpu: Any
) -> None:
    other = replace(virtual_gpu("h200"), environment={})  # on the devices of this process
    holder = other.start("-c", HOLD.format(bytes=2**30))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    busy = bench.probe("busy", **knobs(False, 4))
    assert busy.outcome == "busy"
    assert f"pid {holder.pid} " in busy.reason and "holds 1.51 GiB" in busy.reason
    holder.kill()
    holder.communicate()
    assert bench.probe("alone", **knobs(False, 4)).outcome == "ok"


@pytest.mark.nightly("virtual_gpu")
def test_a_process_that_begins_in_the_middle_of_a_probe_makes_it_busy(
    bench: Bench, virtual_gpu: Any, tmp_path: Path
) -> None:
    other = replace(virtual_gpu("h200"), environment={})
    go = tmp_path / "go"
    wait = f"import os, time, torch\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    holder = other.start("-c", wait + HOLD.format(bytes=2**30))
    assert holder.stdout is not None

    def begin(_: dict[str, Any]) -> None:
        if not go.exists():
            go.touch()
            assert holder.stdout.readline() == "held\n"

    folder = replace(bench.run.probe(0), path=bench.run.path / "probes" / "joined")
    request = bench.request(**knobs(False, 4))
    joined = measure(bench.server, folder, request, Limits(wall_s=120, stall_s=60), begin)
    assert go.exists()
    assert joined.outcome == "busy"
    assert f"pid {holder.pid} " in joined.reason
    holder.kill()
    holder.communicate()


@pytest.mark.nightly("virtual_gpu")
def test_a_child_killed_in_a_kernel_leaves_its_memory_to_the_next(bench: Bench) -> None:
    request = bench.request(**knobs(False, 4))
    stalls = {**request.environment, "VIRTUAL_GPU_STALL_AT": "200"}
    folder = replace(bench.run.probe(0), path=bench.run.path / "probes" / "stalled")
    limits = Limits(wall_s=60, stall_s=5)
    ended = measure(bench.server, folder, replace(request, environment=stalls), limits)
    assert ended.outcome == "timeout", ended.reason
    assert not devices.gpu(0).processes
    assert bench.probe("after it", **knobs(False, 4)).outcome == "ok"
