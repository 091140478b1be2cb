"""The neutral harness: train one epoch with given fields and say how fast, end to end.

    python harness.py '{"per_device_train_batch_size": 4, ...}' ROWS LIMIT_BYTES SCRATCH

One fresh process. It knows nothing of autotune: TRL's trainer, the trainer's own order, the real
accumulation. Every pick trains the same rows once, so that the tokens are the same whatever the
order: with a few steps of an epoch, picks that group rows by length would be timed on longer rows.
Seconds are those of all optimizer steps, the slow first one too.
"""

import json
import sys
import time
from typing import Any

from common import answer, limit_memory, peak_bytes, sft_trainer


def main() -> None:
    """Train and answer."""
    fields: dict[str, Any] = json.loads(sys.argv[1])
    rows, limit, scratch = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    trainer = sft_trainer({**fields, "num_train_epochs": 1, "output_dir": scratch}, rows=rows)
    if limit:
        limit_memory(limit)
    seen = {"tokens": 0, "sequences": 0}
    plain = trainer.training_step

    def counted(model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        mask = inputs.get("attention_mask")
        seen["tokens"] += inputs["input_ids"].numel() if mask is None else int(mask.sum())
        seen["sequences"] += len(inputs["input_ids"])
        return plain(model, inputs, *rest, **more)

    trainer.training_step = counted
    began = time.perf_counter()
    try:
        trainer.train()
    except (RuntimeError, MemoryError) as error:
        if "allocate memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        answer(outcome="oom", after_sequences=seen["sequences"], peak_memory_bytes=peak_bytes())
        return
    seconds = time.perf_counter() - began
    answer(
        outcome="ok",
        tokens_per_s=seen["tokens"] / seconds,
        tokens=seen["tokens"],
        sequences=seen["sequences"],
        optimizer_steps=trainer.state.global_step,
        seconds=seconds,
        peak_memory_bytes=peak_bytes(),
    )


main()
