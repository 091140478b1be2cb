"""Whatever a file holds, it is imported or refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.space.foreign.command_line import Command, parse_command
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from autotune.space.foreign.launch import COUNTS
from autotune.space.foreign.tool import Tool, part_of, tool_of, tools
from autotune.space.job_file.load import judge
from tests.unit.space.foreign import files

WORDS = ("sft", "dpo", "lora", "qlora", "auto", "true", "all", "${seed}", "8", "1e-4", "", "/a/b")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)
EXAMPLES = {
    "Axolotl": files.AXOLOTL,
    "LLaMA-Factory": files.LLAMA_FACTORY,
    "torchtune": files.TORCHTUNE,
    "TRL or TrainingArguments": files.TRL,
    "Unsloth": files.UNSLOTH,
}
LAUNCH = {**files.read(files.ACCELERATE), **files.read(files.DEEPSPEED)}


def attempt(
    given_files: list[GivenFile],
    as_is: bool,
    processes: int | None,
    command: Command | None = None,
) -> None:
    try:
        found = import_job(given_files, Wishes(as_is=as_is, devices=processes), command)
    except UserError as error:
        assert all(problem.what for problem in error.problems)
        return
    assert all(fate.detail for fate in found.fates)
    try:
        judge(found.job, "fuzzed.yaml", Path("/"))
    except UserError as error:
        assert all(problem.what for problem in error.problems)


@pytest.mark.parametrize("tool", tools(), ids=lambda tool: tool.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fields_of_any_value(tool: Tool, data: st.DataObject) -> None:
    example: dict[str, Any] = files.read(EXAMPLES[tool.name])
    names = sorted(
        {*example, *COUNTS, *(name.partition(".")[0] for name in [*tool.fields, *tool.effects])}
    )
    changes = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=8))
    theirs = {**example, **changes}
    launch = data.draw(st.dictionaries(st.sampled_from(sorted(LAUNCH)), VALUES, max_size=6))
    beside = [GivenFile(name="launch.yaml", data=launch)]
    beside = beside if part_of(launch) in ("accelerate", "DeepSpeed") else []
    if tool_of(theirs) is None:
        return
    given_files = [GivenFile(name="fuzzed.yaml", data=theirs), *beside]
    attempt(given_files, data.draw(st.booleans()), data.draw(st.sampled_from([None, 1, 3, 8])))


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(
            ["accelerate", "launch", "--num_processes", "2", "torchrun", "trl", "sft", "train.py"]
            + ["--config", "a.yaml", "--model_name_or_path", "x", "a=b", "--", "-m", "python", ""]
            + [
                "CUDA_VISIBLE_DEVICES=0,1",
                "--bf16",
                "--learning_rate=1e-4",
                "tune",
                "run",
                "[",
                "{",
            ]
            + ["NNODES=2", "NPROC_PER_NODE=0", "deepspeed", "--include", "a:0,1@b", "--nnodes"]
            + ["1:2", "axolotl", "train", "--launcher", "--nproc_per_node=gpu", "--num_processes"]
        ),
        max_size=12,
    )
)
def test_words_of_any_order(words: list[str]) -> None:
    try:
        command = parse_command(words)
    except UserError as error:
        assert all(problem.what for problem in error.problems)
        return
    assert all(not name.startswith("-") for name in command.flags)
    json.dumps(command.flags)
    beside = [GivenFile(name=name, data=files.read(files.TRL)) for name in command.files[:1]]
    attempt(beside, False, None, command)
