"""Positions beyond those of the model: what transformers' own models do there, and what is said."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from autotune.facts.model import survey_model
from tests.cpu.conftest import LLAMA, Command, write_model
from tests.cpu.test_run import write_job

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 32}
WITH_MLP = {**SMALL, "intermediate_size": 8, "max_position_embeddings": 16}
GPT = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16, "vocab_size": 32}
OPT = {**SMALL, "ffn_dim": 8, "word_embed_proj_dim": 8, "max_position_embeddings": 16}
MODELS = {
    "gpt2": GPT,
    "opt": OPT,
    "gptj": {**GPT, "rotary_dim": 4},
    "mpt": {"d_model": 8, "n_heads": 1, "n_layers": 1, "max_seq_len": 16, "vocab_size": 32},
    "biogpt": WITH_MLP,
    "llama": WITH_MLP,
    "gpt_neox": WITH_MLP,
    "bloom": {"hidden_size": 8, "n_layer": 1, "n_head": 1, "vocab_size": 32},
}
LEARNED = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    **{"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 96, "vocab_size": 509},
}


def runs(model: torch.nn.Module, length: int) -> bool:
    try:
        model(input_ids=torch.full((1, length), 3), attention_mask=torch.ones(1, length))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("kind", MODELS)
def test_positions_are_fixed_where_the_model_fails_beyond_them(kind: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "model", {"model_type": kind, **MODELS[kind]})
    facts = survey_model(
        str(file),
        "random",
        tmp_path / "run",
        method="sft",
        revision=None,
        trust_remote_code=False,
    )
    config = transformers.AutoConfig.from_pretrained(file)
    model = transformers.AutoModelForCausalLM.from_config(config)
    most = facts.max_positions
    assert most == (None if kind == "bloom" else 16)
    assert runs(model, most or 16)
    assert facts.fixed_positions is not runs(model, (most or 16) + 1)


def test_roberta_counts_from_behind_its_padding(tmp_path: Path) -> None:
    config = {"model_type": "roberta", **WITH_MLP, "pad_token_id": 1, "eos_token_id": 2}
    facts = survey_model(
        str(write_model(tmp_path / "model", config)),
        "random",
        tmp_path / "run",
        method="reward",
        revision=None,
        trust_remote_code=False,
    )
    assert (facts.max_positions, facts.fixed_positions) == (14, True)


def test_more_than_the_model_has_positions_for_is_refused_before_any_probe(
    autotune: Command,
) -> None:
    write_job(autotune.folder, method="rloo", max_length=None, reward_funcs=["accuracy_reward"])
    config = autotune.folder / "model" / "config.json"
    config.write_text(json.dumps(LEARNED), encoding="utf-8")
    err = autotune.refused("run", "job.yaml", "--set", "dataset={lengths: {max: 60}}")
    assert "prompts of up to 60 and 512 new tokens are 572, more than the 96 positions" in err
    assert "hint: the largest possible: 36" in err


def test_a_rotary_model_goes_on_and_that_is_said(autotune: Command) -> None:
    write_job(autotune.folder, max_length=128)
    config = autotune.folder / "model" / "config.json"
    config.write_text(json.dumps({**LLAMA, "max_position_embeddings": 64}), encoding="utf-8")
    out = autotune("validate", "--space", "job.yaml", "--json")
    (note,) = json.loads(out)["notes"]
    assert "tokens, more than the 64 positions that" in note
