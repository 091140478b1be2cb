"""Speed knobs change time and memory only: the same rows move the weights the same way.

Not here: FlashAttention, Liger and vLLM need a GPU; sharding is `test_ranks` and
`test_sharding_exactness`; the sampler and workers choose and bring rows; KTO's micro-batch
decides with which rows a row is compared (search_spaces/kto.yaml).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.stack import missing
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from tests.cpu.conftest import LLAMA, Bench, open_bench
from tests.cpu.test_distillation import opened

SIZES: dict[str, dict[str, Any]] = {
    "4x2": {"per_device_train_batch_size": 4},
    "2x4": {"per_device_train_batch_size": 2},
}
ALL: dict[str, dict[str, Any]] = {
    "checkpointing": {"gradient_checkpointing": True},
    "eager": {"attn_implementation": "eager"},
    "foreach": {"optim": "adamw_torch"},
    "compiled": {"torch_compile": True},
    "cache emptied": {"torch_empty_cache_steps": 1},
}
REFERENCE = {
    "precomputed": {"precompute_ref_log_probs": True},
    "every-2nd": {"precompute_ref_log_probs": True, "gradient_checkpointing": "every_2"},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {
        **SIZES,
        **ALL,
        "1x8": {"per_device_train_batch_size": 1},
        "every-2nd": {"gradient_checkpointing": "every_2"},
        "every-4th": {"gradient_checkpointing": "every_4"},
        "selective": {"gradient_checkpointing": "selective"},
        "nll": {"loss_type": "nll"},
        "chunked": {"loss_type": "chunked_nll"},
        "padding-free": {"padding_free": True},
        "padding-free, eager": {"padding_free": True, "attn_implementation": "eager"},
    },
    "reward": {**SIZES, **ALL},
    "dpo": {**SIZES, **ALL, **REFERENCE},
    "kto": {**ALL, **REFERENCE},
    "grpo": {**SIZES, **ALL},
    "rloo": {**SIZES, **ALL},
    "distillation": {**SIZES, **ALL},
}
OFFLINE = ("reward", "dpo", "kto")
NIGHTLY = pytest.mark.nightly("launches")
EACH_TIME = ("checkpointing", "foreach", "cache emptied")
"""Of other methods than SFT; the rest is nightly."""
CASES = [
    pytest.param(
        method,
        name,
        marks=()
        if name != "compiled" and (method == "sft" or (name in EACH_TIME and method in OFFLINE))
        else NIGHTLY,
    )
    for method, variants in VARIANTS.items()
    if missing(method) is None
    for name in variants
]
LENGTHS = "dataset={lengths: {max: 120, p50: 30, p99: 100, rows: 400}}"
ONLINE = (
    "dataset={lengths: {max: 60, p50: 30, rows: 400}}",
    "max_length=null",
    "reward_funcs=[get_soft_overlong_punishment]",
    "fixed={num_generations: 4, max_completion_length: 12}",
)


def one_step(bench: Bench, name: str, **knobs: Any) -> dict[str, Any]:
    base = {"gradient_checkpointing": False, "per_device_train_batch_size": 8}
    # A schedule that does not start at zero, so that the one step moves the weights.
    job = bench.job.model_copy(
        update={"training": {"lr_scheduler_type": "constant", "learning_rate": 1e-3}}
    )
    request = bench.request(job=job, **{**base, **knobs})
    folder = replace(ChildFolder(path=bench.run.path / "steps" / name))
    folder.path.mkdir(parents=True)
    write_json(folder.request, request.plain())
    ending = bench.server.run(folder, "tests.cpu.workers:one_step", Limits(wall_s=240))
    reply = read_json(folder.reply)
    assert isinstance(reply, dict), (ending, folder.stderr.read_text(encoding="utf-8")[-2000:])
    return reply


class Steps:
    """What one step of a method does, its bench and its reference made when a test asks."""

    def __init__(self, folder: Path, server: ChildServer) -> None:
        self._folder, self._server = folder, server
        self._benches = dict[str, Bench]()
        self._references = dict[str, dict[str, Any]]()

    def bench(self, method: str) -> Bench:
        if method not in self._benches:
            folder = self._folder / method
            folder.mkdir()
            sets = ONLINE if method in ("grpo", "rloo") else (LENGTHS,)
            if method == "distillation":
                opening = opened(folder, self._server, {**LLAMA, "hidden_size": 96})
            else:
                opening = open_bench(folder, self._server, LLAMA, [f"method={method}", *sets])
            self._benches[method] = opening
        return self._benches[method]

    def reference(self, method: str) -> dict[str, Any]:
        if method not in self._references:
            self._references[method] = one_step(self.bench(method), "reference")
        return self._references[method]


@pytest.fixture(scope="module")
def steps(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return Steps(tmp_path_factory.mktemp("same"), server)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_a_speed_knob_leaves_the_step_as_it_is(steps: Steps, method: str, name: str) -> None:
    found = one_step(steps.bench(method), name, **VARIANTS[method][name])
    reference = steps.reference(method)
    largest = max(reference["gradients"])
    assert largest > 0 and any(moved > 0 for moved in reference["moved"])
    # Advantages of a group add up to nothing, and so nearly does the loss of RLOO.
    assert found["loss"] == pytest.approx(reference["loss"], rel=1e-5, abs=1e-5)
    assert found["gradients"] == pytest.approx(reference["gradients"], rel=2e-3, abs=1e-4 * largest)
    if name in ("foreach", "cache emptied"):  # AdamW makes whole steps of what is rounded to noise
        assert found["moved"] == pytest.approx(reference["moved"], rel=2e-3)


def test_another_loss_does_move_the_weights_differently(steps: Steps) -> None:
    found = one_step(steps.bench("sft"), "dft", loss_type="dft")
    assert found["loss"] != pytest.approx(steps.reference("sft")["loss"], rel=1e-2)
