"""Which change a plan says would help most."""

import pytest

from autotune.cli.views.plan import most_helpful
from autotune.estimate.estimate import CONTEXT
from autotune.estimate.records.events import (
    ACTIVATIONS,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    PARTS,
    WEIGHTS,
)

FULL = {
    "per_device_train_batch_size": 4,
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "dtype": "float32",
}


@pytest.mark.parametrize(
    ("largest", "change"),
    [
        (ACTIVATIONS, "gradient_checkpointing"),
        (LOGITS, "chunked_nll"),
        (OPTIMIZER, "lora"),
        (GRADIENTS, "lora"),
        (WEIGHTS, "bfloat16"),
    ],
)
def test_the_largest_part_says_what_would_help(largest, change):
    assert change in most_helpful({**dict.fromkeys(PARTS, 5), largest: 6}, FULL)


@pytest.mark.parametrize(
    ("largest", "has", "not_said"),
    [
        (ACTIVATIONS, {"gradient_checkpointing": True}, "checkpointing"),
        (LOGITS, {"loss_type": "chunked_nll"}, "chunked_nll"),
        (OPTIMIZER, {"lora_r": 16}, "lora"),
        (WEIGHTS, {"dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_what_a_candidate_has_already_is_not_recommended(largest, has, not_said):
    advice = most_helpful({ACTIVATIONS: 5, LOGITS: 5, largest: 6}, {**FULL, **has})
    assert advice and not_said not in advice


def test_a_fused_head_has_no_other_loss_to_take():
    advice = most_helpful({ACTIVATIONS: 5, LOGITS: 6}, FULL, fused_head=True)
    assert advice == "a smaller micro-batch, or a shorter max_length"


def test_where_the_largest_part_cannot_shrink_the_next_one_is_named():
    assert "bfloat16" in most_helpful({CONTEXT: 9, WEIGHTS: 3}, FULL)
    assert most_helpful({}, FULL) is None
    assert most_helpful({CONTEXT: 9}, FULL) is None


def test_weights_in_half_precision_can_still_be_packed():
    half = {**FULL, "dtype": "bfloat16", "lora_r": 16}
    assert most_helpful({WEIGHTS: 9}, half) == "tuning: qlora"
    assert most_helpful({WEIGHTS: 9}, {**half, "load_in_8bit": False}) is None
