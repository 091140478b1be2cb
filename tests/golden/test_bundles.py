"""Bundles compared whole with the recorded ones (`record.py` renews them)."""

from dataclasses import replace

import pytest
from bundle_cases import CASES
from record import RECORDED, recorded

from autotune.bundle.configuration import trainer_config
from autotune.job.methods import SFT


@pytest.mark.parametrize("name", CASES)
def test_a_bundle_is_the_recorded_one_in_every_byte(name):
    expected = recorded(name)
    emitted = {file: text.encode() for file, text in CASES[name]().files().items()}
    assert emitted.keys() == expected.keys()
    for file, content in emitted.items():
        assert content.decode() == expected[file].decode()
    assert emitted == expected


def test_every_recorded_folder_belongs_to_a_case():
    assert {path.name for path in RECORDED.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_rendering_twice_gives_the_same_bytes(name):
    case = CASES[name]()
    assert case.files() == case.files() == CASES[name]().files()


def backwards(mapping):
    return dict(reversed(list(mapping.items())))


def turned_round(ranked):
    values = backwards(ranked.candidate.values)
    measurement = replace(ranked.measurement, stages_s=backwards(ranked.measurement.stages_s))
    candidate = replace(ranked.candidate, values=values)
    return replace(ranked, candidate=candidate, measurement=measurement)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_mappings_does_not_show(name):
    case = CASES[name]()
    old = case.recommendation
    recommendation = replace(
        old,
        chosen=turned_round(old.chosen),
        ties=tuple(map(turned_round, old.ties)),
        runners_up=tuple(map(turned_round, old.runners_up)),
        rejected=backwards(old.rejected),
    )
    stack = replace(case.facts.stack, versions=backwards(case.facts.stack.versions))
    case_turned = replace(
        case,
        recommendation=recommendation,
        job=case.job.model_copy(
            update={"training": backwards(case.job.training), "recipe": backwards(case.job.recipe)}
        ),
        facts=replace(case.facts, stack=stack),
    )
    assert recommendation == old
    assert case_turned.files() == case.files()


def test_another_candidate_gives_other_bytes():
    case = CASES["cpu_full"]()
    old = case.recommendation.chosen
    candidate = replace(old, candidate=replace(old.candidate, gradient_accumulation_steps=5))
    other_case = replace(case, recommendation=replace(case.recommendation, chosen=candidate))
    names = {name for name, text in other_case.files().items() if text != case.files()[name]}
    assert names == {"sft_config.yaml", "recommendation.json", "README.md"}


def test_a_value_that_is_used_twice_is_written_twice():
    shared_list = ["x"]
    assert "&" not in trainer_config({"one": shared_list, "two": shared_list}, SFT)
