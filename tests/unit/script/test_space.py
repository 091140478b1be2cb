"""What may vary of a script: what can be set from outside, at the batch that it has."""

from typing import Any

import pytest

from autotune.errors import UserError
from autotune.facts.devices import DeviceFacts
from autotune.facts.stack import StackFacts
from autotune.script.protocol import Look
from autotune.script.space import changes_of, facts_of, fields_of, job_of, space_of
from autotune.space.bind import SearchSpace
from tests.unit.script.looks import LOOK, looked

GPU = DeviceFacts(
    kind="cuda", index=0, name="H100", total_bytes=80 << 30, free_bytes=79 << 30, cores=8
)


def space(look: Look, **limits: Any) -> SearchSpace:
    job = job_of(look, limits)
    absent = ("liger-kernel",)
    return space_of(
        look, job, facts_of(look, GPU, StackFacts(python="3", versions={}, absent=absent))
    )


def values(found: SearchSpace) -> dict[str, set[Any]]:
    return {k.name: set(k.values) for k in found.free_knobs}


@pytest.mark.parametrize(("processes", "each"), [(1, 16), (2, 16), (4, 16)])
def test_the_rows_of_a_step_stay_what_the_arguments_come_to(processes: int, each: int) -> None:
    look = looked(processes=processes)
    assert look.global_batch == each * processes
    for candidate in space(look).candidates:
        fields = fields_of(candidate, look)
        per_step = fields["per_device_train_batch_size"] * fields["gradient_accumulation_steps"]
        assert per_step * processes == look.global_batch


def test_what_the_script_has_is_the_candidate_that_all_is_held_against() -> None:
    look = looked(gradient_checkpointing=False, dataloader_num_workers=5)
    found = space(look)
    assert changes_of(found.default(), look) == {}
    assert values(found)["dataloader_num_workers"] == {0, 2, 5}


def test_the_allocator_is_tried_as_the_script_has_it_and_with_growing_segments() -> None:
    assert values(space(LOOK))["expandable_segments"] == {False, True}


def test_a_switch_that_the_script_leaves_open_is_off() -> None:
    look = looked(activation_offloading=None)
    found = space(look)
    assert values(found)["activation_offloading"] == {False, True}
    assert changes_of(found.default(), look) == {}


def test_without_data_workers_what_needs_them_would_be_refused() -> None:
    look = looked(dataloader_num_workers=1, extra={"dataloader_prefetch_factor": 4})
    assert values(space(look))["dataloader_num_workers"] == {1, 2}


def test_the_recipe_does_not_move() -> None:
    found = space(looked(optim="adafactor", packing=True))
    assert not values(found).keys() & {"optim", "packing", "max_length", "padding_free"}
    assert all(candidate["optim"] == "adafactor" for candidate in found.candidates)


@pytest.mark.parametrize(
    ("changes", "knob", "varies"),
    [
        ({}, "padding_free", False),  # sdpa would let rows see each other
        ({"attention": "flash_attention_2"}, "padding_free", True),
        ({}, "train_sampling_strategy", True),
        ({"groups": False}, "train_sampling_strategy", False),
        ({"online": True}, "train_sampling_strategy", False),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy", False),
        ({"checkpointing": False}, "gradient_checkpointing", True),  # it is on by its arguments
        (
            {"checkpointing": False, "gradient_checkpointing": False},
            "gradient_checkpointing",
            False,
        ),
        ({}, "per_device_train_batch_size", True),
        ({"kinds": ["KTOTrainer", "Trainer"]}, "per_device_train_batch_size", False),
        ({}, "use_liger_kernel", False),  # not installed here
    ],
)
def test_what_varies_depends_on_the_script(
    changes: dict[str, Any], knob: str, varies: bool
) -> None:
    assert (knob in values(space(looked(**changes)))) == varies


def test_a_script_that_sets_a_field_that_its_stack_lacks_is_left_alone() -> None:
    arguments = {n: v for n, v in LOOK.arguments.items() if n != "activation_offloading"}
    look = looked()
    look.arguments.clear()
    look.arguments.update(arguments)
    assert "activation_offloading" not in values(space(look))


def test_generation_keeps_its_batch_where_micro_batches_change() -> None:
    extra = {"generation_batch_size": 32, "num_generations": 8, "steps_per_generation": 8}
    look = looked(online=True, extra=extra)
    found = space(look)
    assert all(32 % candidate.micro_batch == 0 for candidate in found.candidates)
    changed = next(c for c in found.candidates if c.micro_batch == 8)
    fields = changes_of(changed, look)
    assert (fields["generation_batch_size"], fields["steps_per_generation"]) == (32, None)


def test_the_usual_generation_batch_follows_by_itself() -> None:
    look = looked(online=True, extra={"generation_batch_size": 16, "steps_per_generation": 4})
    changed = next(c for c in space(look).candidates if c.micro_batch == 8)
    assert "generation_batch_size" not in changes_of(changed, look)


def test_fields_have_the_names_of_the_scripts_own_stack() -> None:
    look = looked(extra={"activation_checkpointing": True})
    changed = next(c for c in space(look).candidates if not c["gradient_checkpointing"])
    assert changes_of(changed, look)["activation_checkpointing"] is False


def test_a_pinned_knob_stays_and_an_unknown_one_is_named() -> None:
    found = space(LOOK, fixed={"gradient_checkpointing": False})
    assert not any(candidate["gradient_checkpointing"] for candidate in found.candidates)
    with pytest.raises(UserError, match="did you mean `gradient_checkpointing`"):
        space(LOOK, fixed={"gradient_checkpoint": False})
