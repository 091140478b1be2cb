"""What is expected of a candidate: parts that add up, and a verdict that its figures bear out."""

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.estimate.estimate import (
    CONTEXT,
    CPU_SIGMA,
    CPU_TRAINING,
    CUDA_PRIOR,
    FRAGMENTATION,
    GUESSED_SIGMA,
    HOPPER_PRIOR,
    Estimate,
    estimated,
    prior_residual,
)
from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import ACTIVATIONS, LOGITS, PARTS
from autotune.estimate.residual import Residual
from autotune.estimate.variant import UNTRACEABLE
from autotune.facts.device_kinds import facts_of, find_kind
from autotune.facts.devices import cpu
from autotune.plain_data import from_plain

MIB = 2**20
GIB = 2**30
BYTES = st.integers(0, 200 * GIB)


def point(parts, **changes):
    allocated = sum(parts.values())
    fields = {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": allocated + 100 * MIB,
        "parts": parts,
        "operator": "aten::mm",
        "phase": "micro-step",
        "oom": False,
        "missing_bytes": None,
        "retries": 0,
        "phases": {"micro-step": allocated},
        "micro_peaks": [parts],
        "sample": [],
        "masked": False,
        "method": "scaled trace",
    }
    return PointReply(**{**fields, **changes})


@st.composite
def points(draw):
    """Replies as they come, and some in which the figures of the allocator are odd."""
    parts = draw(st.dictionaries(st.sampled_from(PARTS), BYTES, min_size=1))
    allocated = sum(parts.values())
    phases = draw(st.dictionaries(st.sampled_from(["data", "clip", "step", ""]), BYTES))
    oom = draw(st.booleans())
    reserved = draw(st.one_of(st.integers(allocated, allocated + 20 * GIB), BYTES))
    return point(
        parts,
        peak_reserved_bytes=reserved,
        phases={"micro-step": allocated, **phases},
        oom=oom,
        missing_bytes=draw(st.one_of(st.none(), st.integers(0, GIB))) if oom else None,
    )


RESIDUALS = st.builds(
    Residual,
    bias=st.floats(-0.3, 0.3),
    offset_bytes=st.floats(-GIB, GIB),
    relative_sigma=st.floats(0, 0.3),
    sigma_bytes=st.floats(0, GIB),
)
REPLACED = st.lists(st.sampled_from(sorted(UNTRACEABLE)), unique=True).map(tuple)
LAYERS = st.integers(0, 100)


@given(points(), REPLACED, RESIDUALS, BYTES, LAYERS)
@example(point({"weights": 1}, peak_reserved_bytes=1), (), Residual(offset_bytes=0.5), GIB, 1)
def test_the_parts_add_up_to_the_whole(reply, replaced, residual, limit, layers):
    estimate = estimated(reply, replaced, residual, limit, layers)
    assert sum(estimate.parts.values()) == estimate.peak_memory_bytes
    traced = {name: n for name, n in estimate.parts.items() if name not in (FRAGMENTATION, CONTEXT)}
    assert sum(traced.values()) == estimate.peak_allocated_bytes
    assert (
        estimate.peak_allocated_bytes + estimate.parts[FRAGMENTATION]
        == estimate.peak_reserved_bytes
    )
    assert all(size >= 0 for size in traced.values())


@given(points(), REPLACED, RESIDUALS, BYTES, LAYERS)
@example(point({"weights": GIB}, peak_reserved_bytes=GIB), (), Residual(), GIB, 1)
@example(point({"weights": GIB}, peak_reserved_bytes=GIB), (), Residual(bias=1e-10), GIB, 1)
def test_the_verdict_the_odds_and_what_is_missing_agree(reply, replaced, residual, limit, layers):
    estimate = estimated(reply, replaced, residual, limit, layers)
    assert 0 <= estimate.p_oom <= 1
    assert estimate.fits == (estimate.p_oom < 0.5) == (estimate.missing_bytes is None)
    if estimate.missing_bytes is not None:
        assert estimate.missing_bytes > 0
        assert estimate.missing_bytes >= estimate.peak_memory_bytes - limit
    else:
        assert estimate.peak_memory_bytes <= limit


@given(points(), REPLACED, RESIDUALS, st.lists(BYTES, min_size=2, max_size=2), LAYERS)
def test_more_memory_never_makes_a_candidate_less_likely_to_fit(
    reply, replaced, residual, limits, layers
):
    small, large = (estimated(reply, replaced, residual, n, layers) for n in sorted(limits))
    assert large.p_oom <= small.p_oom
    assert large.fits or not small.fits
    assert large.peak_memory_bytes == small.peak_memory_bytes


@given(points(), RESIDUALS, BYTES, LAYERS)
def test_a_replay_that_ran_out_never_fits_unless_something_else_was_traced(
    reply, residual, limit, layers
):
    reply = dataclasses.replace(reply, oom=True)
    estimate = estimated(reply, (), residual, limit, layers)
    assert not estimate.fits
    assert estimate.missing_bytes >= (reply.missing_bytes or 0)
    # What ran out was not the candidate itself: it may well fit.
    adjusted = estimated(reply, ("torch_compile",), residual, 10**15, layers)
    assert adjusted.fits
    assert adjusted.method == "adjusted trace"


@given(points(), RESIDUALS, BYTES, LAYERS)
def test_a_guess_is_less_certain_than_a_trace(reply, residual, limit, layers):
    sure = estimated(reply, (), residual, limit, layers)
    for knob, (_, note) in UNTRACEABLE.items():
        guess = estimated(reply, (knob,), residual, limit, layers)
        assert guess.notes == (f"{knob}: {note}",)
        training_bytes = guess.peak_memory_bytes - guess.vllm_bytes  # vLLM's is what it is given
        assert guess.sigma_bytes >= int(GUESSED_SIGMA * training_bytes)
        if knob != "activation_offloading":
            assert guess.sigma_bytes >= sure.sigma_bytes
            assert guess.parts == sure.parts
    assert (sure.method, sure.notes) == (reply.method, ())


def test_what_follows_from_fewer_layers_scatters_more():
    residual = Residual(offset_bytes=0, relative_sigma=0.04, sigma_bytes=0)
    direct, continued = (
        estimated(point({"weights": 9900 * MIB}, sigma=sigma), (), residual, 20 * GIB, 32)
        for sigma in (0.0, 0.03)
    )
    assert direct.peak_memory_bytes == continued.peak_memory_bytes == 10_000 * MIB
    assert (direct.sigma_bytes, continued.sigma_bytes) == (400 * MIB, 500 * MIB)
    assert continued.traced
    assert from_plain(Estimate, {**continued.plain(), "fits": True}) == continued


@given(points(), RESIDUALS, LAYERS)
def test_offloading_takes_activations_only_and_not_below_other_phases(reply, residual, layers):
    resident = estimated(reply, (), residual, GIB, layers)
    offloaded = estimated(reply, ("activation_offloading",), residual, GIB, layers)
    saved_bytes = resident.peak_allocated_bytes - offloaded.peak_allocated_bytes
    assert resident.peak_reserved_bytes - offloaded.peak_reserved_bytes == saved_bytes
    activations = reply.parts.get(ACTIVATIONS, 0)
    assert 0 <= saved_bytes <= activations
    elsewhere = max((n for phase, n in reply.phases.items() if phase != "micro-step"), default=0)
    assert offloaded.peak_allocated_bytes >= min(elsewhere, resident.peak_allocated_bytes)
    for name in set(PARTS) - {ACTIVATIONS}:
        assert offloaded.parts.get(name) == resident.parts.get(name)


@pytest.mark.parametrize(
    ("layers", "elsewhere", "kept_layers"),
    [(10, 0, 2), (10, 9, 5), (10, 40, 10), (2, 0, 10), (1, 0, 10), (0, 0, 10)],
)
def test_offloading_leaves_the_activations_of_two_layers(layers, elsewhere, kept_layers):
    reply = point(
        {"weights": 4 * GIB, ACTIVATIONS: 10 * GIB},
        phases={"micro-step": 14 * GIB, "step": elsewhere * GIB},
    )
    estimate = estimated(reply, ("activation_offloading",), Residual(), 100 * GIB, layers)
    assert estimate.parts[ACTIVATIONS] == kept_layers * GIB
    assert estimate.parts["weights"] == 4 * GIB


def test_what_a_process_takes_besides_stands_under_context():
    reply = point({"weights": GIB}, peak_reserved_bytes=GIB + 10 * MIB)
    estimate = estimated(reply, (), Residual(offset_bytes=500 * MIB, bias=0.0), 2 * GIB, 1)
    assert estimate.parts == {"weights": GIB, FRAGMENTATION: 10 * MIB, CONTEXT: 500 * MIB}
    assert (estimate.peak_operator, estimate.peak_phase) == ("aten::mm", "micro-step")
    assert estimate.fits


def test_parts_of_nothing_are_not_told():
    estimate = estimated(point({"weights": GIB, LOGITS: 0}), (), CUDA_PRIOR, 2 * GIB, 1)
    assert LOGITS not in estimate.parts


@given(points(), RESIDUALS, BYTES)
def test_an_estimate_in_plain_data_has_every_figure(reply, residual, limit):
    estimate = estimated(reply, (), residual, limit, 8)
    plain = estimate.plain()
    names = {field.name for field in dataclasses.fields(Estimate)} - {"fits", "retries"}
    assert set(plain) == names | {"allocator_retries"}
    assert (plain["parts"], plain["notes"]) == (dict(estimate.parts), [])
    assert plain["p_oom"] == pytest.approx(estimate.p_oom, abs=1e-4)


def test_the_prior_of_a_cpu_starts_from_what_a_process_holds():
    assert prior_residual(facts_of(find_kind("a100"), 1), 5) == CUDA_PRIOR
    assert prior_residual(facts_of(find_kind("h100"), 1), 5) == HOPPER_PRIOR
    prior = prior_residual(cpu(), 700 * MIB)
    assert (prior.offset_bytes, prior.relative_sigma) == (700 * MIB + CPU_TRAINING, CPU_SIGMA)
    assert prior.measurements == CUDA_PRIOR.measurements == 0
