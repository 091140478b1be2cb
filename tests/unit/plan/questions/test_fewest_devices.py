"""How few devices would do."""

import dataclasses

import pytest

from autotune.cli.views.limits import fewest_lines, fewest_plain
from autotune.errors import UserError, user_error
from autotune.plan.plan import Plan
from autotune.plan.questions import fewest_devices as module
from autotune.plan.questions.fewest_devices import fewest
from tests.unit.builders import GIB, make_estimate, make_facts, make_job, make_space, shipped


def plans(monkeypatch, room, p_oom=0.0):
    """Plans in which every candidate takes 80 GiB over as many devices; an odd batch at 4.

    Args:
        p_oom: of what fits with less than 1 GiB to spare.
    """
    asked = []

    def plan(job, definition, folder, *, device, assume, effort, progress):
        devices = job.devices.count
        asked.append((devices, device))
        if devices == 4:
            raise user_error("16 rows cannot be divided among 4 devices", where="job")
        space = make_space(make_job(), make_facts("cuda"))
        estimate = dataclasses.replace(make_estimate(GIB, 100.0 * devices))
        estimate = dataclasses.replace(
            estimate,
            peak_memory_bytes=80 * GIB // devices,
            fits=80 * GIB // devices <= room,
            p_oom=p_oom if 0 <= room - 80 * GIB // devices < GIB else 0.0,
        )
        return Plan(
            facts=make_facts("cuda"),
            space=space,
            estimates={one.key: estimate for one in space.candidates},
            limit_bytes=room,
            devices=devices,
            seconds=0.1,
            cached=False,
        )

    monkeypatch.setattr(module, "plan", plan)
    return asked


def test_the_first_number_on_which_something_fits_ends_it(monkeypatch, tmp_path):
    asked = plans(monkeypatch, 12 * GIB)
    tried = fewest(make_job(), shipped(), tmp_path, device="h100")
    assert [one.devices for one in tried] == [1, 2, 4, 8]
    assert [one.fits for one in tried] == [False, False, False, True]
    assert asked == [(n, "h100") for n in (1, 2, 4, 8)]
    lines = list(fewest_lines(tried))
    assert lines[0].startswith("1 device: nothing fits; the least takes 80 GiB of 12 GiB on each")
    assert lines[2] == "4 devices: cannot be: 16 rows cannot be divided among 4 devices"
    assert (
        lines[3]
        == "8 devices: is safe; the fastest takes 10 GiB of 12 GiB on each, 800 tokens/s on all"
    )
    plain = fewest_plain(tried)
    assert plain["devices"] == 8
    assert [one["fits"] for one in plain["tried"]] == [False, False, False, True]
    assert plain["tried"][3]["estimate"]["peak_memory_bytes"] == 10 * GIB


def test_a_number_on_which_something_merely_may_fit_is_told_and_does_not_end_it(
    monkeypatch, tmp_path
):
    plans(monkeypatch, 40 * GIB, p_oom=0.27)
    tried = fewest(make_job(), shipped(), tmp_path, device="h100")
    assert [(one.devices, one.fits, one.safe) for one in tried] == [
        (1, False, False),
        (2, True, False),
        (4, False, False),
        (8, True, True),
    ]
    lines = list(fewest_lines(tried))
    assert lines[1].startswith("2 devices: may fit, with p(oom) 0.27; the fastest takes 40 GiB of")
    plain = fewest_plain(tried)
    assert (plain["devices"], plain["possible"]) == (8, 2)


@pytest.mark.parametrize(
    ("fixed", "left_out"),
    [
        ({"distributed_type": "DEEPSPEED", "zero_stage": 3}, ("distributed_type", "zero_stage")),
        ({"distributed_type": "MULTI_GPU"}, ("distributed_type",)),
        (
            {"distributed_type": "DEEPSPEED", "zero_stage": 2, "offload_optimizer_device": "cpu"},
            (),
        ),
    ],
)
def test_one_device_does_without_what_only_divides(fixed, left_out, monkeypatch, tmp_path):
    asked = []

    def plan(job, definition, folder, *, device, assume, effort, progress):
        asked.append(job.fixed)
        return made(
            job, definition, folder, device=device, assume=assume, effort=effort, progress=progress
        )

    plans(monkeypatch, 90 * GIB)
    made = module.plan
    monkeypatch.setattr(module, "plan", plan)
    (tried,) = fewest(make_job(fixed=fixed), shipped(), tmp_path, device="h100")
    assert tried.left_out == left_out
    assert asked == [{name: one for name, one in fixed.items() if name not in left_out}]
    said = [line for line in fewest_lines([tried]) if "nothing to divide" in line]
    assert len(said) == bool(left_out)
    assert fewest_plain([tried])["tried"][0]["left_out"] == list(left_out)


def test_where_no_number_does_it_says_so(monkeypatch, tmp_path):
    plans(monkeypatch, GIB)
    tried = fewest(make_job(), shipped(), tmp_path, device="h100")
    assert tried[-1].devices == 64 and not tried[-1].fits
    assert fewest_plain(tried)["devices"] is None
    assert "autotune advise" in list(fewest_lines(tried))[-1]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_kind_of_gpu_must_be_named(device, tmp_path):
    with pytest.raises(UserError, match="kind of GPU"):
        fewest(make_job(), shipped(), tmp_path, device=device)


def test_beside_a_server_one_device_is_not_enough(monkeypatch, tmp_path):
    asked = plans(monkeypatch, 60 * GIB)
    fixed = {"use_vllm": True, "vllm_mode": "server"}
    job = make_job(method="grpo", max_length=None, reward_model_path="some/judge", fixed=fixed)
    assert [one.devices for one in fewest(job, shipped(), tmp_path, device="h100")] == [2]
    assert asked == [(2, "h100")]
