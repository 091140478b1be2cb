"""Calls on the nodes of a Ray cluster, each on a lane: devices that are reserved, and an actor.

Ray retries nothing: what a death means is named here. A lane whose actor or node has died is made
anew; its call says nothing, and is made once more, elsewhere where there is another place. An actor
that cannot be reached is not a dead one: only the cluster's head says which is dead.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.engine.call import Call, Ended, Heard
from autotune.engine.cluster import NAMESPACE, Node, is_reached, unreachable
from autotune.engine.lane import Lane
from autotune.errors import machine_error
from autotune.plain_data import from_plain
from autotune.probe.outcome import of_both
from autotune.probe.protocol import Measurement
from autotune.probe.survey import Machine
from autotune.process.child_server import PRELOAD

POLL_S, WAIT_S = 0.2, 5.0
"""How long this process waits at a time (Ray looks for Ctrl-C once a second), and a lane."""
HEAD_S = 2.0
"""Seconds between looks at whether the head still listens."""
SAYS_S, PLACE_S = 5.0, 600.0
"""Seconds without a place after which that is said, and after which the run ends."""
ABANDONED_S = 600.0
MOST_FAILURES = 3
"""Lanes, one after another, that end before they have run anything."""
AGAIN = "-again"


@dataclass
class LaneHandle:
    """A lane as its driver knows it.

    Attributes:
        node: where it is; None: not placed yet.
        polls: the one question to it that is open.
        seen: events of its call that were heard.
    """

    name: str
    group: Any
    actor: Any
    node: str | None = None
    call: Call | None = None
    poll: Any = None
    seen: int = 0


@dataclass(frozen=True, kw_only=True)
class Place:
    """The nodes that lanes may be on.

    Attributes:
        nodes: of one kind.
        kind, count: of a lane's devices.
        address: of the head.
    """

    nodes: Sequence[Node]
    kind: str
    count: int
    address: str

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of a lane: its devices, and its part of the cores of the smallest node; on
        CPUs all of them, as probes that share cores disturb each other."""
        cores = [node.resources.get("CPU", 0.0) for node in self.nodes]
        if self.kind == "cpu":
            return {"CPU": min(cores)}
        gpus = [node.resources["GPU"] for node in self.nodes]
        shares = [self.count * c // g for c, g in zip(cores, gpus, strict=True)]
        return {"GPU": float(self.count), **({"CPU": min(shares)} if min(shares) else {})}


@dataclass
class RayEngine:
    """An engine of `at_once` lanes.

    Attributes:
        run: the name of the run, and the start of those of its lanes.
        folder: of the run.
    """

    run: str
    folder: Path
    place: Place
    at_once: int
    preload: tuple[str, ...] = PRELOAD
    abandoned_s: float = ABANDONED_S
    place_s: float = PLACE_S
    is_remote: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self._lanes: dict[str, LaneHandle] = {}
        self._waiting: list[Call] = []
        self._news: list[Heard] = []
        self._first: dict[str, Measurement] = {}
        self._made = self._failures = 0
        self._without_place_since: float | None = None
        self._has_said = False
        self._head_seen = time.monotonic()
        self._names = {node.id: node.name for node in self.place.nodes}
        self._attach()
        self._fill()

    @property
    def machine(self) -> Machine | None:
        """The machine that its lanes are on; they are alike."""
        return self.place.nodes[0].machine

    @property
    def free(self) -> int:
        """Calls that would begin at once; 1 where there are none in flight."""
        self._news += self._answers(0.0)
        ready = [lane for lane in self._lanes.values() if lane.node]
        busy = sum(lane.call is not None for lane in ready) + len(self._waiting)
        return max(len(ready) - busy, 0 if busy else 1)

    def begin(self, call: Call) -> None:
        """Begin a call as soon as a lane is free for it."""
        self._waiting.append(call)
        self._assign()

    def stop(self, key: str, reason: str) -> None:
        """Ask a call to end."""
        for lane in self._lanes.values():
            if lane.call is not None and lane.call.key == key:
                lane.actor.stop.remote(key, reason)

    def in_flight(self) -> Sequence[Call]:
        """Return the calls at work, also those that an earlier process of the run began."""
        return [lane.call for lane in self._lanes.values() if lane.call] + self._waiting

    def abandon(self) -> None:
        """End all calls with the lanes that run them."""
        self._waiting.clear()
        self._first.clear()
        for lane in [lane for lane in self._lanes.values() if lane.call]:
            self._drop(lane)

    def close(self) -> None:
        """Give everything back: lanes, and what they reserve."""
        for lane in list(self._lanes.values()):
            self._drop(lane)

    def heard(self, timeout_s: float) -> Sequence[Heard]:
        """Return what is new of all calls; wait for it.

        Raises:
            MachineError: the head is gone, no node has had room for a lane for long, or lanes end
                before they begin.
        """
        until = time.monotonic() + timeout_s
        news, self._news = self._news, []
        while not news and (left_s := until - time.monotonic()) > 0:
            self._fill()
            self._assign()
            news += self._without_place()
            news += self._answers(min(POLL_S, left_s))
            if not news:
                self._look_at_head()
        return news

    def _answers(self, timeout_s: float) -> Sequence[Heard]:
        """Return what lanes answer within a time."""
        polls = {lane.poll: lane for lane in self._lanes.values() if lane.poll is not None}
        if not polls:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(polls), timeout=timeout_s)
        return [one for poll in ready for one in self._answer(polls[poll], poll)]

    # -- lanes

    def _attach(self) -> None:
        """Take up the lanes of an earlier process of the run."""
        for named in ray.util.list_named_actors(all_namespaces=True):
            name = named["name"]
            if named["namespace"] != NAMESPACE or not name.startswith(f"{self.run}-"):
                continue
            try:
                actor = ray.get_actor(name, namespace=NAMESPACE)
                state = ray.get(actor.state.remote(), timeout=WAIT_S)
                group = get_placement_group(name)
            except (RayError, ValueError):  # it ends, or will: nobody asks it any more
                continue
            call = None if state["call"] is None else from_plain(Call, state["call"])
            lane = LaneHandle(name, group, actor, self._names.get(state["node"], "?"), call)
            self._lanes[name] = lane
            self._made = max(self._made, int(name.rpartition("-")[2]) + 1)
            if call is not None:
                if call.folder.endswith(AGAIN):
                    self._first[call.key] = lost_with("another node")
                self._ask(lane)

    def _fill(self) -> None:
        """Ask for lanes up to as many as run at once."""
        while len(self._lanes) < self.at_once:
            name = f"{self.run}-{self._made}"
            self._made += 1
            bundle = self.place.bundle
            ids = ",".join(node.id for node in self.place.nodes)
            group = placement_group(
                [bundle],
                strategy="STRICT_PACK",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": f"in({ids})"}],
            )
            # The actor is asked for at once: it is what removes a group that is placed late.
            actor = (
                ray.remote(Lane)
                .options(
                    name=name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    max_restarts=0,
                    max_task_retries=0,
                    max_concurrency=16,
                    num_cpus=bundle.get("CPU", 0.0),
                    num_gpus=bundle.get("GPU", 0.0),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group),
                )
                .remote(
                    name,
                    str(self.folder),
                    self.place.kind,
                    self.place.count,
                    list(self.preload),
                    self.abandoned_s,
                )
            )
            lane = LaneHandle(name, group, actor)
            lane.poll = actor.state.remote()
            self._lanes[name] = lane

    def _drop(self, lane: LaneHandle) -> None:
        """Remove a lane; its fork server ends with its actor, by the end of its input."""
        self._lanes.pop(lane.name, None)
        remove_placement_group(lane.group)

    def _assign(self) -> None:
        """Give calls that wait to lanes that are free."""
        for call in list(self._waiting):
            lost_at = self._first[call.key].node if call.key in self._first else None
            free = [lane for lane in self._lanes.values() if lane.node and not lane.call]
            free = [lane for lane in free if self._is_undisturbed(lane, call)]
            if free:
                lane = min(free, key=lambda lane: (lane.node == lost_at, lane.name))
                lane.call, lane.seen = call, 0
                self._waiting.remove(call)
                self._ask(lane)

    def _is_undisturbed(self, lane: LaneHandle, call: Call) -> bool:
        """True if a call and those on the same node leave each other alone."""
        others = [o.call for o in self._lanes.values() if o.node == lane.node and o.call]
        return not others or not (call.alone or any(other.alone for other in others))

    def _ask(self, lane: LaneHandle) -> None:
        assert lane.call is not None
        lane.poll = lane.actor.follow.remote(lane.call.plain(), lane.seen, WAIT_S)

    # -- answers

    def _answer(self, lane: LaneHandle, poll: Any) -> Sequence[Heard]:
        lane.poll = None
        try:
            answer = ray.get(poll)
        except ActorUnavailableError:
            self._look_at_head()
            lane.poll = lane.actor.state.remote() if lane.call is None else None
            if lane.call is not None:
                self._ask(lane)
            return []
        except RayError as error:
            return self._lost(lane, error)
        if lane.call is None:
            lane.node = self._names.get(answer["node"], answer["node"])
            return []
        self._failures = 0
        key, (events, plain) = lane.call.key, answer
        lane.seen += len(events)
        news: list[Heard] = [(key, event) for event in events]
        if plain is None:
            self._ask(lane)
            return news
        lane.call, ended = None, from_plain(Ended, plain)
        if ended.result is not None:
            ended = dataclasses.replace(ended, result={**ended.result, "node": lane.node})
        return [*news, (key, self._with_first(key, ended))]

    def _with_first(self, key: str, ended: Ended) -> Ended:
        first = self._first.pop(key, None)
        if first is None or ended.result is None:
            return ended
        return Ended(result=of_both(first, ended.measurement()).plain())

    def _lost(self, lane: LaneHandle, error: RayError) -> Sequence[Heard]:
        """Note a lane that has died; return the end of its call, if that is not made once more."""
        call, self._failures = lane.call, self._failures + 1
        self._drop(lane)
        if call is None:
            if self._failures >= MOST_FAILURES:
                what = f"no lane begins on {lane.node or 'any node'}: {error}"
                raise machine_error(what[:1500], where="--engine ray")
            return []
        if isinstance(error, OutOfMemoryError):
            reason = f"Ray ended it on {lane.node}, whose memory ran out"
            found = Measurement(outcome="host_oom", reason=reason, inferred=True, node=lane.node)
        else:
            found = lost_with(lane.node, f" ({type(error).__name__})")
            if call.key not in self._first:
                self._first[call.key] = found
                self._waiting.append(dataclasses.replace(call, folder=call.folder + AGAIN))
                return []
        return [(call.key, self._with_first(call.key, Ended(result=found.plain())))]

    # -- what is missing

    def _without_place(self) -> Sequence[Heard]:
        """Return, once, that no node has room for a lane while calls wait.

        Raises:
            MachineError: no node has been there for too long.
        """
        now = time.monotonic()
        if not self._waiting or any(lane.node for lane in self._lanes.values()):
            self._without_place_since, self._has_said = None, False
            return []
        since = self._without_place_since = self._without_place_since or now
        if now - since > self.place_s and not self._living():  # else other runs have them
            raise machine_error(self._asked_and_there(), where="--engine ray")
        if now - since < SAYS_S or self._has_said:
            return []
        self._has_said = True
        event = {"event": "waiting", "holder": self._asked_and_there()}
        return [(self._waiting[0].key, event)]

    def _living(self) -> list[Node]:
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [node for node in self.place.nodes if node.id in alive]

    def _asked_and_there(self) -> str:
        """Return what a lane asks for and what the cluster has, in words."""
        alive = self._living()
        there = [
            f"{node.name} ({_words(node.resources)})" if node in alive else f"{node.name} (lost)"
            for node in self.place.nodes
        ]
        free = _words(ray.available_resources())
        asked = _words(self.place.bundle)
        return f"no node has room: {asked} asked, on {', '.join(there)}; free in all: {free}"

    def _look_at_head(self) -> None:
        """Raise an error where the head has gone.

        Raises:
            MachineError: nothing listens at its address.
        """
        if time.monotonic() - self._head_seen > HEAD_S:
            if not is_reached(self.place.address):
                self._lanes.clear()  # they cannot be removed: they will find themselves abandoned
                raise unreachable(self.place.address)
            self._head_seen = time.monotonic()


def lost_with(node: str | None, how: str = "") -> Measurement:
    """Return the measurement of a probe whose node, or what ran it there, has died."""
    reason = f"what ran it on {node} was lost{how}"
    return Measurement(outcome="interrupted", reason=reason, inferred=True, node=node)


def _words(resources: Any) -> str:
    shown = [f"{name} {resources.get(name, 0.0):g}" for name in ("GPU", "CPU") if name in resources]
    return ", ".join(shown) or "nothing"
