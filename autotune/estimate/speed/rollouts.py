"""How long an optimizer step takes where completions are generated, from its traced work. Pure.

A step is its share of the rounds (a prompt's pass, a decoding pass for each further token, the
scoring), its micro-steps and the optimizer's step. Prompts, scoring and update are traced at the
longest prompts and shortened to those of the data in proportion. Known error: what rewards are
paid for in time is not counted where functions give them.
"""

from autotune.estimate.protocol import Point, PointReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.offline import Speed, counted_work
from autotune.estimate.speed.step_time import TimeParts, in_sequence, work_time
from autotune.training.rollout_plan import Rollout


class RolloutTime:
    """Answers for the points of one variant."""

    def __init__(self, ceilings: Ceilings) -> None:
        self._ceilings = ceilings

    def _time(self, answer: PointReply, phase: str) -> TimeParts:
        assert answer.rollout is not None
        masked = None if phase in ("decode", "optimizer") else True
        return work_time(counted_work(answer.rollout[phase]), self._ceilings, masked=masked)

    def speed(
        self, point: Point, answer: PointReply, accumulation: int, *, offloaded_bytes: int = 0
    ) -> Speed:
        """Return what a candidate runs at, from the prompts that its rounds would have.

        Args:
            offloaded_bytes: nothing is offloaded by these trainers.
        """
        rollout, shorter = Rollout(**point.batching), answer.shorter
        ((tokens, _, _),) = answer.sample
        rounds = rollout.rounds / rollout.steps
        calls = rounds * rollout.generations
        parts = in_sequence(
            [
                self._time(answer, "prefill").times(calls * shorter),
                self._time(answer, "decode").times(calls * (rollout.length - 1)),
                self._time(answer, "scoring").times(rounds * shorter),
                self._time(answer, "judging").times(calls * shorter),
                self._time(answer, "update").times(accumulation * rollout.epochs * shorter),
                self._time(answer, "optimizer").times(rollout.epochs),
            ]
        )
        step = parts.total
        return Speed(step_time_s=step, tokens_per_s=tokens / rollout.steps / step, parts=parts)
