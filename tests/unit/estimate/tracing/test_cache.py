"""Traces of a plan begin with the results that others of it asked torch for."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autotune.estimate.tracing.cache import shared_results
from autotune.estimate.tracing.fake_dispatch import KEPT_RESULTS, short_keys


@pytest.fixture(autouse=True)
def nothing_kept():
    KEPT_RESULTS.clear()
    yield
    KEPT_RESULTS.clear()


def trace():
    """The shapes that a few operators give."""
    with short_keys(), FakeTensorMode():
        x = torch.empty(9, 5)
        found = [x + 1, x.t(), x.sum(0), *x.split(3), torch.ops.aten._unsafe_view(x, [45])]
        return [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in found]


def test_the_next_process_begins_with_the_results_of_the_first(tmp_path):
    with shared_results(tmp_path, "rules"):
        first = trace()
    kept = set(KEPT_RESULTS)
    KEPT_RESULTS.clear()
    with shared_results(tmp_path, "rules"):
        assert set(KEPT_RESULTS) == kept and kept
        assert trace() == first
    assert len(list(tmp_path.rglob("*.results"))) == 1, "it found nothing new"


def test_other_rules_share_nothing(tmp_path):
    with shared_results(tmp_path, "rules"):
        trace()
    KEPT_RESULTS.clear()
    with shared_results(tmp_path, "others"):
        assert not KEPT_RESULTS


def test_a_broken_file_only_costs_its_time(tmp_path):
    with shared_results(tmp_path, "rules"):
        first = trace()
    (file,) = tmp_path.rglob("*.results")
    file.write_bytes(file.read_bytes()[:100])
    KEPT_RESULTS.clear()
    with shared_results(tmp_path, "rules"):
        assert not KEPT_RESULTS
        assert trace() == first


def test_nothing_is_shared_without_a_folder():
    with shared_results(None, "rules"):
        trace()
        kept = set(KEPT_RESULTS)
    assert kept and set(KEPT_RESULTS) == kept, "but by the traces of one process"
