"""Estimates from a trace of few layers at small micro-batches, held against whole traces.

A child does both, as a plan's does; the model has nine layers, so that most of them are copies.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.estimate.records import layers
from autotune.estimate.variants.micro_batches import ORDER_SIGMA
from autotune.facts.stack import fused_head
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.space.checkpointing import checkpointing_fields
from autotune.space.quantization import FOUR_BITS
from tests.cpu.conftest import LLAMA, write_model
from tests.guards import some_of

LAYERS, FEW = 9, layers.LAYERS.smallest
LONGER = 10 if fused_head() else 1
"""The chunks of a loss with a fused head are as many times larger, and must be more than five."""
LONGEST = 260 * LONGER
WORKER = "tests.cpu.test_estimate_scaling:compare"
CUDA = {"workspace_bytes": 8519680, "flash": True, "cudnn_first": False}
CONFIG = {
    "model_name_or_path": "some model",
    "report_to": "none",
    "learning_rate": 2e-5,
    "max_length": None,
    "dtype": "float32",
    "bf16": False,
    "attn_implementation": "sdpa",
    "loss_type": "nll",
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}
CHECKPOINTED = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}


def checkpointing_of(value: object) -> dict[str, Any]:
    """The fields of a value of the knob."""
    return checkpointing_fields({**CHECKPOINTED, "gradient_checkpointing": value})


GRID = {
    "every 2nd layer": {**checkpointing_of("every_2"), **LORA, "dtype": "bfloat16"},
    "selective": {**checkpointing_of("selective")},
    "offloaded": {**checkpointing_of("offload"), **LORA, "dtype": "bfloat16"},
}
LIGER = {"use_liger_kernel": True}
SEGMENT = 2 * 2**20
"""What the allocator reserves at least: more than a hundredth of so small a training."""
FLASH = {"attn_implementation": "flash_attention_2"}


@dataclass(frozen=True)
class Case:
    """A candidate: its configuration, its micro-batch, and on which device."""

    config: dict[str, Any]
    rows: int
    shortest: int = 260
    accumulation: int = 1
    optim: str | None = None
    cuda: dict[str, Any] | None = field(default_factory=lambda: CUDA)

    def lengths(self) -> list[int]:
        """Tokens of each row of the data, the longest last."""
        shortest = self.shortest * LONGER
        return [shortest + n * (LONGEST - shortest) // 39 for n in range(40)]


CASES = {
    "full": Case({"bf16": True}, rows=14, shortest=130),
    "lora, checkpointed, in chunks, another optimizer": Case(
        {**LORA, **CHECKPOINTED, "dtype": "bfloat16", "bf16": True, "loss_type": "chunked_nll"},
        rows=17,
        shortest=250,
        accumulation=2,
        optim="adamw_torch",
    ),
    "on four bits, checkpointed": Case(
        {**LORA, **CHECKPOINTED, **FOUR_BITS, "dtype": "bfloat16", "bf16": True},
        rows=14,
        shortest=130,
        accumulation=2,
    ),
    "on eight bits": Case({**LORA, "load_in_8bit": True, "bf16": True}, rows=14, shortest=130),
    "flat": Case({"padding_free": True}, rows=13, shortest=100, accumulation=2),
    # Padding that is taken out is estimated as hardly any.
    "flash-attn, padded": Case({**FLASH, "bf16": True}, rows=13, shortest=257),
    "flash-attn, flat": Case({**FLASH, "bf16": True, "padding_free": True}, rows=13, shortest=100),
    "liger": Case({**LIGER, "dtype": "bfloat16", "bf16": True}, rows=14, accumulation=2),
    "on the CPU": Case({"attn_implementation": "eager"}, rows=10, cuda=None),
}
UNEVEN = ("full", "on four bits, checkpointed", "on eight bits", "flat", "flash-attn, flat")
EVEN = ("liger", "on the CPU")


def compare(path: Path) -> None:
    """The child: the estimate of a case, and a trace of it with all layers at its own size."""
    from autotune.estimate.allocator.replay import on_cpu, replayed
    from autotune.estimate.protocol import MicroBatch, TraceRequest
    from autotune.estimate.tracing.trace import trace_steps
    from autotune.estimate.variants.offline import OfflineEstimates

    folder = ChildFolder(path=path)
    asked: dict[str, Any] = read_json(folder.request) or {}
    case = Case(**asked["case"])
    request = estimate_request(case, asked["model"], write_rows(case, path / "rows"))
    estimates = OfflineEstimates(request)
    worst = MicroBatch(lengths=tuple(reversed(case.lengths()[-case.rows :])))
    truth = trace_steps(
        TraceRequest(
            method="sft",
            config={**case.config, "optim": case.optim or case.config["optim"]},
            model_path=asked["model"],
            layers=None,
            cuda=case.cuda,
            # On CUDA the first step of a plan has whole micro-batches, as that of a training has.
            steps=[worst if case.cuda else estimates.opening, worst],
            micro_steps=[case.accumulation] * 2,
        )
    )
    pairs = []
    for point in request.points[:2]:
        found = estimates.point(point)
        expandable = point.expandable_segments
        if case.cuda is None:
            whole = on_cpu(truth.events, None)
        else:
            whole = replayed(truth.events, None, expandable_segments=expandable)
        figures = (found.peak_allocated_bytes, found.peak_reserved_bytes)
        if case.cuda is not None:
            # A plan takes the data's own first step, too, which may leave more; here it is whole.
            most = estimates._data.worst(point)
            padded = most.padded if most.padded in estimates._sizes else not most.padded
            replay = estimates._replays.of(dataclasses.replace(point, optim=None), most, padded, ())
            figures = (found.peak_allocated_bytes, replay.reserved_bytes)
        pairs.append([figures, (whole.use.peak_bytes, whole.reserved_bytes), found.method])
    layers = [estimates.traces.traced_layers, truth.layers]
    sigmas = [estimates.point(point).sigma for point in request.points[:2]]
    found = {
        "pairs": pairs,
        "layers": layers,
        "growth": estimates.traces.growth(),
        "sigmas": sigmas,
    }
    write_json(folder.reply, found)


def compare_depths(path: Path) -> None:
    """The child: the points of a case from a few layers, and from all of them."""
    from autotune.estimate.variants.offline import OfflineEstimates
    from autotune.estimate.variants.retracing import ALL_LAYERS, FEW_LAYERS

    folder = ChildFolder(path=path)
    asked: dict[str, Any] = read_json(folder.request) or {}
    case = Case(**asked["case"])
    request = estimate_request(case, asked["model"], write_rows(case, path / "rows"))
    found = []
    for extent in (FEW_LAYERS, ALL_LAYERS):
        estimates = OfflineEstimates(request)
        if extent != estimates.extent:
            estimates.extent, estimates._traced = extent, False
            estimates.forget()
        points = [estimates.point(point) for point in request.points[:2]]
        names = ("peak_allocated_bytes", "peak_reserved_bytes", "copied_bytes", "host_bytes")
        bytes_of = [[getattr(point, name) for name in names] for point in points]
        found.append([estimates.traces.traced_layers, bytes_of])
    write_json(folder.reply, found)


def write_rows(case: Case, folder: Path) -> str:
    """The data, tokenized."""
    from datasets import Dataset

    from autotune.facts.tokenizing import described

    rows = [{"input_ids": [3] * n, "labels": [3] * n} for n in case.lengths()]
    described("sft", Dataset.from_list(rows)).save_to_disk(folder)
    return str(folder)


def estimate_request(case: Case, model: str, rows: str) -> Any:
    """The case on fixed and on expandable segments, and neighbours to be scaled to as well."""
    from autotune.estimate.protocol import EstimateRequest, Point
    from autotune.training.batch_plan import batching_of

    points = [
        Point(
            batching=dataclasses.asdict(
                batching_of(
                    "sft",
                    {**case.config, "per_device_train_batch_size": case.rows - fewer},
                    global_batch=64,
                    seed=0,
                )
            ),
            accumulates=case.accumulation > 1,
            expandable_segments=expandable,
            optim=case.optim,
        )
        for fewer, expandable in ((0, False), (0, True), (1, False), (2, False))
    ]
    return EstimateRequest(
        method="sft",
        config=case.config,
        model_path=model,
        model="tiny",
        versions={},
        layers=LAYERS,
        cuda=case.cuda,
        rows=rows,
        rows_total=40,
        rows_sampled=False,
        points=points,
        limit_bytes=None,
        cache=None,
        seed=0,
    )


EXPERTS = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 2,
}
"""Every other layer is a mixture of experts."""
TWO_KINDS = {
    **LLAMA,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 16,
    "sliding_window": 64,
    "layer_types": [("full" if n == 5 else "sliding") + "_attention" for n in range(LAYERS)],
}
"""One layer attends to all tokens, and it is none of the first or the last."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and a tokenizer."""
    return model_folder(tmp_path_factory.mktemp("scaling") / "model", LLAMA)


def model_folder(folder: Path, config: dict[str, Any], layers: int = LAYERS) -> Path:
    """A folder with this config of so many layers, and a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    write_model(folder, {**config, "num_hidden_layers": layers, "use_cache": False})
    words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="<eos>"))
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder


def answered(case: Case, model: Path, server: ChildServer, path: Path, worker: str = WORKER) -> Any:
    """What a child found of a case."""
    plain = {**vars(case), "config": {**CONFIG, **case.config}}
    folder = ChildFolder(path=path / "p")
    folder.path.mkdir()
    write_json(folder.request, {"case": plain, "model": str(model)})
    server.run(folder, worker, Limits(wall_s=900, stall_s=900))
    reply = read_json(folder.reply)
    assert reply, folder.stderr.read_text(encoding="utf-8")[-3000:]
    return reply


@pytest.mark.parametrize("name", some_of(CASES, {"on the CPU"}, "exactness"))
def test_a_scaled_trace_has_the_memory_of_the_whole_one(
    name: str, model: Path, server: ChildServer, tmp_path: Path
) -> None:
    reply = answered(CASES[name], model, server, tmp_path)
    assert reply["layers"] == [FEW, LAYERS]
    for estimate, whole, method in reply["pairs"]:
        assert method == "scaled trace"
        assert estimate[0] == pytest.approx(whole[0], rel=0.001)
        assert estimate[1] == pytest.approx(whole[1], rel=0.01, abs=SEGMENT)
    # Another order of ragged rows leaves other blocks, where segments are fixed.
    if name in UNEVEN + EVEN:
        assert reply["sigmas"] == [ORDER_SIGMA if name in UNEVEN else 0.0, 0.0]
    if name == "full":  # so much more is trained than in the few layers that were traced
        layer = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 160 + 2 * 64
        outside = 2 * 509 * 64 + 64
        growth = (outside + LAYERS * layer) / (outside + FEW * layer)
        assert reply["growth"] == pytest.approx(growth, rel=1e-6)


@pytest.mark.parametrize("name", some_of(GRID, {"every 2nd layer"}, "exactness"))
def test_checkpointing_of_some_layers_follows_from_few_layers_as_from_all(
    name: str, model: Path, server: ChildServer, tmp_path: Path
) -> None:
    case = Case({**GRID[name], "bf16": True}, rows=14, shortest=130, accumulation=2)
    worker = "tests.cpu.test_estimate_scaling:compare_depths"
    (few, from_few), (every, from_all) = answered(case, model, server, tmp_path, worker)
    assert (few, every) == (7 if name.startswith("every") else FEW, LAYERS)
    assert from_few == from_all
    copied, pinned = from_few[0][2:]
    assert (copied > 0) == (name == "offloaded")
    # torch pins powers of two: here 8 MiB for each layer's input.
    assert pinned == (LAYERS * 2**23 if copied else 0)


@pytest.mark.nightly("exactness")
def test_selective_checkpointing_keeps_what_flash_attention_gives(
    model: Path, server: ChildServer, tmp_path: Path
) -> None:
    peaks = {}
    for kind in (True, "selective"):
        (tmp_path / str(kind)).mkdir()
        config = {**checkpointing_of(kind), **FLASH, "bf16": True}
        worker = "tests.cpu.test_estimate_scaling:compare_depths"
        case = Case(config, rows=14, shortest=260)
        _, (_, found) = answered(case, model, server, tmp_path / str(kind), worker)
        peaks[kind] = found[0][0]
    kept = LAYERS * 14 * LONGEST * LLAMA["hidden_size"] * 2
    assert kept < peaks["selective"] - peaks[True] < 1.3 * kept  # and sums in float32


@pytest.mark.nightly("exactness")
def test_a_kind_of_attention_that_few_layers_have_is_traced(
    server: ChildServer, tmp_path: Path
) -> None:
    model = model_folder(tmp_path / "model", TWO_KINDS)
    eager = {**LORA, **CHECKPOINTED, "attn_implementation": "eager"}
    reply = answered(Case(eager, rows=14, shortest=130), model, server, tmp_path)
    assert reply["layers"] == [FEW, LAYERS]
    for estimate, whole, _ in reply["pairs"]:
        assert estimate[0] == pytest.approx(whole[0], rel=0.001)


@pytest.mark.nightly("exactness")
def test_where_layers_differ_all_are_traced(server: ChildServer, tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", EXPERTS)
    reply = answered(CASES["full"], model, server, tmp_path)
    assert reply["layers"] == [LAYERS, LAYERS]
    assert reply["growth"] == 1.0
    for estimate, whole, _ in reply["pairs"]:
        assert estimate[0] == pytest.approx(whole[0], rel=0.001)
        assert estimate[1] == pytest.approx(whole[1], rel=0.01)
