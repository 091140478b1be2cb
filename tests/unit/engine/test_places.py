"""Which nodes lanes are on, what a lane asks for, and who shares a node with whom."""

import dataclasses
import subprocess
import sys

import pytest
import ray

from autotune.engine.call import Call
from autotune.engine.cluster import Node, of_one_kind, versions_here
from autotune.engine.opening import EngineOptions, engine_of
from autotune.engine.ray_engine import LaneHandle, Member, Pool, RayEngine
from autotune.errors import MachineError, UserError
from autotune.facts.host import HostFacts
from autotune.probe.measure import shares_its_host
from autotune.probe.survey import Machine
from tests.unit.builders import GIB, make_facts, make_job, make_probe_request


def node(name, gpus=8, cpus=64, kind="NVIDIA H100", *, problem="", sees=True):
    facts = make_facts("cuda")
    device = dataclasses.replace(facts.device, name=kind)
    host = HostFacts(total_bytes=GIB, free_bytes=GIB)
    machine = Machine(device=device, host=host, stack=facts.stack)
    return Node(
        id=name,
        name=name,
        resources={"GPU": gpus, "CPU": cpus},
        versions=versions_here(),
        machine=None if problem else machine,
        problem=problem,
        has_folder=sees,
    )


def test_nodes_of_the_kind_that_there_is_most_of_are_taken():
    nodes = [node("a", 4, kind="NVIDIA A100"), node("b"), node("c", problem="no GPU 7"), node("d")]
    assert [one.name for one in of_one_kind(nodes)] == ["b", "d"]
    two = [
        node("e", kind="NVIDIA L4"),
        node("f", 1, kind="NVIDIA T4"),
        node("g", 1, kind="NVIDIA T4"),
    ]
    assert [one.name for one in of_one_kind(two)] == ["e"]
    assert [one.name for one in of_one_kind(two, span=2)] == ["f", "g"]
    with pytest.raises(MachineError, match="over 3 machines"):
        of_one_kind(two, span=3)


def test_what_makes_nodes_useless_is_said():
    with pytest.raises(MachineError, match="c: no GPU 7"):
        of_one_kind([node("c", problem="no GPU 7")])
    with pytest.raises(MachineError, match="b cannot see the folder of the run"):
        of_one_kind([node("a"), node("b", sees=False)])


@pytest.mark.parametrize(
    ("nodes", "kind", "count", "asked"),
    [
        ([node("a"), node("b", cpus=32)], "cuda", 2, {"GPU": 2.0, "CPU": 8}),
        ([node("a", cpus=4)], "cuda", 1, {"GPU": 1.0}),
        ([node("a"), node("b", cpus=32)], "cpu", 1, {"CPU": 32}),
    ],
)
def test_a_lane_asks_for_its_devices_and_its_part_of_the_cores(nodes, kind, count, asked):
    assert Pool(nodes=nodes, kind=kind, count=count, address="a:1").bundle == asked


def test_who_depends_on_what_a_node_shares_is_alone_there():
    engine = RayEngine.__new__(RayEngine)
    alone, other = (Call(key=k, folder="f", request={}, alone=k == "alone") for k in ("alone", "b"))
    first, second, third = (
        LaneHandle(f"l-{n}", None, [Member(None, name) for name in names])
        for n, names in enumerate(("ac", "a", "b"))
    )
    first.call = other
    engine._lanes = {lane.name: lane for lane in (first, second, third)}
    assert engine._is_undisturbed(second, other) and not engine._is_undisturbed(second, alone)
    assert engine._is_undisturbed(third, alone)
    first.call = alone
    assert not engine._is_undisturbed(second, other)


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (ray.exceptions.ActorDiedError(), ["works", "waits"]),
        (ray.exceptions.OutOfMemoryError("full"), ["works"]),  # of one process, not of the node
    ],
)
def test_lanes_that_wait_go_with_one_that_was_lost_on_their_node(monkeypatch, error, gone):
    engine, dropped = RayEngine.__new__(RayEngine), []
    lanes = {name: LaneHandle(name, None, [Member(None, name[0])]) for name in ("works", "waits")}
    lanes["elsewhere"] = LaneHandle("elsewhere", None, [Member(None, "e")])
    lanes["works"].call = Call(key="0000", folder="f", request={})
    engine._lanes, engine._first, engine._waiting = lanes, {}, []
    monkeypatch.setattr(RayEngine, "_drop", lambda self, lane: dropped.append(lane.name))
    engine._lost(lanes["works"], lanes["works"].members[0], error)
    assert dropped == gone


def test_a_head_ends_a_run_only_where_it_is_away_for_a_while():
    engine = RayEngine.__new__(RayEngine)
    engine.pool = Pool(nodes=[node("a")], kind="cuda", count=1, address="127.0.0.1:1")
    engine._lanes, engine._head_looked, engine._head_lost = {}, -1e6, 0.0
    engine._look_at_head()  # after hours without a look
    engine._head_looked = -1e6
    engine._look_at_head()
    engine._head_looked, engine._head_lost = -1e6, engine._head_lost - 20.0
    with pytest.raises(MachineError, match="127.0.0.1:1 does not answer"):
        engine._look_at_head()


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({"device_kind": "cpu"}, True),
        ({"device_kind": "cuda"}, False),
        ({"device_kind": "cuda", "config": {"dataloader_num_workers": 2}}, True),
    ],
)
def test_cores_and_data_workers_are_shared(fields, shares):
    assert shares_its_host(make_probe_request(**fields)) is shares


def test_several_at_once_are_not_asked_of_the_devices_of_this_machine():
    options = EngineOptions(at_once=2)
    with (
        pytest.raises(UserError, match="--engine ray"),
        engine_of(options, make_job(), *[None] * 3),
    ):
        pass


def test_a_run_on_this_machine_imports_no_ray():
    code = "import sys, autotune.run.tuning; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
