"""Machines as a user names them."""

import pytest

from autotune.errors import UserError
from autotune.facts.device_kinds import (
    common_kinds,
    device_kinds,
    kinds_of_other_makers,
    more_kinds,
)
from autotune.facts.machines import MOST_MACHINES, machines_of, names_several


def named(text):
    return [machine.name for machine in machines_of(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h100", ["h100"]),
        ("h100, l40s", ["h100", "l40s"]),
        ("4xl40s", ["4xl40s"]),
        ("4 x L40S", ["4xl40s"]),
        ("4*l40s", ["4xl40s"]),
        ("l40s:4", ["4xl40s"]),
        ("NVIDIA L40S : 4", ["4xl40s"]),
        ("h100,H100-SXM,NVIDIA H100 80GB HBM3", ["h100"]),
        ("l40s,1xl40s,2xl40s,l40s:2", ["l40s", "1xl40s", "2xl40s"]),
        ("memory=23GiB", ["memory=23GiB"]),
        ("24 GB, 2x80GB, 48", ["rtx-4090", "2xa100", "l40s"]),
        (
            "h100,memory=24GiB,tflops=165,bandwidth=1000,l40s",
            ["h100", "memory=24GiB,tflops=165,bandwidth=1000", "l40s"],
        ),
        (
            "tflops=165,memory=24GiB,memory=49GiB",
            ["tflops=165,memory=24GiB", "memory=49GiB"],
        ),
        (
            "memory=23GiB,memory=23GiB,tflops=165",
            ["memory=23GiB", "memory=23GiB,tflops=165"],
        ),
        ("2xmemory=24GiB,tflops=165", ["2xmemory=24GiB,tflops=165"]),
        ("7900xtx,2x7900xtx", ["rx-7900-xtx", "2xrx-7900-xtx"]),
    ],
)
def test_machines_are_named_in_the_order_given_each_once(text, names):
    assert named(text) == names
    for name in names:
        assert named(name) == [name], "as a flag takes it"


def test_all_are_the_kinds_that_people_have():
    assert [machine.kind for machine in machines_of(" All ")] == list(common_kinds())
    assert all(machine.count is None for machine in machines_of("all"))
    assert len({kind.name for kind in common_kinds()}) == len(common_kinds()) > 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100,,l40s", "a kind of GPU is missing between commas"),
        ("", "a kind of GPU is missing"),
        ("0xh100", "`0xh100`: a machine has 1 to 4096 devices"),
        ("h100:0", "`h100:0`: a machine has 1 to 4096 devices"),
        ("99999xh100", "a machine has 1 to 4096 devices"),
        ("4xnothing", "`nothing` is not a known kind of GPU"),
        ("h100,cpu", "`cpu` is not compared with GPUs"),
        ("rtx-4090 x2", "`rtx-4090 x2` is not a known kind of GPU"),
        ("h100,memory=lots", "`lots` is not a size"),
        (",".join(f"{n}xh100" for n in range(1, MOST_MACHINES + 2)), "65 machines are named"),
    ],
)
def test_what_is_not_a_machine_is_refused(text, message):
    with pytest.raises(UserError) as caught:
        machines_of(text)
    assert message in str(caught.value)


def test_every_wrong_name_is_told_at_once():
    with pytest.raises(UserError) as caught:
        machines_of("h100,nothing,0xl40s,,else")
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("text", "several"),
    [
        *((None, False), ("h100", False), ("RTX 4090", False), ("rtx-4090 x2", False)),
        *(("memory=24GiB,tflops=165", False), ("tflops=165, memory=24GiB", False)),
        *(("4090", False), ("24 GB", False), ("6000-ada", False), ("7900 XTX", False)),
        *(("all", True), ("1xh100", True), ("h100:1", True), ("h100,l40s", True)),
        *(("memory=24GiB,memory=48GiB", True), ("h100,", True), ("0xh100", True)),
    ],
)
def test_several_are_told_from_one(text, several):
    assert names_several(text) is several


def test_no_kind_of_the_tables_reads_as_several():
    kinds = (*device_kinds(), *kinds_of_other_makers(), *more_kinds())
    assert len(kinds) > 250
    assert not [n for kind in kinds for n in (kind.name, *kind.aliases) if names_several(n)]
