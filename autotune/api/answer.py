"""The answer of a plan or a run, as a program has it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import user_error, visible
from autotune.estimate.estimate import Estimate
from autotune.job.job import KnobValue
from autotune.probe.protocol import Measurement
from autotune.report.sections import Table
from autotune.space.knobs import Candidate
from autotune.space.trl_config import Settings

if TYPE_CHECKING:
    import pandas as pd


class Answer(ABC):
    """The configuration to train a job with, and how that is known: of a plan by estimate, of a run
    by measurement.

    Where nothing fits it says so: `fits` is False, `knobs` and the figures are None, and `lines`
    name ways out. In a notebook it is shown with a table of what there is to choose from.
    """

    @property
    @abstractmethod
    def lines(self) -> tuple[str, ...]:
        """The configuration, its reasons, and what is assumed or left open, as sentences."""

    @property
    @abstractmethod
    def safe(self) -> bool:
        """True if it will hardly ever run out of memory: by a plan's estimate; of a run, whether
        its bundle was launched and held."""

    @abstractmethod
    def write_bundle(self, folder: str | Path) -> Path:
        """Write the files that train it into a folder that is new or empty; its absolute path.

        Raises:
            UserError: something is there, or nothing can be recommended.
        """

    @property
    @abstractmethod
    def _best(self) -> tuple[Candidate, Estimate | Measurement] | None:
        """The candidate with its figures; None: nothing fits."""

    @abstractmethod
    def _rows(self, *, every: bool) -> Iterable[Mapping[str, Any]]:
        """Yield the rows of a frame."""

    @abstractmethod
    def _settings(self) -> Settings | None:
        """Return the settings for the stack; None: nothing fits."""

    @abstractmethod
    def _table(self) -> tuple[Table | None, Sequence[str]]:
        """Return the table that a notebook shows, and what is to be said below it."""

    @property
    def text(self) -> str:
        """The configuration in a sentence."""
        return self.lines[0]

    @property
    def fits(self) -> bool:
        """True if there is something to use."""
        return self._best is not None

    @property
    def knobs(self) -> dict[str, KnobValue] | None:
        """The value of every knob, by the name of the field that it sets."""
        return self._best and self._best[0].knobs

    @property
    def tokens_per_s(self) -> float | None:
        """Real tokens per second of all devices together; None: not known."""
        return self._best and self._best[1].tokens_per_s

    @property
    def peak_memory_bytes(self) -> int | None:
        """The peak of the process that takes most of its device, in bytes."""
        return self._best and self._best[1].peak_memory_bytes

    def to_frame(self, *, all: bool = False) -> "pd.DataFrame":
        """Return the choices, the best first: a column a knob, then its figures, whose units are in
        their names.

        Args:
            all: every candidate that was estimated, or every probe of a run, in place of one row
                for all those that a person does not tell apart.
        """
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self._rows(every=all)])

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the training needs, set before torch is imported."""
        return self._chosen().environment

    def training_arguments(self, output_dir: str | Path | None = None, **fields: Any) -> Any:
        """Return the arguments for TRL's trainer, ready: an `SFTConfig`, `RewardConfig`,
        `DPOConfig`, `KTOConfig`, `GRPOConfig`, `RLOOConfig`, `DistillationConfig` or
        `PPOConfig`.

        Args:
            output_dir: where the training writes; None: where the job or the bundle says.
            fields: fields of that class over the answer's, such as `max_steps=2`.

        Raises:
            UserError: nothing fits, or the class has no such field or value.
            MachineError: TRL refuses them on this machine, such as bf16 where no GPU is.
        """
        from autotune.api.trainer_arguments import training_arguments

        if output_dir is not None:
            fields["output_dir"] = str(output_dir)
        return training_arguments(self._chosen(), fields)

    def peft_config(self) -> Any:
        """Return the `LoraConfig` of the adapters; None: all weights are trained.

        Raises:
            UserError: nothing fits.
        """
        from autotune.api.trainer_arguments import peft_config

        return peft_config(self._chosen())

    def _chosen(self) -> Settings:
        chosen = self._settings()
        if chosen is None:
            raise user_error(self.text, hint="`answer.lines` says what would make it fit")
        return chosen

    def __str__(self) -> str:
        return visible("\n".join(self.lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from autotune.report.html import answer_html

        return answer_html(self.lines, *self._table())
