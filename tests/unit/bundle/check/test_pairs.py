"""What the check says of files that disagree, and of the same made to agree."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.bundle.check.read import read_launch
from autotune.errors import UserError
from tests.unit.bundle.check.asking import checked
from tests.unit.bundle.check.pairs import DEEPSPEED, FSDP, LAUNCHER, PAIRS, TRAINER, write_pair

BAD = (None, 0, -1, "four", [], {}, True)
OFFLOAD = {"device": "nvme", "nvme_path": "/fast", "pin_memory": True}
FILES = {
    "trainer.yaml": TRAINER | {"optim": "adamw_torch_fused", "lora_target_modules": ["q_proj"]},
    "accelerate.yaml": LAUNCHER
    | {"distributed_type": "DEEPSPEED", "fsdp_config": FSDP, "machine_rank": 0, "use_cpu": False}
    | {"deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": True}},
    "deepspeed.json": DEEPSPEED
    | {"fp16": {"enabled": False, "loss_scale": 0}, "steps_per_print": 10}
    | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999]}}}
    | {"zero_optimization": {"stage": 3, "offload_optimizer": OFFLOAD}},
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_of_a_pair_agrees_and_the_other_does_not(name: str, tmp_path: Path) -> None:
    write_pair(tmp_path / "right", name, wrong=False)
    assert checked(read_launch(tmp_path / "right")).problems == ()
    write_pair(tmp_path / "wrong", name, wrong=True)
    (problem,) = checked(read_launch(tmp_path / "wrong")).problems
    assert problem.where == PAIRS[name].where
    assert PAIRS[name].says in problem.what


def places(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each field of a file: what it stands in, and its name."""
    for name, value in list(data.items()):
        yield data, name
        if isinstance(value, dict):
            yield from places(value)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.nightly("launches")), 9])
@pytest.mark.parametrize("file", FILES)
def test_no_value_ends_the_check(file: str, step: int, tmp_path: Path) -> None:
    """Each field with each bad value, in turn; the stack answers, whatever stands there."""
    texts = {name: json.dumps(data) for name, data in FILES.items()}
    count = sum(1 for _ in places(json.loads(texts[file]))) * len(BAD)
    for number in range(0, count, step):
        data = json.loads(texts[file])
        inside, name = list(places(data))[number // len(BAD)]
        inside[name] = BAD[number % len(BAD)]
        for other, text in (texts | {file: json.dumps(data)}).items():
            is_yaml = other.endswith("yaml")
            text = yaml.safe_dump(json.loads(text)) if is_yaml else text
            (tmp_path / other).write_text(text, encoding="utf-8")
        try:
            found = checked(read_launch(tmp_path))
        except UserError:
            continue  # it is not known any more for the file that it is
        assert found.unasked == "", (name, inside[name])
        assert all(problem.where and problem.what for problem in found.problems)
