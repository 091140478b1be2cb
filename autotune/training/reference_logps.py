"""The reference of preference trainers, where it is computed once before the training.

A probe's data set holds the same few rows again and again: each is computed once, and timed.
"""

from typing import Any

from autotune.job.methods import METHODS
from autotune.process import clock


class ReferenceOnce:
    """Before one of TRL's trainers among the bases: its rows are tokenized already.

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
        """Of each row once, however often it comes; not at all where the rows have it."""
        columns = METHODS[self.method].reference
        if columns[0] in dataset.column_names:
            return dataset
        first: dict[str, int] = {}
        places = [first.setdefault(repr(row), n) for n, row in enumerate(dataset)]
        different = sorted(set(places))
        parent: Any = super()
        logps = parent._precompute_ref_logps(dataset.select(different), name, batch_size)
        at = {place: n for n, place in enumerate(different)}
        for column in set(columns) & set(logps.column_names):
            values = logps[column][:]
            dataset = dataset.add_column(column, [values[at[place]] for place in places])
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        """As it is, timed."""
        began = clock.now()
        parent: Any = super()
        result = parent.compute_ref_log_probs(model, inputs)
        self.reference_steps.append((int(inputs["attention_mask"].sum()), clock.now() - began))
        return result

    def reference_s_per_token(self) -> float:
        """Seconds for each real token; the first micro-batch is left out, it warms up."""
        timed = self.reference_steps[1:] or self.reference_steps
        return sum(s for _, s in timed) / sum(n for n, _ in timed) if timed else 0.0
