"""How the installed TRL divides the loss of a variant. Runs in a child only."""

from autotune.estimate.protocol import EstimateRequest
from autotune.estimate.tracing.fused_head import tokens_per_chunk
from autotune.estimate.variants.sizes import LossChunks
from autotune.facts.stack import fused_head

ENTROPY_ROWS, CHUNKED_ROWS = 128, 256
"""Rows a chunk in TRL: `entropy_from_logits`, `_CHUNKED_LM_HEAD_CHUNK_SIZE`; checked by traces."""


def chunking_of(request: EstimateRequest) -> LossChunks:
    """Return how the installed TRL divides the loss of a variant. Its fused head scores the
    labelled tokens on CUDA, and every position elsewhere."""
    if fused_head():
        return LossChunks(rows=tokens_per_chunk(), labelled_only=request.cuda is not None)
    if request.config.get("loss_type") == "chunked_nll":
        return LossChunks(rows=CHUNKED_ROWS, labelled_only=True)
    return LossChunks(rows=ENTROPY_ROWS, labelled_only=False)
