"""The ranks that share a candidate, and how a probe of several differs.

Every rank trains on the same micro-batches: the data holds each of them once for every rank, and
accelerate deals them out in turn. A probe ends on all ranks in the same step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from autotune.space.knobs import ACCUMULATION
from autotune.space.sharding.sharding import Sharding, engine_name
from autotune.training.spec import TrainerSpec, Unsupported

T = TypeVar("T")


class AnotherEngine(Unsupported):
    """Something else spread the training than was asked for."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes that train the candidate, and what shards it over them."""

    sharding: Sharding = field(default_factory=Sharding)
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the trainer's configuration that only a rank needs."""

    @classmethod
    def of(cls, spec: TrainerSpec, accumulation: int | None = None) -> Self:
        """Return the processes of a training.

        Args:
            accumulation: micro-steps that the probe takes in an optimizer step; None: all.
        """
        sharding = spec.parsed_sharding
        if not sharding.in_group:
            return cls()
        from autotune.training.distributed import overrides

        deepspeed = spec.deepspeed
        if deepspeed is not None and accumulation is not None:
            deepspeed = {**deepspeed, ACCUMULATION: accumulation}
        fields = overrides(sharding, deepspeed, cuda=spec.device_kind == "cuda")
        return cls(sharding=sharding, overrides=fields)

    @property
    def processes(self) -> int:
        """The number of processes that train."""
        return self.sharding.num_processes

    def for_all_ranks(self, batches: Sequence[T]) -> list[T]:
        """Return the micro-batches of one rank as the data of all."""
        return [batch for batch in batches for _ in range(self.processes)]

    def all_agree(self, vote: bool) -> bool:
        """True if all ranks agree; each of them has to call this."""
        if self.processes == 1:
            return vote
        from autotune.training.distributed import all_agree

        return all_agree(vote)

    def checked_engine(self, trainer: Any) -> str | None:
        """Return the engine that really sharded the training; None: one process by itself.

        Raises:
            AnotherEngine: it is not what was asked for.
        """
        if not self.sharding.in_group:
            return None
        from autotune.training.distributed import engine_of, other_settings

        engine, requested = engine_of(trainer), engine_name(self.sharding)
        if engine != requested:
            raise AnotherEngine(f"{requested} was asked for, but {engine} ran")
        zero = (self.overrides.get("deepspeed") or {}).get("zero_optimization")
        differences = other_settings(trainer, zero) if zero else None
        if differences is not None:
            raise AnotherEngine(f"{engine} ran, but with {differences}")
        return engine


SINGLE_RANK = Ranks()
