"""Calls on the nodes of a Ray cluster, each on a lane: devices that are reserved, and an actor on
each node of them.

Ray retries nothing: what a death means is named here. A lane of which an actor or a node has died
is made anew; its call says nothing, and is made once more, elsewhere where there is another place.
An actor that cannot be reached is not a dead one: only the cluster's head says which is dead.

A call of several nodes begins on the first, which tells where all meet; it is over when all have
ended. Where one fails the others are asked to end: they would wait for it.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.engine.call import PROBE, Call, Ended, News, named
from autotune.engine.cluster import NAMESPACE, Pool, is_reached, unreachable
from autotune.engine.lane import Lane
from autotune.errors import Problem, machine_error
from autotune.plain_data import from_plain
from autotune.probe.outcome import is_by_another, of_both
from autotune.probe.protocol import Measurement
from autotune.probe.rank_replies import WITH_OTHERS
from autotune.probe.survey import Machine
from autotune.process.child_server import PRELOAD
from autotune.training.spec import MEETS, Part

POLL_S, WAIT_S = 0.2, 5.0
"""How long this process waits at a time (Ray looks for Ctrl-C once a second), and a lane."""
HEAD_S, HEAD_LOST_S = 2.0, 15.0
"""Seconds between looks at whether the head still listens, and without it until the run ends."""
SAYS_S, PLACE_S = 5.0, 600.0
"""Seconds without a place after which that is said, and after which the run ends."""
ABANDONED_S = 600.0
MOST_FAILURES = 3
"""Lanes, one after another, that end before they have run anything."""
SETTLE_S = 3.0
"""Seconds for nodes that fail with another one to say how, before they are asked to end."""
ATTACH_S, REMOVE_S = 30.0, 3.0
"""How long a lane of an earlier process may take to answer, and its removal to be acknowledged."""
AGAIN = "-again"


@dataclass
class Member:
    """An actor of a lane as its driver knows it.

    Attributes:
        node: where it is; None: not placed yet.
        poll: the one question to it that is open.
        seen: events of its part of the call that were heard.
        ended: how that ended.
    """

    actor: Any
    node: str | None = None
    address: str = ""
    poll: Any = None
    seen: int = 0
    ended: Ended | None = None


@dataclass
class LaneHandle:
    """A lane as its driver knows it.

    Attributes:
        port: where the members meet for the call; 0: that is not known yet.
    """

    name: str
    group: Any
    members: list[Member]
    call: Call | None = None
    port: int = 0

    @property
    def nodes(self) -> set[str]:
        """The nodes that it is on; none until it is on all of them."""
        found = {member.node or "" for member in self.members}
        return set() if "" in found else found


@dataclass
class RayEngine:
    """An engine of `at_once` lanes.

    Attributes:
        run: the name of the run, and the start of those of its lanes.
        gone: is set where this process asks its lanes for nothing any more.
        folder: of the run.
    """

    run: str
    folder: Path
    pool: Pool
    at_once: int
    preload: tuple[str, ...] = PRELOAD
    abandoned_s: float = ABANDONED_S
    place_s: float = PLACE_S
    is_remote: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self._lanes: dict[str, LaneHandle] = {}
        self._waiting: list[Call] = []
        self._news: list[News] = []
        self._first: dict[str, Measurement] = {}
        self._made = self._failures = 0
        self._making = ""
        self._without_place_since: float | None = None
        self._has_said = False
        self._head_looked, self._head_lost = time.monotonic(), 0.0
        self._names = {node.id: node.name for node in self.pool.nodes}
        self.gone = threading.Event()
        try:
            self._attach()
            self._fill()
        except BaseException:  # Ctrl-C, or the head: whoever makes it has nothing to close yet
            self.close()
            raise
        threading.Thread(target=self._keep, daemon=True).start()

    @property
    def machine(self) -> Machine | None:
        """The machine with the least free memory of those that lanes may be on; they are alike."""
        return min(self.pool.nodes, key=lambda node: node.device.free_bytes).machine

    def free_places(self) -> int:
        """Calls that would begin at once; 1 where there are none in flight."""
        self._news += self._answers(0.0)
        ready = [lane for lane in self._lanes.values() if lane.nodes]
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
                for member in lane.members:
                    member.actor.stop.remote(key, reason)

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
        self.gone.set()
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._remove_unfinished()

    def news(self, timeout_s: float) -> Sequence[News]:
        """Return what is new of all calls; wait for it.

        Raises:
            MachineError: the head is gone, no node has had room for a lane for long, or lanes end
                before they begin.
        """
        until, news, self._news = time.monotonic() + timeout_s, self._news, []
        while not news and (left_s := until - time.monotonic()) > 0:
            self._fill()
            self._assign()
            news += self._without_place()
            news += self._answers(min(POLL_S, left_s))
            if not news:
                self._look_at_head()
        return news

    def _answers(self, timeout_s: float) -> Sequence[News]:
        """Return what lanes answer within a time."""
        members = [(lane, one) for lane in self._lanes.values() for one in lane.members]
        polls = {one.poll: (lane, one) for lane, one in members if one.poll is not None}
        if not polls:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(polls), timeout=timeout_s)
        return [one for poll in ready for one in self._answer(*polls[poll], poll)]

    # -- lanes

    def _attach(self) -> None:
        """Take up the lanes of an earlier process of the run."""
        actors = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
        for name in {actor.rpartition(".")[0] for actor in actors}:
            run, _, number = name.rpartition("-")
            if run != self.run:
                continue
            self._made = max(self._made, int(number) + 1)
            try:
                group = get_placement_group(name)
                parts = [f"{name}.{part}" for part in range(self.pool.span)]
                found = [ray.get_actor(part, namespace=NAMESPACE) for part in parts]
                states = ray.get([actor.state.remote() for actor in found], timeout=ATTACH_S)
            except (RayError, ValueError):  # it ends, or is silent: others may have its devices
                with contextlib.suppress(RayError, ValueError):
                    remove_placement_group(get_placement_group(name))
                continue
            call = states[0]["call"] and from_plain(Call, states[0]["call"])
            calls = [state["call"] for state in states[1:] if call and state["call"]]
            begun = [one for one in calls if one["folder"].startswith(f"{call.folder}/node-")]
            members = [
                Member(actor, self._names.get(state["node"], "?"), state["address"])
                for actor, state in zip(found, states, strict=True)
            ]
            port = begun[0]["request"]["part"]["port"] if begun else 0
            self._lanes[name] = lane = LaneHandle(name, group, members, call, port)
            if call is not None:
                if call.folder.endswith(AGAIN):
                    self._first[call.key] = lost_with("another node")
                self._ask(lane)

    def _remove_unfinished(self) -> None:
        """Remove the group of a lane that Ctrl-C, or the end of a budget, left half made."""
        if self._making:
            with contextlib.suppress(RayError, ValueError):
                remove_placement_group(get_placement_group(self._making))
        self._making = ""

    def _fill(self) -> None:
        """Ask for lanes up to as many as run at once."""
        self._remove_unfinished()
        pool = self.pool
        ids = ",".join(node.id for node in pool.nodes)
        while len(self._lanes) < self.at_once:
            name = self._making = f"{self.run}-{self._made}"
            self._made += 1
            group = placement_group(
                [pool.bundle] * pool.span,
                strategy="STRICT_SPREAD",
                name=name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": f"in({ids})"}] * pool.span,
            )
            # Actors are asked for at once: they are what removes a group that is placed late.
            members = [Member(self._actor(name, group, part)) for part in range(pool.span)]
            for member in members:
                member.poll = member.actor.state.remote()
            self._lanes[name] = LaneHandle(name, group, members)
            self._making = ""

    def _actor(self, name: str, group: Any, part: int) -> Any:
        """Return the actor for a bundle of a lane's group."""
        pool = self.pool
        options = ray.remote(Lane).options(
            name=f"{name}.{part}",
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=16,
            num_cpus=pool.bundle.get("CPU", 0.0),
            num_gpus=pool.bundle.get("GPU", 0.0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, part),
        )
        return options.remote(
            f"{name}.{part}",
            str(self.folder),
            pool.kind,
            pool.count,
            pool.span > 1,
            list(self.preload),
            self.abandoned_s,
        )

    def _keep(self) -> None:
        """Ask the lanes, as long as this process is there: else they find themselves abandoned."""
        while not self.gone.wait(self.abandoned_s / 10):
            for lane in list(self._lanes.values()):
                for member in lane.members:
                    member.actor.state.remote()

    def _drop(self, lane: LaneHandle) -> None:
        """Remove a lane; its fork server ends with its actor, by the end of its input. A head that
        hangs is not waited for: the lane will find itself abandoned."""
        self._lanes.pop(lane.name, None)
        removal = threading.Thread(target=_remove, args=(lane.group,), daemon=True)
        removal.start()
        removal.join(REMOVE_S)

    def _assign(self) -> None:
        """Give calls that wait to lanes that are free."""
        for call in list(self._waiting):
            lost_at = self._first[call.key].node if call.key in self._first else None
            free = [lane for lane in self._lanes.values() if lane.nodes and not lane.call]
            free = [lane for lane in free if self._is_undisturbed(lane, call)]
            if free:
                lane = min(free, key=lambda lane: (lost_at in lane.nodes, lane.name))
                lane.call, lane.port = call, 0
                for member in lane.members:
                    member.seen, member.ended = 0, None
                self._waiting.remove(call)
                self._ask(lane)

    def _is_undisturbed(self, lane: LaneHandle, call: Call) -> bool:
        """True if a call and those on the same nodes leave each other alone."""
        others = [o.call for o in self._lanes.values() if o.nodes & lane.nodes and o.call]
        return not others or not (call.alone or any(other.alone for other in others))

    def _ask(self, lane: LaneHandle) -> None:
        """Ask the members of a call for news that were not asked; all but the first once it is
        known where they meet."""
        call, nodes, host = lane.call, len(lane.members), lane.members[0].address
        assert call is not None
        for number, member in enumerate(lane.members):
            if member.poll is not None or member.ended is not None:
                continue
            if number and not lane.port:
                continue
            part, own = Part(node=number, nodes=nodes, host=host, port=lane.port), call
            if nodes > 1:
                request = {**call.request, "part": part.plain()}
                folder = f"{call.folder}/node-{number}" if number else call.folder
                own = dataclasses.replace(call, request=request, folder=folder)
            member.poll = member.actor.follow.remote(own.plain(), member.seen, WAIT_S)

    # -- answers

    def _answer(self, lane: LaneHandle, member: Member, poll: Any) -> Sequence[News]:
        if self._lanes.get(lane.name) is not lane:  # another member of it was lost
            return []
        member.poll = None
        try:
            answer = ray.get(poll)
        except ActorUnavailableError:
            time.sleep(POLL_S)
            self._look_at_head()
            if member.node is None:
                member.poll = member.actor.state.remote()
            elif lane.call is not None:
                self._ask(lane)
            return []
        except RayError as error:
            return self._lost(lane, member, error)
        if member.node is None:
            member.node = self._names.get(answer["node"], answer["node"])
            member.address = answer["address"]
            return []
        assert lane.call is not None
        self._failures = 0
        key, (events, plain) = lane.call.key, answer
        member.seen += len(events)
        news: list[News] = []
        for event in events if member is lane.members[0] else ():
            if event.get("event") == MEETS:
                lane.port = lane.port if plain else event["port"]
            else:
                news.append((key, event))
        if plain is not None:
            member.ended = from_plain(Ended, plain)
        begun = lane.members if lane.port else lane.members[:1]
        going = [one for one in begun if one.ended is None]
        if not going:
            return [*news, *self._over(lane, begun)]
        if member.ended is not None and _failed(member.ended):
            for one in going:
                one.actor.stop.remote(key, WITH_OTHERS, SETTLE_S)
        self._ask(lane)
        return news

    def _over(self, lane: LaneHandle, members: Sequence[Member]) -> Sequence[News]:
        """Return the end of a call whose members have all ended, unless it is made once more."""
        assert lane.call is not None
        results: list[dict[str, Any]] = []
        call, lane.call = lane.call, None
        for member in members:
            assert member.ended is not None
            if member.ended.result is None:
                return [(call.key, self._with_first(call, member.ended))]
            results.append({**member.ended.result, "node": member.node})
        ended = Ended(result=results[0])
        if len(lane.members) > 1:
            ended = Ended(result=named(call.together)(results, Path(call.folder)))
            if call.task == PROBE and is_by_another(found := ended.measurement()):
                return self._again(call, found)
        return [(call.key, self._with_first(call, ended))]

    def _with_first(self, call: Call, ended: Ended) -> Ended:
        first = self._first.pop(call.key, None)
        if first is None or ended.result is None or call.task != PROBE:
            return ended
        return Ended(result=of_both(first, ended.measurement()).plain())

    def _again(self, call: Call, found: Measurement) -> Sequence[News]:
        """Make a call once more that another process ended; return its end where that was so."""
        if call.key not in self._first:
            self._first[call.key] = found
            self._waiting.append(dataclasses.replace(call, folder=call.folder + AGAIN))
            return []
        ended = self._with_first(call, Ended(result=found.plain()))
        if call.task != PROBE:
            ended = Ended(problems=(Problem(where="--engine ray", what=f"{found.reason}, twice"),))
        return [(call.key, ended)]

    def _lost(self, lane: LaneHandle, member: Member, error: RayError) -> Sequence[News]:
        """Note a lane that has died; return the end of its call, if that is not made once more."""
        call = lane.call
        self._drop(lane)
        if not isinstance(error, OutOfMemoryError):  # what waits there has probably died, too
            waiting = [one for one in self._lanes.values() if not one.call]
            for neighbour in [one for one in waiting if member.node in one.nodes]:
                self._drop(neighbour)
        if call is None:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                what = f"no lane begins on {member.node or 'any node'}: {error}"
                raise machine_error(what[:1500], where="--engine ray")
            return []
        if call.task != PROBE or not isinstance(error, OutOfMemoryError):
            return self._again(call, lost_with(member.node, f" ({type(error).__name__})"))
        reason = f"Ray ended it on {member.node}, whose memory ran out"
        found = Measurement(outcome="host_oom", reason=reason, inferred=True, node=member.node)
        return [(call.key, self._with_first(call, Ended(result=found.plain())))]

    # -- what is missing

    def _without_place(self) -> Sequence[News]:
        """Return, once, that no node has room for a lane while calls wait.

        Raises:
            MachineError: there have been too few nodes for too long.
        """
        now = time.monotonic()
        if not self._waiting or any(lane.nodes for lane in self._lanes.values()):
            self._without_place_since, self._has_said = None, False
            return []
        since = self._without_place_since = self._without_place_since or now
        # Where there are nodes enough, other runs have them, and give them back.
        if now - since > self.place_s and len(self.pool.living()) < self.pool.span:
            raise machine_error(self.pool.asked_and_there(), where="--engine ray")
        if now - since < SAYS_S or self._has_said:
            return []
        self._has_said = True
        return [(self._waiting[0].key, {"event": "waiting", "holder": self.pool.asked_and_there()})]

    def _look_at_head(self) -> None:
        """Raise an error where the head has gone.

        Raises:
            MachineError: nothing has listened at its address for a while.
        """
        now = time.monotonic()
        if now - self._head_looked > HEAD_S:
            self._head_looked = now
            if is_reached(self.pool.address):
                self._head_lost = 0.0
            elif not self._head_lost:
                self._head_lost = now
            elif now - self._head_lost > HEAD_LOST_S:
                self._lanes.clear()  # they cannot be removed: they will find themselves abandoned
                raise unreachable(self.pool.address)


def _remove(group: Any) -> None:
    with contextlib.suppress(RayError):
        remove_placement_group(group)


def lost_with(node: str | None, how: str = "") -> Measurement:
    """Return the measurement of a probe whose node, or what ran it there, has died."""
    reason = f"what ran it on {node} was lost{how}"
    return Measurement(outcome="interrupted", reason=reason, inferred=True, node=node)


def _failed(ended: Ended) -> bool:
    """True if a probe, or a launch, came to no good end."""
    result = ended.result or {"exit_code": 1}
    return bool(result.get("exit_code")) or result.get("outcome", "ok") != "ok"
