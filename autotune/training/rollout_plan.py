"""The prompts of a probe of an online trainer: representative ones, and the longest.

A round is one generation: whole groups of completions, then as many micro-steps as they make up. A
cycle is the least number of rounds after which generation and optimizer steps start together
again. Every cycle that is timed generates from the same prompts, spread evenly over the lengths of
the data; one before them from the longest. Pure.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from autotune.space.knobs import (
    ACCUMULATION,
    COMPLETION,
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    RESPONSE,
    ROLLOUT_CHUNK,
)
from autotune.training.batch_plan import spread_over_lengths


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A candidate's rules for generation and training; completions are counted on one device.

    Attributes:
        completions: completions of one generation.
        group: completions of one prompt.
        length: tokens of a completion.
        iterations: how often the completions of a generation are trained on.
        epochs: the same within one step of the trainer's count: PPO counts updates.
        chunk: completions of one call of generation, where it is divided; 0: all.
    """

    micro_batch: int
    accumulation: int
    completions: int
    group: int
    length: int
    iterations: int
    seed: int
    epochs: int = 1
    chunk: int = 0

    @property
    def prompts(self) -> int:
        """Prompts of one generation; a group may be divided among devices."""
        return -(-self.completions // self.group)

    @property
    def micro_steps(self) -> int:
        """Micro-steps of one round."""
        return self.completions // self.micro_batch * self.iterations * self.epochs

    @property
    def rounds(self) -> int:
        """Rounds of a cycle."""
        return math.lcm(self.micro_steps, self.micro_steps_of_a_step) // self.micro_steps

    @property
    def steps(self) -> int:
        """Steps of a cycle, as the trainer counts them."""
        return self.rounds * self.micro_steps // self.micro_steps_of_a_step

    @property
    def micro_steps_of_a_step(self) -> int:
        """Micro-steps of a step, as the trainer counts steps."""
        return self.accumulation * self.epochs

    @property
    def at_once(self) -> int:
        """Completions of one call of generation."""
        return self.chunk or self.completions

    @property
    def generations(self) -> int:
        """Calls of generation in a round."""
        return -(-self.completions // self.chunk) if self.chunk else 1


def completion_length(config: Mapping[str, Any]) -> int:
    """Return tokens of a full completion, by either of the names that trainers have for it."""
    length: int = config.get(RESPONSE) or config[COMPLETION]
    return length


def rollout_of(config: Mapping[str, Any], *, devices: int, seed: int) -> Rollout:
    """Return how the trainer of a flat configuration generates."""
    if RESPONSE in config:
        return _ppo_rollout(config, seed)
    micro, accumulation = config[MICRO_BATCH], config[ACCUMULATION]
    together = config.get(GENERATION_BATCH)
    return Rollout(
        micro_batch=micro,
        accumulation=accumulation,
        completions=together // devices if together else micro * accumulation,
        group=config.get(GROUP, 1),
        length=completion_length(config),
        iterations=config.get("num_iterations") or 1,
        seed=seed,
    )


def _ppo_rollout(config: Mapping[str, Any], seed: int) -> Rollout:
    micro, accumulation = config[MICRO_BATCH], config[ACCUMULATION]
    completions = micro * accumulation
    return Rollout(
        micro_batch=micro,
        accumulation=accumulation,
        completions=completions,
        group=1,
        length=completion_length(config),
        iterations=1,
        epochs=config["num_ppo_epochs"],
        chunk=min(config[ROLLOUT_CHUNK], completions),
        seed=seed,
    )


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """The prompts of a probe, as indices of the rows measured, and what they come to.

    Attributes:
        timed: of one timed cycle, in the order of its rounds.
        longest: of a round that takes most memory.
        tokens: of prompts and completions of a timed cycle.
        tokens_per_epoch: of the whole data once.
    """

    timed: list[int]
    longest: list[int]
    tokens: int
    tokens_per_epoch: float


def rollout_plan(lengths: Sequence[int], rollout: Rollout, rows_total: int) -> RolloutPlan:
    """Return the prompts of one probe.

    Args:
        lengths: tokens of the prompts measured.
        rows_total: prompts of the whole data.
    """
    count = rollout.prompts * rollout.rounds
    sample = spread_over_lengths(lengths, count)
    timed_indices = [sample[n % len(sample)] for n in range(count)]
    random.Random(rollout.seed).shuffle(timed_indices)
    ranked = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    longest = [ranked[n % len(ranked)] for n in range(rollout.prompts)]
    per_prompt = rollout.group * rollout.length
    completions_a_prompt = rollout.completions / rollout.prompts
    return RolloutPlan(
        timed=timed_indices,
        longest=longest,
        tokens=round(
            sum(completions_a_prompt * (lengths[index] + rollout.length) for index in timed_indices)
        ),
        tokens_per_epoch=rows_total * (rollout.group * fmean(lengths) + per_prompt),
    )


def padded_tokens(plan: RolloutPlan, rollout: Rollout, lengths: Sequence[int]) -> int:
    """Return tokens of a timed cycle with the padding of its rounds."""
    rounds = range(0, len(plan.timed), rollout.prompts)
    longest = [max(lengths[i] for i in plan.timed[n : n + rollout.prompts]) for n in rounds]
    return sum(rollout.completions * (prompt + rollout.length) for prompt in longest)


def dealt_order(order: Sequence[int], rollout: Rollout, processes: int) -> list[int]:
    """Return the prompts of one device's rounds as those of all: each device gets the same prompts;
    where a group is divided among devices, they share one."""
    if processes == 1:
        return list(order)
    count = -(-processes * rollout.completions // rollout.group)
    rounds = (order[n : n + rollout.prompts] for n in range(0, len(order), rollout.prompts))
    return [block[n % len(block)] for block in rounds for n in range(count)]
