"""The ranks that share a candidate, and how a probe of several differs.

Every rank trains on the same micro-batches: the data holds each of them once for every rank, and
accelerate deals them out in turn. Those that share rows by Ulysses' way are dealt as many
micro-batches as they are, and train on one after the other, together. A probe ends on all ranks in
the same step.
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
        often, together = self.sharding.replicas, self.sharding.sp_size
        blocks = [batches[n : n + together] for n in range(0, len(batches), together)]
        return [batch for block in blocks for _ in range(often) for batch in block]

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

        sizes = {"cp_size": trainer.get_cp_size(), "sp_size": trainer.get_sp_size()}
        shared = "".join(f", {name} {size}" for name, size in sizes.items() if size > 1)
        engine, requested = engine_of(trainer) + shared, engine_name(self.sharding)
        if engine != requested:
            raise AnotherEngine(f"{requested} was asked for, but {engine} ran")
        zero = (self.overrides.get("deepspeed") or {}).get("zero_optimization")
        differences = other_settings(trainer, zero) if zero else None
        if differences is not None:
            raise AnotherEngine(f"{engine} ran, but with {differences}")
        return engine


SINGLE_RANK = Ranks()
