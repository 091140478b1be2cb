"""What models take while they are loaded, against real loads by TRL's own call on the CPU: bytes of
a process that are no file's. The C library keeps a few MB more."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from autotune.estimate.formula.loading import Loaded, on_device, on_host
from autotune.facts.model import survey_model
from autotune.space.quantization import FOUR_BITS, base_bytes
from autotune.space.sharding.sharding import Sharding
from tests.guards import some_of

pytestmark = pytest.mark.slow

DENSE = {
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000},
}
MIXTURE = {
    **{"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256},
    **{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"vocab_size": 8000, "num_experts": 16, "num_experts_per_tok": 2},
}
CONFIGS: dict[str, tuple[str, dict[str, int]]] = {
    "dense": ("LlamaConfig", DENSE),
    "mixture": ("Qwen3MoeConfig", MIXTURE),
}
PACKED = {
    **{"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8000},
    **{"num_local_experts": 8, "num_experts_per_tok": 2},
}
LOADED = [("dense", None), ("dense", 4), ("dense", 8), ("mixture", None)]
ALONE, MIB = Sharding(), 2**20


def of_ranks(**fields: Any) -> Sharding:
    return Sharding(num_processes=2, **fields)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of checkpoints, each in float32 and in bfloat16."""
    folder = tmp_path_factory.mktemp("models")
    for name, (kind, sizes) in CONFIGS.items():
        config = getattr(transformers, kind)(**sizes)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for dtype in (torch.float32, torch.bfloat16):
            model.to(dtype).save_pretrained(folder / f"{name}-{str(dtype)[6:]}")
    return folder


def loaded(folder: Path, bits: int | None = None) -> Loaded:
    """The model of a folder, loaded in bfloat16."""
    facts = survey_model(
        str(folder), "real", folder, method="sft", revision=None, trust_remote_code=False
    )
    fields = {4: FOUR_BITS, 8: {"load_in_8bit": True}, None: {}}[bits]
    base = base_bytes(facts, {**fields, "dtype": "bfloat16"})
    return Loaded(
        parameters=facts.parameters,
        models=1,
        width=2,
        converted=facts.dtype != "bfloat16",
        held_bytes=2 * facts.parameters if base is None else base,
        largest=facts.largest_weight or 0,
        embedding=(facts.hidden_size or 0) * (facts.vocab_size or 0),
        bits=bits,
        fused=facts.active_parameters is not None,
    )


def grown(folder: Path, bits: int | None = None, engine: str = "") -> list[int]:
    """By how much each process grew; what is freed goes back to the system at once."""
    ranks = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    child = [str(Path(__file__).with_name("loads.py")), str(folder), str(bits or 0), engine]
    root = str(Path(__file__).parents[2])
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    environment = {
        **os.environ,
        **{"PYTHONPATH": root, "MALLOC_MMAP_THRESHOLD_": "65536", "DS_ACCELERATOR": "cpu"},
        **(fsdp if engine == "FSDP" else {}),
    }
    command = [sys.executable, *(ranks if engine else []), *child]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line[line.index("{") :] for line in ended.stdout.splitlines() if '"grown"' in line]
    assert lines, ended.stderr[-2000:]
    return [json.loads(line)["grown"] for line in lines]


@pytest.mark.parametrize("kind", some_of(LOADED, [("dense", None)], "exactness"))
def test_one_process_takes_what_is_expected_of_a_device(
    models: Path, kind: tuple[str, int | None]
) -> None:
    name, bits = kind
    folder = models / f"{name}-float32"
    expected = on_device(loaded(folder, bits), ALONE, "cpu")
    (took,) = grown(folder, bits)
    print(name, bits, took / expected)
    assert expected * 0.98 < took < 1.03 * expected + 4 * MIB


def test_a_file_of_the_same_type_is_only_mapped(models: Path) -> None:
    (took,) = grown(models / "dense-bfloat16")
    assert took < 6 * MIB


@pytest.mark.parametrize("stored", some_of(["float32", "bfloat16"], {"float32"}, "ranks"))
def test_each_rank_of_fsdp_makes_a_whole_model_of_another_type(models: Path, stored: str) -> None:
    """In spite of `cpu_ram_efficient_loading`."""
    folder = models / f"dense-{stored}"
    expected = on_host(loaded(folder), of_ranks(distributed_type="FSDP"), 2)
    took = sum(grown(folder, engine="FSDP"))
    assert expected * 0.98 <= took < 1.03 * expected + 12 * MIB


@pytest.mark.nightly("ranks")
def test_a_rank_of_zero_3_holds_its_part_and_twice_the_largest_weight(models: Path) -> None:
    folder = models / "dense-bfloat16"
    sharding = of_ranks(distributed_type="DEEPSPEED", zero_stage=3)
    expected = on_device(loaded(folder), sharding, "cpu")
    for took in grown(folder, engine="DEEPSPEED"):
        print(took / expected)
        assert expected * 0.98 < took < 1.03 * expected + 4 * MIB


def test_experts_in_mxfp4_are_unpacked_beside_what_becomes_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**PACKED)).bfloat16()
    model.save_pretrained(folder)
    facts = loaded(folder)
    weights = load_file(folder / "model.safetensors")
    experts = [n for n in weights if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    sizes = [weights.pop(name) for name in experts]
    for name, weight in zip(experts, sizes, strict=True):
        count, inputs, outputs = weight.shape
        shape = (count, outputs, inputs // 32)
        weights[f"{name}_blocks"] = torch.randint(0, 255, (*shape, 16), dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full(shape, 120, dtype=torch.uint8)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mapped = 2 * (facts.parameters - sum(weight.numel() for weight in sizes))
    expected = on_device(replace(facts, unpacked=True), ALONE, "cpu") - mapped
    (took,) = grown(folder)
    print(took / expected)
    assert expected * 0.97 < took < 1.03 * expected + 4 * MIB
