"""Weights, data and configs of an allowed folder are read, and nothing in them is run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.data import load_splits
from autotune.facts.model import model_config


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_weights_and_data_run_no_code(tmp_path: Path) -> None:
    import torch
    import transformers

    mark = tmp_path / "mark"
    code = f"import os\nos.mkdir({str(mark)!r})\n"
    model = tmp_path / "model"
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=8,
    )
    config.save_pretrained(model)
    torch.save({"model.embed_tokens.weight": Evil(mark)}, model / "pytorch_model.bin")
    with pytest.raises(Exception, match="(?i)unpickl|weights_only|unsupported"):
        transformers.AutoModelForCausalLM.from_pretrained(model)
    assert not mark.exists()

    data = tmp_path / "data"
    data.mkdir()
    (data / "data.py").write_text(code, encoding="utf-8")
    (data / "train.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    with pytest.raises(RuntimeError, match="no longer supported"):
        load_splits(str(data), None)
    (data / "data.py").rename(data / "other.py")
    assert load_splits(str(data), None)["train"].column_names == ["text"]
    assert not mark.exists()


def test_a_config_runs_no_code_of_its_folder(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n", encoding="utf-8")
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    for model_type in ("evil", "llama"):
        config = {"model_type": model_type, "auto_map": auto_map, "architectures": ["Model"]}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            model_config(str(tmp_path), "sft", trust_remote_code=False)
        except ValueError:
            assert model_type == "evil"
        assert not mark.exists()
