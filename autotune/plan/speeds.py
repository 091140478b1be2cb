"""The speeds of variants, worked out once for all tasks that compute the same. Pure."""

from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.variants import RolloutTime, VariantSpeed
from autotune.job.methods import METHODS


class Speeds:
    """Makes what tells the speed of a variant's points, from its reply.

    By formula, a dozen engines have the very work that was traced without one: what was worked out
    for one of them serves the others. It is found by identity, as works are long.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[Ceilings, VariantSpeed]] = {}

    def of(
        self, method: str, reply: EstimateReply, ceilings: Ceilings | None
    ) -> VariantSpeed | RolloutTime | None:
        """Return the speeds that follow from a reply; None: none do.

        Args:
            method: of training.
            ceilings: rates of the device; None: they are not known.
        """
        if ceilings is None or reply.problem is not None:
            return None
        if METHODS[method].online:
            return RolloutTime(ceilings)
        works = (reply.shapes, reply.copied_shapes, reply.optimizer_work, ceilings)
        key = tuple(id(work) for work in works)
        if key not in self._known:  # which keeps them, so that no other gets their identity
            self._known[key] = ceilings, VariantSpeed(reply, ceilings)
        return self._known[key][1]
