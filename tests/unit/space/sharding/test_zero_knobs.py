"""The finer settings of ZeRO: one value each unless a job asks, and only where they matter."""

import pytest

from autotune.errors import UserError
from autotune.report.words import describe
from autotune.space.bind import bind
from autotune.space.sharding.deepspeed import deepspeed_of, default_size
from autotune.space.sharding.sharding import ZERO_FIELDS, sharding_of
from tests.unit.builders import make_facts, make_job, shipped
from tests.unit.loading import load

HIDDEN = 8  # of the facts
PINS = {
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "attn_implementation": "sdpa",
    "optim": "adamw_torch",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "dataloader_num_workers": 0,
    "expandable_segments": False,
    "activation_offloading": False,
    "use_liger_kernel": False,
}
ASKED = {
    "overlap_comm": [True, False],
    "reduce_bucket_size": [64, 256],
    "stage3_prefetch_bucket_size": [57, 0],
    "stage3_param_persistence_threshold": [80, 800],
    "pin_memory": [True, False],
}
FLAT = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0}


def space_of(kind="cuda", definition=None, fixed=None, **changes):
    job = make_job(
        devices={"count": 2}, global_batch_size=2, fixed={**PINS, **(fixed or {})}, **changes
    )
    return bind(definition or shipped(), job, make_facts(kind))


def spread(candidate):
    return sharding_of(candidate.values, 2)


def way(candidate):
    """What is divided, and what is kept where."""
    sharding = spread(candidate)
    places = (
        sharding.offload_optimizer_device,
        sharding.offload_param_device,
        sharding.fsdp_reshard_after_forward,
    )
    return sharding.distributed_type, sharding.zero_stage, *places


@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_they_make_no_space_larger_until_they_are_asked_for(kind, pinned):
    space = space_of(kind)
    assert not set(ZERO_FIELDS) & {knob.name for knob in space.free_knobs}
    (values,) = {tuple(candidate[name] for name in ZERO_FIELDS) for candidate in space.candidates}
    assert values == (True, HIDDEN**2, int(0.9 * HIDDEN**2), 10 * HIDDEN, pinned)


@pytest.mark.parametrize("name", ASKED)
def test_each_is_searched_where_it_does_something_and_nowhere_else(name):
    plain, open_space = space_of(), space_of(recipe={name: ASKED[name]})
    ways = {way(candidate) for candidate in plain.candidates}
    assert {way(candidate) for candidate in open_space.candidates} == ways
    repeated_ways = [
        way_of_candidate
        for way_of_candidate in ways
        if sum(way(c) == way_of_candidate for c in open_space.candidates) == 2
    ]
    assert len(open_space.candidates) == len(plain.candidates) + len(repeated_ways)
    expected = {
        "overlap_comm": lambda kind, stage, *_: kind == "DEEPSPEED",
        "reduce_bucket_size": lambda kind, stage, *_: kind == "DEEPSPEED",
        "pin_memory": lambda kind, stage, adam, weights, _: (adam, weights) != ("none", "none"),
    }.get(name, lambda kind, stage, *_: stage == 3)
    assert {way_of_candidate for way_of_candidate in ways if expected(*way_of_candidate)} == set(
        repeated_ways
    )
    assert any(
        "the same candidate again" in exclusion.reason for exclusion in open_space.exclusions
    )


@pytest.mark.parametrize("name", ASKED)
def test_a_pinned_one_excludes_no_other_way_to_spread_a_training(name):
    plain, pinned = space_of(), space_of(fixed={name: ASKED[name][1]})
    assert [way(candidate) for candidate in pinned.candidates] == [
        way(candidate) for candidate in plain.candidates
    ]
    for candidate in pinned.candidates:
        assert candidate[name] == ASKED[name][1]
        engine = way(candidate)[0] == "DEEPSPEED"
        default = None if "size" in name or "threshold" in name or "pin" in name else True
        assert getattr(spread(candidate), name) == (ASKED[name][1] if engine else default)


def test_what_is_chosen_is_what_deepspeed_is_told():
    fields = {name: values[1] for name, values in ASKED.items()}
    way = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "offload_optimizer_device": "cpu"}
    (candidate,) = space_of(fixed={**fields, **way, "offload_param_device": "cpu"}).candidates[:1]
    zero = deepspeed_of(spread(candidate), FLAT, make_facts("cuda"))["zero_optimization"]
    for name in (
        "overlap_comm",
        *(name for name in fields if name.endswith(("size", "threshold"))),
    ):
        assert zero[name] == fields[name]
    assert zero["offload_optimizer"]["pin_memory"] is zero["offload_param"]["pin_memory"] is False
    (lower,) = space_of(fixed={**fields, **way, "zero_stage": 2}).candidates[:1]
    zero = deepspeed_of(spread(lower), FLAT, make_facts("cuda"))["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == 256
    assert not [name for name in zero if name.startswith("stage3")]


def test_deepspeed_gathers_in_buckets_of_an_even_size():
    fields = {"distributed_type": "DEEPSPEED", "zero_stage": 2, "reduce_bucket_size": 1001}
    zero = deepspeed_of(sharding_of(fields, 2), FLAT, make_facts("cuda"))["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (1001, 1002)


def test_a_model_without_a_hidden_size_has_deepspeeds_defaults_alone():
    assert default_size("reduce_bucket_size", None) == 500_000_000
    assert default_size("stage3_prefetch_bucket_size", None) == 50_000_000
    assert default_size("stage3_param_persistence_threshold", None) == 100_000


def test_memory_is_not_pinned_where_no_gpu_copies_it():
    with pytest.raises(UserError, match="Memory is pinned for copies to and from a GPU"):
        space_of("cpu", fixed={"pin_memory": True})


def test_sizes_that_are_none_are_refused_all_at_once(tmp_path):
    fixed = "{reduce_bucket_size: 0, stage3_prefetch_bucket_size: -1, overlap_comm: maybe}"
    with pytest.raises(UserError) as caught:
        load(tmp_path, f"devices: {{count: 2}}\nfixed: {fixed}\n")
    output = [problem.what for problem in caught.value.problems]
    assert "`reduce_bucket_size` must be a whole number above 0" in output
    assert "`stage3_prefetch_bucket_size` must be a whole number from 0 on" in output
    assert "`overlap_comm` cannot be `maybe`" in output


def test_a_report_tells_candidates_apart_that_differ_in_them():
    space = space_of(recipe={"overlap_comm": [True, False]}, fixed={"zero_stage": 2})
    free = [knob.name for knob in space.free_knobs]
    names = {describe(candidate, free) for candidate in space.candidates}
    assert len(names) == len(space.candidates) > 1
    assert any("overlap_comm=false" in name for name in names)
