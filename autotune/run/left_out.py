"""What a run had no room for in its budget, as sentences."""

import shlex
from collections.abc import Iterator, Sequence

from autotune.run.loop import too_close
from autotune.run.room import room
from autotune.run.session import Session
from autotune.run.verdict import Verification
from autotune.search.recommend import Recommendation
from autotune.search.record import Record
from autotune.units import format_seconds


def left_out(
    session: Session,
    records: Sequence[Record],
    recommendation: Recommendation,
    verification: Verification | None,
) -> Iterator[str]:
    """Yield what a run with a recommendation left out."""
    if session.estimates_cut:
        yield f"traces: they took more than their part of {session.deadline.words}"
    group = too_close(session, records)
    if group and room(session, records) < len(group):
        numbers = ", ".join(str(ranked.number) for ranked in group)
        yield f"measuring the fastest again: probes {numbers} are too close to call"
    if verification is None and session.options.verify:
        needed_s, left_s = session.verification_s(recommendation.chosen), session.deadline.left_s
        folder = shlex.quote(str(session.run.path))
        yield (
            f"verification: it takes about {format_seconds(needed_s)}, and {session.deadline.words}"
            f" has {format_seconds(max(left_s, 0.0))} left; `autotune verify {folder}` launches it"
        )
