"""The reference of preference trainers, where it is computed once before the training.

A probe's data set holds the same few rows again and again: each is computed once, and timed.
"""

from typing import Any

from autotune.job.methods import METHODS
from autotune.process import clock


class ReferenceOnce:
    """A base class before one of TRL's trainers: its rows are tokenized already.

    Attributes:
        method: whose columns the reference goes to.
        reference_steps: (tokens, seconds) of each micro-batch that the reference was computed for.
    """

    method: str
    reference_steps: list[tuple[int, float]]

    def __init__(self, *args: Any, **kwargs: Any):
        self.reference_steps = []
        super().__init__(*args, **kwargs)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Compute the reference of each row once; of none where the rows have it."""
        columns = METHODS[self.method].reference
        if columns[0] in dataset.column_names:
            return dataset
        first: dict[str, int] = {}
        places = [first.setdefault(repr(row), n) for n, row in enumerate(dataset)]
        different = sorted(set(places))
        parent: Any = super()
        logps = parent._precompute_ref_logps(dataset.select(different), name, batch_size)
        index_of = {place: n for n, place in enumerate(different)}
        for column in set(columns) & set(logps.column_names):
            values = logps[column][:]
            dataset = dataset.add_column(column, [values[index_of[place]] for place in places])
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        """Compute as the trainer does, and time it."""
        began = clock.now()
        parent: Any = super()
        result = parent.compute_ref_log_probs(model, inputs)
        self.reference_steps.append((int(inputs["attention_mask"].sum()), clock.now() - began))
        return result

    def reference_s_per_token(self) -> float:
        """Return seconds for each real token; the first micro-batch is left out, it warms up."""
        timed_steps = self.reference_steps[1:] or self.reference_steps
        return (
            sum(s for _, s in timed_steps) / sum(n for n, _ in timed_steps) if timed_steps else 0.0
        )
