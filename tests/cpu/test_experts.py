"""Mixtures of experts: what is told of them, and real trainings on the CPU."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.process.child_server import ChildServer
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.trl_config import resolve_dtype
from tests.cpu.conftest import Bench, open_bench
from tests.cpu.test_same_learning import one_step

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 509,
    "max_position_embeddings": 512,
    "num_experts_per_tok": 2,
}
QWEN = {
    **SMALL,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "moe_intermediate_size": 32,
}
GPT_OSS = {
    **SMALL,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 4,
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}
LLAMA_4 = {
    **SMALL,
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "num_local_experts": 4,
    "intermediate_size_mlp": 64,
}


def test_experts_computed_in_other_ways_learn_the_same(server: ChildServer, tmp_path: Path) -> None:
    bench = open_bench(tmp_path, server, QWEN, ["dataset={lengths: {max: 24, rows: 64}}"])
    assert bench.facts.model.expert_parameters == ("experts.down_proj", "experts.gate_up_proj")
    assert {c["experts_implementation"] for c in bench.space.candidates} == {"grouped_mm", "eager"}
    reference = one_step(bench, "reference", experts_implementation="grouped_mm")
    for kernels in ("eager", "batched_mm"):
        found = one_step(bench, kernels, experts_implementation=kernels)
        assert found["loss"] == pytest.approx(reference["loss"], rel=1e-5)
        assert found["moved"] == pytest.approx(reference["moved"], rel=2e-3)
    dense = replace(bench.facts.model, expert_parameters=(), expert_kernels=False)
    space = bind(load_definition("sft"), bench.job, replace(bench.facts, model=dense))
    assert not any("experts_implementation" in c.values for c in space.candidates)


def packed(folder: Path) -> None:
    """A checkpoint of gpt-oss whose experts are in MXFP4: two weights a byte, a scale for 32."""
    import torch
    import transformers
    from safetensors.torch import save_file

    plain = {k: v for k, v in GPT_OSS.items() if k != "quantization_config"}
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**plain)).bfloat16()
    tensors = {}
    for name, weight in model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = weight.contiguous()
            continue
        experts, inputs, outputs = weight.shape
        blocks = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 255, (*blocks, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full(blocks, 120, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_in_mxfp4_is_unpacked_and_trained(server: ChildServer, tmp_path: Path) -> None:
    bench = mxfp4(tmp_path, server, "tuning=lora", "precision=bf16")
    assert (bench.facts.model.weights, bench.facts.model.dequantized_from) == ("real", "mxfp4")
    assert resolve_dtype(bench.job, bench.facts) == (
        "bfloat16",
        "as which its weights in MXFP4 are unpacked",
    )
    (note,) = (note for note in bench.space.notes if "MXFP4" in note)
    assert "to download" in note and "package kernels is not installed" in note
    m = bench.probe(
        "experts", attn_implementation="eager", lora_target_parameters="experts", dtype="bfloat16"
    )
    assert m.outcome == "ok", m.reason


def mxfp4(folder: Path, server: ChildServer, *sets: str) -> Bench:
    """A job whose model is such a checkpoint, beside a tokenizer."""
    from benchmarks.estimate_exactness.models import write_model

    model = write_model("gpt-oss", folder / "packed")
    (model / "config.json").write_text(json.dumps(GPT_OSS), encoding="utf-8")
    packed(model)
    lengths = "dataset={lengths: {max: 24, rows: 64}}"
    return open_bench(folder, server, GPT_OSS, [f"model={model}", lengths, *sets])


def test_a_packed_checkpoint_is_not_quantised_again(server: ChildServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="quantises none again"):
        mxfp4(tmp_path, server, "tuning=qlora")


def test_a_model_whose_layers_trl_does_not_find_is_refused(
    server: ChildServer, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="does not train `Llama4ForCausalLM`"):
        open_bench(tmp_path, server, LLAMA_4, ["dataset={lengths: {max: 24, rows: 64}}"])
