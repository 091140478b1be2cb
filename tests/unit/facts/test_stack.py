import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.facts import stack
from autotune.facts.stack import (
    LIBRARIES,
    RENAMED,
    canonical_name,
    field_name,
    installed,
    training_fields,
    version,
)
from autotune.job.methods import METHODS
from tests.guards import ppo_apart

HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "optuna")
ROOT = Path(__file__).parents[3]

ASK = """
import json, sys
from autotune.facts.stack import installed, training_fields
from autotune.space.job_file.load import load_job
from autotune.space.definition import load_definition
load_definition("sft")
facts = installed()
print(json.dumps({"modules": sorted(sys.modules), "fields": sorted(training_fields()),
                  "versions": facts.versions}))
"""

FIELDS = """
import dataclasses, json
from trl import ModelConfig, SFTConfig
print(json.dumps(sorted({f.name for c in (SFTConfig, ModelConfig) for f in dataclasses.fields(c)})))
"""


def python(code: str):
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(completed.stdout.splitlines()[-1])


def test_the_stack_is_read_without_importing_it():
    answer = python(ASK)
    assert not set(HEAVY) & set(answer["modules"])
    assert {"learning_rate", "loss_type", "attn_implementation", "output_dir"} <= set(
        answer["fields"]
    )
    assert answer["versions"]["optuna"]


@pytest.mark.slow
def test_the_fields_read_from_the_source_are_those_of_the_classes():
    """Its child process imports torch."""
    assert sorted(training_fields()) == python(FIELDS)


def test_versions_are_those_of_the_metadata():
    facts = installed()
    assert set(facts.versions) == set(LIBRARIES)
    assert facts.versions["trl"] == version("trl")
    assert version("no-such-library-at-all") is None
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert set(facts.training_fields) == training_fields()


def test_a_field_is_called_what_the_version_prefers():
    for old, new in RENAMED.items():
        assert field_name(old, frozenset({old})) == old
        assert field_name(old, frozenset({old, new})) == new
        assert field_name(old, frozenset({new})) == new
        assert canonical_name(new) == canonical_name(old) == old
    assert field_name("loss_type", frozenset()) == canonical_name("loss_type") == "loss_type"


def test_a_method_that_left_trl_is_refused_with_the_pin_and_two_others(monkeypatch):
    """A TRL as 1.13 and later are."""
    gone = replace(stack.METHODS["ppo"], source="not/there.py")
    monkeypatch.setattr(stack, "METHODS", {**stack.METHODS, "ppo": gone})
    with pytest.raises(UserError) as caught:
        stack.refuse_missing("ppo")
    message = str(caught.value)
    assert "has no PPOTrainer: 1.12 is the last that has it" in message
    assert "`scripts/setup --ppo`" in message and "`method: rloo`" in message
    stack.refuse_missing("sft")


@pytest.mark.parametrize("method", ppo_apart(METHODS))
def test_every_method_is_in_the_trl_that_this_project_pins(method):
    assert stack.missing(method) is None


@pytest.mark.ppo
def test_the_fields_of_ppo_that_are_kept_here_are_those_of_its_last_version():
    theirs = ("trl", METHODS["ppo"].source, "PPOConfig")
    assert stack._fields_of(*stack._config_of("ppo")) == stack._fields_of(*theirs)
    ours, told = (stack._values_of(*of) for of in (stack._config_of("ppo"), theirs))
    assert {name: ast.unparse(value) for name, value in ours.items()} == {
        name: ast.unparse(value) for name, value in told.items()
    }


def test_which_kernels_transformers_takes_from_the_hub_is_in_its_source(monkeypatch):
    assert stack.hub_attention() == tuple(f"flash_attention_{number}" for number in (2, 3, 4))
    least, most = stack.kernels_range().split(",")
    assert least.startswith(">=") and most.startswith("<")
    monkeypatch.setattr(stack, "module_found", lambda _: True)
    for found, taken in ((least[2:], True), (most[1:], False), ("0.1.0", False), (None, False)):
        monkeypatch.setattr(stack, "version", lambda _, found=found: found)
        assert ("kernels" not in stack.absent()) == taken
