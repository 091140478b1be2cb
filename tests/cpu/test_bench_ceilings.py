"""The ceilings of this machine's CPU, measured for real in a child; few and small sizes."""

import itertools
from pathlib import Path

import pytest

from autotune.estimate.speed.ceilings import Ceilings
from autotune.plain_data import from_plain
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json

FEW = {
    "dtypes": ["bfloat16", "float32"],
    "matmul": [16, 256],
    "matmul_flops": 1e8,
    "attention": [32, 64],
    "attention_tokens": 64,
    "moved_bytes": [12 * 2**10, 12 * 2**16],
    "operator_elements": 2**14,
    "buffer_bytes": 2**22,
    "seconds": 0.001,
    "overhead_seconds": 0.05,
}
WORKER = "autotune.estimate.speed.measuring.worker:measure"


def measured(server: ChildServer, path: Path, sizes: dict[str, object]) -> Ceilings:
    folder = ChildFolder(path=path)
    path.mkdir()
    request = {"device_kind": "cpu", "device_index": 0, "threads": 1, "sizes": sizes}
    write_json(folder.request, request)
    ending = server.run(folder, WORKER, Limits(wall_s=120))
    assert (ending.why, ending.exit_code) == ("exited", 0), folder.stderr.read_text()
    reply = read_json(folder.reply)
    assert reply["processor_wait_share"] is None or reply["processor_wait_share"] >= 0
    return from_plain(Ceilings, reply["ceilings"])


@pytest.fixture(scope="module")
def ceilings(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Ceilings:
    return measured(server, tmp_path_factory.mktemp("ceilings") / "probe", FEW)


def test_every_asked_size_has_a_rate_that_a_cpu_can_have(ceilings: Ceilings) -> None:
    assert ceilings.measured and ceilings.kind == "cpu" and ceilings.device
    shapes = {(row.dtype, row.m, row.k, row.n) for row in ceilings.matmul}
    assert shapes == set(itertools.product(FEW["dtypes"], *[FEW["matmul"]] * 3))
    assert all(1e6 < row.flops_per_s < 1e14 for row in (*ceilings.matmul, *ceilings.attention))
    assert len(ceilings.attention) == 2 * 2 * 2 * 2
    assert [row.moved_bytes for row in ceilings.bandwidth] == FEW["moved_bytes"]
    assert all(1e6 < row.bytes_per_s < 1e13 for row in ceilings.bandwidth)
    assert ceilings.host_bytes_per_s is None


def test_the_host_takes_microseconds_for_an_operator(ceilings: Ceilings) -> None:
    assert 2e-7 < ceilings.overhead_s_per_operator < 2e-4


def test_larger_matmuls_reach_more(ceilings: Ceilings) -> None:
    small, large = (ceilings.matmul_flops_per_s("float32", n, n, n) for n in (16, 256))
    assert large > 2 * small


def test_operators_have_rates_under_the_names_that_a_trace_has(ceilings: Ceilings) -> None:
    rates = {(row.operator, row.dtype): row.bytes_per_s for row in ceilings.operators}
    assert {"aten::exp", "aten::_log_softmax", "aten::embedding_dense_backward"} <= {
        operator for operator, _ in rates
    }
    assert len(rates) == len(ceilings.operators)
    assert ("aten::argmax", "bfloat16") in rates  # by what it reads, not by what it makes


def test_a_dtype_that_was_not_asked_for_is_not_measured(
    server: ChildServer, tmp_path: Path
) -> None:
    only = measured(server, tmp_path / "probe", {**FEW, "dtypes": ["float32"], "matmul": [16]})
    assert {row.dtype for row in only.matmul} == {"float32"}
    assert only.dtype_for("bfloat16") == "float32"
