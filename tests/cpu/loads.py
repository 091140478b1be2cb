"""Child of `test_loading_peaks.py`: loads a model as TRL does and prints what memory that took."""

import json
import os
import sys
import threading
import time
from typing import Any

import torch
import transformers
from trl import ModelConfig
from trl.trainer.utils import create_model_from_path

from autotune.process.proc import process_status
from autotune.training.quantized import quantization_of


def join_group(engine: str) -> Any:
    """Join the other rank, with what makes transformers load for this engine."""
    if engine == "DEEPSPEED":
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        deepspeed.init_distributed("gloo")
        stage_3 = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
        return HfDeepSpeedConfig({**stage_3, "bf16": {"enabled": True}})
    torch.distributed.init_process_group("gloo")
    return None


def grown(path: str, bits: int) -> int:
    """Return by how many bytes that are no file's this process grew at most while it loaded."""
    most = [first := process_status("RssAnon")]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.001):
            most[0] = max(most[0], process_status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    asked = ModelConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8, use_bnb_nested_quant=True)
    asked.bnb_4bit_quant_type, asked.dtype = "nf4", "bfloat16"
    quantization = {"quantization_config": quantization_of(asked)} if bits else {}
    create_model_from_path(path, dtype="bfloat16", **quantization)
    ended.set()
    watcher.join()
    return most[0] - first


def main(path: str, bits: int, engine: str) -> None:
    """Load once without looking, but for engines, so that libraries are there."""
    torch.set_num_threads(1)
    group = join_group(engine) if engine else None
    if bits:
        import bitsandbytes  # noqa: F401
    transformers.AutoConfig.from_pretrained(path)
    size = grown(path, bits)
    print(json.dumps({"rank": int(os.environ.get("RANK", "0")), "grown": size}), flush=True)
    if group is not None or engine:
        torch.distributed.barrier()
        time.sleep(0.1)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
