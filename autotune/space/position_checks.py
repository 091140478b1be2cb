"""Whether the sequences of a candidate are longer than the model has positions for. Pure.

A model that looks positions up in a table has none beyond it: it fails there. Others (rotary,
relative) go on past what they were trained for; that is said, not refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.errors import Problem
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS

MAX_LENGTH = "max_length"
WRAPPED = "wrapped"
"""The packing that fills rows up to max_length with no regard to where texts begin."""


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The positions of a model, and the lengths of rows before they are cut.

    Attributes:
        knob: that says how long sequences can be, and what it is where a space has no such knob.
        limit: positions of the model; None where its configuration does not say.
        fails_beyond: whether it fails beyond them.
        longest: tokens of the longest row (of methods that generate: of the longest prompt).
        sampled: whether longer rows may exist.
    """

    model: str
    knob: str
    default: int | None
    online: bool
    wrapped: bool
    limit: int | None
    fails_beyond: bool
    longest: int
    sampled: bool

    @classmethod
    def of(cls, job: Job, facts: Facts) -> Self:
        """Return the positions and lengths of a job."""
        method = METHODS[job.method]
        return cls(
            model=facts.model.name,
            knob=method.completion or MAX_LENGTH,
            default=None if method.online else job.max_length,
            online=method.online,
            wrapped=job.training.get("packing_strategy") == WRAPPED,
            limit=facts.model.max_positions,
            # vLLM takes no sequence that is longer than what the model was made for.
            fails_beyond=facts.model.fixed_positions or bool(job.fixed.get("use_vllm")),
            longest=facts.data.longest,
            sampled=facts.data.sampled,
        )

    def tokens(self, values: Mapping[str, Any]) -> int:
        """Return tokens of the longest sequence that the model is shown.

        Args:
            values: of a candidate's knobs, the length among them.
        """
        length = values.get(self.knob, self.default)
        if self.online:
            return self.longest + (length or 0)
        if length is None:
            return self.longest
        full = self.sampled or (values.get("packing") and self.wrapped)
        return int(length if full else min(length, self.longest))

    def problem(self, values: Mapping[str, Any]) -> str | None:
        """Return why the model cannot be shown such sequences; None: it can."""
        if not self.fails_beyond or self.limit is None or self.tokens(values) <= self.limit:
            return None
        return f"{self._what(values)}, more than the {self.limit} positions that {self.model} has"

    def refusal(self, values: Sequence[Mapping[str, Any]]) -> Problem | None:
        """Return the problem where every length that may be chosen is too long; None: one is
        not."""
        if not values or self.limit is None:
            return None
        reasons = [reason for value in values if (reason := self.problem(value)) is not None]
        if len(reasons) < len(values):
            return None
        if self.online and self.longest >= self.limit:
            return Problem(
                where="dataset",
                what=f"the longest prompt has {self.longest} tokens, which leaves none of the "
                f"{self.limit} positions of {self.model} for a completion",
                hint=f"leave out prompts of more than {self.limit - 1} tokens, or take a model "
                "with more positions",
            )
        largest = self.limit - self.longest if self.online else self.limit
        return Problem(where=self.knob, what=reasons[0], hint=f"the largest possible: {largest}")

    def note(self, values: Sequence[Mapping[str, Any]]) -> str | None:
        """Return what is said of sequences that are longer than the model was trained for."""
        longest = max(values, key=self.tokens, default=None)
        if longest is None or self.limit is None or self.tokens(longest) <= self.limit:
            return None
        return (
            f"{self._what(longest)}, more than the {self.limit} positions that {self.model} was "
            "made for (max_position_embeddings): it runs, but what it learns there is uncertain"
        )

    def _what(self, values: Mapping[str, Any]) -> str:
        if self.online:
            length = values.get(self.knob, self.default)
            total = self.tokens(values)
            return f"prompts of up to {self.longest} and {length} new tokens are {total}"
        return f"rows have up to {self.tokens(values)} tokens"
