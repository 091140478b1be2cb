"""What a tokenized row is to each trainer: its sequences, how it is cut, what is learned of it.

A row is a mapping from the columns that TRL's trainer makes of the data to lists of integers; a
sequence is one line of the padded batch that its collator forms of rows. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

Row = dict[str, list[int]]
"""What is no list of tokens (the label of an unpaired row) is passed through."""
A_TOKEN = 3
"""Any token, for rows that are traced."""


class RowKind(ABC):
    """Rows of one trainer."""

    @abstractmethod
    def lengths(self, row: Row) -> list[int]:
        """Return tokens of each sequence, before truncation."""

    @abstractmethod
    def first_label(self, row: Row) -> int:
        """Return tokens of a sequence before the first one that counts in the loss."""

    @abstractmethod
    def labelled(self, row: Row, cut_to: int | None) -> int:
        """Return tokens of all sequences that count in the loss, after truncation."""

    @abstractmethod
    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        """True if the trainer keeps such a row."""

    @abstractmethod
    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        """Return the row as the trainer's data set has it; some are cut by the collator only."""

    @abstractmethod
    def lengthened(self, row: Row, length: int) -> Row:
        """Return the row with all its sequences at least so long: as long as an unseen one can
        be."""

    @abstractmethod
    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        """Return rows whose sequences have these lengths, of which that share counts in the
        loss."""


def repeated(tokens: list[int], length: int) -> list[int]:
    """Return the tokens again and again, up to `length`; as they are where they are longer."""
    if len(tokens) >= length:
        return tokens
    return (tokens * -(-length // max(len(tokens), 1)))[:length]


def turned_by_one(completions: list[list[int]]) -> list[list[int]]:
    """Return the completions in the order in which KTO puts them behind prompts that are not
    theirs."""
    return [completions[-1], *completions[:-1]]


class TextRows(RowKind):
    """Rows of SFTTrainer: one sequence, cut in the data set."""

    def lengths(self, row: Row) -> list[int]:
        return [len(row["input_ids"])]

    def first_label(self, row: Row) -> int:
        labels = row["labels"]
        return next((n for n, label in enumerate(labels) if n > 0 and label != -100), len(labels))

    def labelled(self, row: Row, cut_to: int | None) -> int:
        # The first token of a row is predicted by nothing, so a label on it alone does not count.
        return sum(label != -100 for label in row["labels"][1:])

    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        (length,) = lengths
        end = length if cut_to is None or keep_end else min(cut_to, length)
        return first_label < end

    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        span = slice(-cut_to, None) if keep_end and cut_to else slice(None, cut_to)
        return {name: values[span] for name, values in row.items()}

    def lengthened(self, row: Row, length: int) -> Row:
        tokens = len(row["input_ids"])
        if tokens >= length:
            return row
        names = [name for name in ("input_ids", "labels") if name in row]
        longer_row: Row = {name: repeated(row[name], length) for name in names}
        if "seq_lengths" in row:
            longer_row["seq_lengths"] = [*row["seq_lengths"], length - tokens]
        return longer_row

    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        rows = []
        for length in lengths:
            masked = length - max(round(length * labelled), 1)
            ids = [A_TOKEN] * length
            rows.append({"input_ids": ids, "labels": [-100] * masked + ids[masked:]})
        return rows


class PairRows(RowKind):
    """Rows of RewardTrainer: two sequences, padded together; what is too long is dropped."""

    def lengths(self, row: Row) -> list[int]:
        return [len(row["chosen_ids"]), len(row["rejected_ids"])]

    def first_label(self, row: Row) -> int:
        return 0

    def labelled(self, row: Row, cut_to: int | None) -> int:
        return sum(self.lengths(row))

    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        return cut_to is None or max(lengths) <= cut_to

    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        return row

    def lengthened(self, row: Row, length: int) -> Row:
        return {name: repeated(tokens, length) for name, tokens in row.items()}

    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        return [
            {"chosen_ids": [A_TOKEN] * chosen, "rejected_ids": [A_TOKEN] * rejected}
            for chosen, rejected in _pairs(lengths)
        ]


class PromptPairRows(RowKind):
    """Rows of DPOTrainer: a prompt with two completions, cut and padded by the collator."""

    def lengths(self, row: Row) -> list[int]:
        prompt = len(row["prompt_ids"])
        return [prompt + len(row["chosen_ids"]), prompt + len(row["rejected_ids"])]

    def first_label(self, row: Row) -> int:
        return len(row["prompt_ids"])

    def labelled(self, row: Row, cut_to: int | None) -> int:
        prompt = len(row["prompt_ids"])
        return sum(max(min(n, cut_to or n) - prompt, 0) for n in self.lengths(row))

    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        return cut_to is None or keep_end or first_label < cut_to

    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        return row

    def lengthened(self, row: Row, length: int) -> Row:
        prompt = len(row["prompt_ids"])
        if prompt >= length:
            return row
        completions = {
            name: repeated(row[name] or [A_TOKEN], length - prompt)
            for name in ("chosen_ids", "rejected_ids")
        }
        return {"prompt_ids": row["prompt_ids"], **completions}

    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        rows = []
        for chosen, rejected in _pairs(lengths):
            shorter = min(chosen, rejected)
            prompt = shorter - max(round(shorter * labelled), 1)
            rows.append(
                {
                    "prompt_ids": [A_TOKEN] * prompt,
                    "chosen_ids": [A_TOKEN] * (chosen - prompt),
                    "rejected_ids": [A_TOKEN] * (rejected - prompt),
                }
            )
        return rows


class LabelledRows(RowKind):
    """Rows of KTOTrainer: a prompt with one completion, wanted or not; cut by the collator.

    Beside each row the trainer runs, without gradients, its prompt with the completion of the row
    before it. That sequence is not counted among the tokens.
    """

    def lengths(self, row: Row) -> list[int]:
        return [len(row["prompt_ids"]) + len(row["completion_ids"])]

    def first_label(self, row: Row) -> int:
        return len(row["prompt_ids"])

    def labelled(self, row: Row, cut_to: int | None) -> int:
        (length,) = self.lengths(row)
        return max(min(length, cut_to or length) - len(row["prompt_ids"]), 0)

    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        return cut_to is None or first_label < cut_to

    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        return row

    def lengthened(self, row: Row, length: int) -> Row:
        prompt = len(row["prompt_ids"])
        completion = repeated(row["completion_ids"] or [A_TOKEN], max(length - prompt, 1))
        return {**row, "completion_ids": completion}

    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        """Return rows none of which is wanted: the trainer copies the logits of the wanted ones and
        of the others for its log, one after the other, which takes most where all are of one
        kind."""
        rows = []
        for length in lengths:
            completion = max(round(length * labelled), 1)
            label: Any = False
            rows.append(
                {
                    "prompt_ids": [A_TOKEN] * (length - completion),
                    "completion_ids": [A_TOKEN] * completion,
                    "label": label,
                }
            )
        return rows


class PromptRows(RowKind):
    """Rows of trainers that generate: a prompt, which is never cut."""

    def lengths(self, row: Row) -> list[int]:
        return [len(row["prompt_ids"])]

    def first_label(self, row: Row) -> int:
        return 0

    def labelled(self, row: Row, cut_to: int | None) -> int:
        return 0

    def usable(
        self, lengths: Sequence[int], first_label: int, cut_to: int | None, keep_end: bool
    ) -> bool:
        return True

    def cut(self, row: Row, cut_to: int | None, keep_end: bool) -> Row:
        return row

    def lengthened(self, row: Row, length: int) -> Row:
        return {"prompt_ids": repeated(row["prompt_ids"], length)}

    def of_lengths(self, lengths: Sequence[int], labelled: float) -> list[Row]:
        return [{"prompt_ids": [A_TOKEN] * length} for length in lengths]


def _pairs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sequences two by two, as collators lay them: all the chosen ones first."""
    half = len(lengths) // 2
    if len(lengths) % 2:
        raise ValueError(f"{len(lengths)} sequences cannot be paired")
    return list(zip(lengths[:half], lengths[half:], strict=True))


ROW_KINDS: dict[str, RowKind] = {
    "sft": TextRows(),
    "reward": PairRows(),
    "dpo": PromptPairRows(),
    "kto": LabelledRows(),
    "grpo": PromptRows(),
    "rloo": PromptRows(),
    "distillation": PromptRows(),
    "ppo": PromptRows(),
}
"""By method."""
