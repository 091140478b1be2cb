"""The micro-batches of a probe, on rows that no disk holds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.training.batch_plan import (
    MAX_TIMED,
    SAMPLE_ROWS,
    Batching,
    batch_size,
    grouped_by_length,
    plan,
    spread_over_lengths,
    timed_indices,
)

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)


class FakeRows:
    """Rows of given lengths; the labels of `masked` rows are not learned from."""

    def __init__(self, lengths, masked=()):
        self.longest, self._masked = list(lengths), set(masked)
        self.lengths = [[length] for length in lengths]

    def __getitem__(self, index):
        length = self.longest[index]
        label = -100 if index in self._masked else index
        return {"input_ids": [index] * length, "labels": [label] * length}

    def usable(self, batching):
        return [n for n in range(len(self.lengths)) if n not in self._masked]

    def pack(self, rows, batching):
        """First fit, as `bfd` packs."""
        packs = []
        for row in sorted(rows, key=lambda row: -len(row["input_ids"])):
            length = len(row["input_ids"])
            home = next(
                (p for p in packs if len(p["input_ids"]) + length <= batching.max_length), None
            )
            if home is None:
                home = {"input_ids": [], "labels": [], "seq_lengths": []}
                packs.append(home)
            home["input_ids"] += row["input_ids"]
            home["labels"] += row["labels"]
            home["seq_lengths"] += [length]
        return packs


def make_batching(**changes):
    fields = {
        "method": "sft",
        "micro_batch": 4,
        "global_batch": 16,
        "max_length": 200,
        "padding_free": False,
        "packing": False,
        "packing_strategy": "bfd",
        "keep_end": False,
        "grouped": False,
        "pad_to_multiple_of": None,
        "seed": 3,
    }
    return Batching(**{**fields, **changes})


def lengths_of(batch):
    return [len(row["input_ids"]) for row in batch]


def make_plan(lengths, masked=(), *, sampled=False, rows_total=None, **changes):
    batching = make_batching(**changes)
    rows = FakeRows(lengths, masked)
    return plan(rows, batching, rows_total or len(rows.lengths), sampled=sampled), batching


BATCHINGS = st.fixed_dictionaries(
    {
        "micro_batch": st.integers(1, 8),
        "max_length": st.one_of(st.none(), st.integers(8, 500)),
        "padding_free": st.booleans(),
        "grouped": st.booleans(),
        "pad_to_multiple_of": st.sampled_from([None, 8, 64]),
    }
)


@given(LENGTHS, BATCHINGS, st.booleans())
def test_no_sampled_micro_batch_is_larger_than_the_worst(lengths, changes, sampled):
    batch_plan, batching = make_plan(lengths, sampled=sampled, **changes)
    assert len(batch_plan.worst) == batching.micro_batch
    largest = max(padded for _, padded in batch_plan.sample)
    assert batch_size(batch_plan.worst, batching)[1] >= largest
    assert all(len(batch) == batching.micro_batch for batch in batch_plan.timed)


@given(LENGTHS, st.integers(1, 6), st.booleans())
def test_no_pack_is_fuller_than_the_worst(lengths, micro_batch, sampled):
    batch_plan, batching = make_plan(
        lengths, packing=True, micro_batch=micro_batch, max_length=256, sampled=sampled
    )
    assert lengths_of(batch_plan.worst) == [256] * micro_batch
    assert all(sum(row["seq_lengths"]) == 256 for row in batch_plan.worst)
    assert batch_size(batch_plan.worst, batching)[1] >= max(
        padded for _, padded in batch_plan.sample
    )


@given(LENGTHS, BATCHINGS)
def test_the_timed_micro_batches_are_among_the_sampled_ones(lengths, changes):
    batch_plan, batching = make_plan(lengths, **changes)
    assert 1 <= len(batch_plan.timed) <= MAX_TIMED
    assert {batch_size(batch, batching) for batch in batch_plan.timed} <= set(batch_plan.sample)


def test_every_row_is_truncated_and_the_epoch_counts_what_is_left():
    batch_plan, _ = make_plan([50, 100, 300, 400], rows_total=8, micro_batch=2)
    assert sorted(batch_plan.sample) != []
    assert sum(tokens for tokens, _ in batch_plan.sample) == 50 + 100 + 200 + 200
    assert batch_plan.tokens_per_epoch == 8 * (50 + 100 + 200 + 200) / 4
    assert lengths_of(batch_plan.worst) == [200, 200]
    untouched, _ = make_plan([50, 400], max_length=None, micro_batch=2)
    assert sum(tokens for tokens, _ in untouched.sample) == 450


def test_the_sample_spreads_evenly_over_the_lengths():
    lengths = list(range(1, 10_001))
    random.Random(0).shuffle(lengths)
    sample = sorted(lengths[index] for index in spread_over_lengths(lengths, 100))
    gaps = {longer - shorter for shorter, longer in zip(sample, sample[1:], strict=False)}
    assert gaps == {100}
    assert sum(sample) / 100 == pytest.approx(sum(lengths) / len(lengths), rel=0.01)
    assert sorted(spread_over_lengths([5, 3, 4], 9)) == [0, 1, 2]


def test_the_same_seed_gives_the_same_plan_and_candidates_see_the_same_rows():
    generator = random.Random(1)
    lengths = [generator.randint(1, 150) for _ in range(2000)]
    first, _ = make_plan(lengths)
    assert make_plan(lengths)[0] == first
    assert make_plan(lengths, seed=4)[0].sample != first.sample
    second, _ = make_plan(lengths, micro_batch=8)
    assert sum(t for t, _ in first.sample) == sum(t for t, _ in second.sample)
    assert len(first.sample) * 4 == len(second.sample) * 8 == SAMPLE_ROWS


def test_timed_micro_batches_are_at_even_quantiles_of_their_padded_size():
    sizes = [(1, size) for size in range(64, 0, -1)]
    assert sorted(sizes[index][1] for index in timed_indices(sizes, 8)) == [9, 25, 41, 57]
    assert len(timed_indices(sizes, 1)) == 16
    assert len(timed_indices(sizes, 2)) == 8
    assert timed_indices(sizes[:3], 1) == [2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, (60, 90)),
        ({"pad_to_multiple_of": 8}, (60, 96)),
        ({"padding_free": True}, (60, 60)),
        ({"padding_free": True, "pad_to_multiple_of": 8}, (60, 64)),
        ({"packing": True}, (60, 60)),
        ({"packing": True, "packing_strategy": "wrapped"}, (60, 90)),
    ],
)
def test_the_size_of_a_micro_batch_is_what_the_collator_makes_of_it(changes, size):
    batch = [{"input_ids": [0] * length} for length in (10, 30, 20)]
    assert batch_size(batch, make_batching(**changes)) == size


def test_fewer_rows_than_a_micro_batch_are_repeated():
    batch_plan, _ = make_plan([30, 20], micro_batch=5)
    assert batch_plan.sample == [(130, 150)] or batch_plan.sample == [(120, 150)]
    assert sorted(lengths_of(batch_plan.worst)) == [20, 20, 30, 30, 30]


def test_rows_without_anything_to_learn_are_left_out():
    batch_plan, _ = make_plan([10, 20, 30, 40], masked=[3], micro_batch=1)
    assert sorted(tokens for tokens, _ in batch_plan.sample) == [10, 20, 30]
    with pytest.raises(ValueError, match="no token is left to learn from.*max_length=200"):
        make_plan([10, 20], masked=[0, 1])


def test_the_worst_micro_batch_is_made_of_rows_that_are_trained():
    batch_plan, _ = make_plan([10, 20, 300, 400], masked=[2, 3], micro_batch=2)
    assert [len(row["labels"]) for row in batch_plan.worst] == [20, 10]


def test_an_epoch_counts_the_rows_that_are_trained():
    batch_plan, _ = make_plan([10, 20, 300, 400], masked=[2, 3], micro_batch=2)
    assert batch_plan.tokens_per_epoch == 30


def test_an_unseen_row_may_be_as_long_as_max_length():
    batch_plan, _ = make_plan([30, 20, 10, 7], micro_batch=2, sampled=True)
    assert lengths_of(batch_plan.worst) == [200, 200]
    assert [len(row["labels"]) for row in batch_plan.worst] == [200, 200]
    endless, _ = make_plan([30, 20], micro_batch=2, max_length=None, sampled=True)
    assert lengths_of(endless.worst) == [30, 20]


def test_grouping_sorts_inside_mega_batches_only():
    rows = [{"input_ids": [0] * n} for n in random.Random(2).sample(range(1, 500), 96)]
    sorted_lengths = lengths_of(grouped_by_length(rows, 16, rows_total=10_000))
    assert sorted_lengths == sorted(sorted_lengths, reverse=True)
    # 128 rows make mega-batches of 128 // (16 * 4) = 2 global batches.
    parts = lengths_of(grouped_by_length(rows, 16, rows_total=128))
    assert parts != sorted_lengths
    for start in (0, 32, 64):
        part = parts[start : start + 32]
        assert part == sorted(part, reverse=True)
        assert sorted(part) == sorted(lengths_of(rows[start : start + 32]))


def test_grouping_pads_less():
    generator = random.Random(5)
    lengths = [generator.randint(1, 200) for _ in range(3000)]
    plain, grouped = make_plan(lengths)[0], make_plan(lengths, grouped=True)[0]
    assert sum(t for t, _ in plain.sample) == sum(t for t, _ in grouped.sample)
    assert sum(p for _, p in grouped.sample) < 0.8 * sum(p for _, p in plain.sample)


@pytest.mark.slow
def test_grouping_pads_as_much_as_transformers_own():
    """Imports torch: the one test here that does."""
    import torch
    from transformers.trainer_pt_utils import get_length_grouped_indices

    generator = random.Random(7)
    lengths = [min(400, int(generator.lognormvariate(4, 0.8)) + 1) for _ in range(4000)]
    order = get_length_grouped_indices(lengths, 16, generator=torch.Generator().manual_seed(0))
    real = [[lengths[i] for i in order[start : start + 4]] for start in range(0, 4000, 4)]
    padded = sum(4 * max(batch) for batch in real)
    batch_plan, _ = make_plan(lengths, grouped=True, max_length=None)
    our_share = sum(p for _, p in batch_plan.sample) / sum(t for t, _ in batch_plan.sample)
    assert our_share == pytest.approx(padded / sum(lengths), rel=0.05)
    shuffled, _ = make_plan(lengths, max_length=None)
    assert our_share < 0.8 * sum(p for _, p in shuffled.sample) / sum(t for t, _ in shuffled.sample)
