"""The host's memory, and what a job may take of it."""

from dataclasses import replace

import pytest

from autotune.errors import MachineError
from autotune.facts import facts_from_plain
from autotune.facts.device_kinds import find_kind
from autotune.facts.host import KEPT_FREE, HostFacts, host, host_limit
from autotune.plan.device import device_facts
from autotune.probe.survey import check_host_memory
from tests.unit.builders import GIB, make_facts, make_job

HOST = HostFacts(total_bytes=512 * GIB, free_bytes=400 * GIB)


def test_this_machine_has_memory():
    host_facts = host()
    assert 0 < host_facts.free_bytes <= host_facts.total_bytes


@pytest.mark.parametrize(
    ("kind", "host_facts", "requested", "limit"),
    [
        ("cuda", HOST, None, int(400 * GIB * (1 - KEPT_FREE))),
        ("cuda", HOST, "64GiB", 64 * GIB),
        ("cuda", None, None, None),
        ("cuda", None, "64GiB", 64 * GIB),
        ("cpu", HOST, None, None),
        ("cpu", HOST, "64GiB", 64 * GIB),
    ],
)
def test_the_limit_is_what_the_job_says_or_what_is_free(kind, host_facts, requested, limit):
    job = make_job(devices={"host_memory": requested} if requested else {})
    assert host_limit(job.devices.host_memory, kind, host_facts) == limit


def test_a_job_cannot_count_on_more_than_is_free():
    facts = replace(make_facts("cuda"), host=HOST)
    check_host_memory(make_job(devices={"host_memory": "400GiB"}), facts)
    check_host_memory(make_job(), facts)
    with pytest.raises(MachineError, match="401 GiB of the host's memory were asked for"):
        check_host_memory(make_job(devices={"host_memory": "401GiB"}), facts)


def test_facts_come_back_with_the_host_and_without():
    facts = replace(make_facts("cuda"), host=HOST)
    assert facts_from_plain(facts.plain()) == facts
    earlier = {name: value for name, value in facts.plain().items() if name != "host"}
    assert facts_from_plain(earlier).host is None


def test_of_the_machine_of_other_devices_nothing_is_known():
    facts = replace(make_facts("cpu"), host=HOST)
    assert device_facts(facts, find_kind("h100")).host is None
    assert device_facts(facts, None).host == HOST
