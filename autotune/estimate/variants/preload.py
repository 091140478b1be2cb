"""What the forkserver of traces imports besides the libraries, so that no child needs to.

As in `process/preload.py`, nothing here may touch a device or start a thread.
"""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from autotune.estimate.variants import offline

TOUCHED = (offline, get_checkpoint_conversion_mapping("qwen2"))
"""Transformers makes its table of checkpoints for all models at the first question."""
