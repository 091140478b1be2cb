"""What vLLM has of a device that trains, beside what the training takes of it. Bytes. Pure; no
imports, because both sides of a process boundary need it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VllmShare:
    """What vLLM has of a device.

    Attributes:
        awake_bytes: while it generates.
        asleep_bytes: while the training computes; None: it does not sleep.
    """

    awake_bytes: int
    asleep_bytes: int | None

    @property
    def always_bytes(self) -> int:
        """What the training can never have."""
        return self.awake_bytes if self.asleep_bytes is None else self.asleep_bytes

    def left_of(self, limit_bytes: int) -> int:
        """What of a limit for both is the training's."""
        return max(limit_bytes - self.always_bytes, 1)

    def beside(self, peak_bytes: int, resident_bytes: int) -> int:
        """What it adds to the training's peak, so that the sum is the peak of both.

        Args:
            resident_bytes: what the training holds while vLLM generates.
        """
        if self.asleep_bytes is None:
            return self.awake_bytes
        return max(self.asleep_bytes, resident_bytes + self.awake_bytes - peak_bytes)
