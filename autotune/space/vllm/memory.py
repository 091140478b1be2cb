"""The share of vLLM on a device that trains, beside the training; and the needs of its server on
devices of its own. Bytes. Pure; imports nothing of ours, because both sides of a process boundary
need it."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class VllmShare:
    """The part of a device that vLLM has.

    Attributes:
        awake_bytes: while it generates.
        asleep_bytes: while the training computes; None: it does not sleep.
    """

    awake_bytes: int
    asleep_bytes: int | None

    @property
    def always_bytes(self) -> int:
        """Bytes that the training can never have."""
        return self.awake_bytes if self.asleep_bytes is None else self.asleep_bytes

    def left_of(self, limit_bytes: int) -> int:
        """Return bytes of a limit for both that are the training's."""
        return max(limit_bytes - self.always_bytes, 1)

    def added_peak(self, peak_bytes: int, resident_bytes: int) -> int:
        """Return bytes that vLLM adds to the training's peak, so that the sum is the peak of both.

        Args:
            resident_bytes: what the training holds while vLLM generates.
        """
        if self.asleep_bytes is None:
            return self.awake_bytes
        return max(self.asleep_bytes, resident_bytes + self.awake_bytes - peak_bytes)


@dataclass(frozen=True, kw_only=True)
class ServerNeeds:
    """Memory that a vLLM server needs on each of its devices.

    Attributes:
        devices: among which the model is divided.
        weights_bytes: of its part of the model.
        cache_bytes: of keys and values of all completions of a generation; None: it is not known
            what a token takes.
        other_bytes: of a profiling pass, CUDA graphs and libraries; assumed.
        given_bytes: what it may take.
    """

    devices: int
    weights_bytes: int
    cache_bytes: int | None
    other_bytes: int
    given_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Bytes that the server needs: weights, cache and the rest."""
        return self.weights_bytes + (self.cache_bytes or 0) + self.other_bytes

    @property
    def missing_bytes(self) -> int | None:
        """Bytes that the server lacks; None: it fits."""
        excess = self.needed_bytes - self.given_bytes
        return excess if excess > 0 else None

    def plain(self) -> dict[str, int | None]:
        """Return the needs as JSON data, with the sums that follow from them."""
        sizes = {"needed_bytes": self.needed_bytes, "missing_bytes": self.missing_bytes}
        return {**asdict(self), **sizes}
