"""The neutral harness: train with given fields and say how fast, end to end. One fresh process.

    python harness.py '{"per_device_train_batch_size": 4, ...}' STEPS LIMIT_BYTES SCRATCH

It knows nothing of autotune: TRL's trainer, the real data in the trainer's own order, the real
accumulation. Two optimizer steps warm up; tokens are those of the attention masks; seconds are from
the end of the second step to the end of the last.
"""

import json
import sys
import time
from typing import Any

from common import answer, limit_memory, peak_bytes, sft_trainer

WARM_UP = 2


def main() -> None:
    """Train and answer."""
    fields: dict[str, Any] = json.loads(sys.argv[1])
    steps, limit, scratch = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    from transformers import TrainerCallback

    trainer = sft_trainer({**fields, "max_steps": WARM_UP + steps, "output_dir": scratch})
    if limit:
        limit_memory(limit)
    seen = {"tokens": 0, "sequences": 0, "steps": 0, "began": 0.0, "seconds": 0.0}
    plain = trainer.training_step

    def counted(model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        if seen["steps"] >= WARM_UP:
            mask = inputs.get("attention_mask")
            found = inputs["input_ids"].numel() if mask is None else int(mask.sum())
            seen["tokens"] += found
            seen["sequences"] += len(inputs["input_ids"])
        return plain(model, inputs, *rest, **more)

    class Clock(TrainerCallback):
        """Reads the clock at the ends of steps."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen["steps"] += 1
            if seen["steps"] == WARM_UP:
                seen["began"] = time.perf_counter()
            seen["seconds"] = time.perf_counter() - seen["began"]

    trainer.training_step = counted
    trainer.add_callback(Clock())
    try:
        trainer.train()
    except (RuntimeError, MemoryError) as error:
        if "allocate memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        answer(outcome="oom", after_steps=seen["steps"], peak_memory_bytes=peak_bytes())
        return
    answer(
        outcome="ok",
        tokens_per_s=seen["tokens"] / seen["seconds"],
        sequences_per_step=seen["sequences"] / steps,
        seconds=seen["seconds"],
        peak_memory_bytes=peak_bytes(),
    )


main()
