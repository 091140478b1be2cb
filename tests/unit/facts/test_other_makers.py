"""GPUs of AMD and Intel: planned for by their names, and said to be untested."""

from dataclasses import replace

import pytest

from autotune.estimate.estimate import CUDA_PRIOR, prior_residual
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts.device_kinds import DeviceKind, facts_of, find_kind, kinds_of_other_makers
from autotune.space.trl_config import resolve_precision
from tests.unit.builders import make_facts, make_job, make_space

GIB = 2**30
KINDS = kinds_of_other_makers()


def facts_on(kind: DeviceKind):
    facts = make_facts("cuda")
    stack = replace(facts.stack, assumed=True)
    return replace(facts, device=facts_of(kind, 8), stack=stack, host=None)


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("MI210", "AMD Instinct MI210", 64),
        ("amd instinct mi250x", "AMD Instinct MI250X", 64),
        ("mi300x", "AMD Instinct MI300X", 192),
        ("Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX", 24),
        ("7900xtx", "AMD Radeon RX 7900 XTX", 24),
        ("Data Center GPU Max 1100", "Intel Data Center GPU Max 1100", 48),
        ("intel-max-1550", "Intel Data Center GPU Max 1550", 64),
        ("Arc A770", "Intel Arc A770", 16),
        ("B580", "Intel Arc B580", 12),
    ],
)
def test_a_kind_is_found_as_people_write_it(text, name, gib):
    kind = find_kind(text)
    assert (kind.name, kind.memory_bytes) == (name, gib * GIB)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.aliases[0])
def test_the_figures_are_physical_and_have_their_sources(kind):
    assert kind.maker in ("AMD", "Intel") and kind.capability is None
    assert all(source.startswith("https://") for source in kind.source)
    rates = kind.matrix_flops_per_s
    assert rates["bfloat16"] == rates["float16"]
    assert 30 <= rates["float16"] / kind.bandwidth_bytes_per_s <= 450
    assert 1.9 <= rates["float16"] / rates["float32"] <= 35
    assert kind.interconnect.pcie_bytes_per_s in (16e9, 32e9, 64e9)
    assert ceilings_of_kind(kind) is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.aliases[0])
def test_what_is_not_known_there_is_no_candidate_and_a_note_says_that_nothing_was_tested(kind):
    facts = facts_on(kind)
    space = make_space(make_job(), facts)
    (note,) = space.notes
    assert note.startswith(f"nothing was tested on a GPU of {kind.maker}")
    assert not any(candidate["expandable_segments"] for candidate in space.candidates)
    assert {candidate["use_liger_kernel"] for candidate in space.candidates} == {False, True}
    assert resolve_precision(make_job(), facts.device)[0] == "bf16"


def test_a_gpu_of_nvidia_has_no_such_note():
    notes = make_space(make_job(), facts_on(find_kind("h200"))).notes
    assert not [note for note in notes if "nothing was tested" in note]


def test_memory_outside_the_allocator_is_less_sure_there():
    device = facts_of(find_kind("mi300x"), 1)
    untested = prior_residual(device, 0)
    assert untested.offset_bytes == CUDA_PRIOR.offset_bytes
    assert untested.sigma(20 * GIB) > 2 * CUDA_PRIOR.sigma(20 * GIB)
    two = prior_residual(device, 0, 2)
    assert two.sigma_bytes > untested.sigma_bytes
