"""What a shape costs SDPA the first time, with each setting of cuDNN's attention.

    python -m benchmarks.attention_shapes.run [--out rows.jsonl] [--device cpu]

Forward and backward of as many rows of ever other lengths, causal as transformers calls it without
a mask, and with the mask of a padded batch; then the same lengths again. A row for each setting:
milliseconds in the median of a length seen first and seen before. Each setting is a process of its
own, as torch reads them once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "cuDNN last": {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"},
    "no recompilation": {"TORCH_CUDNN_SDPA_AVOID_RECOMPILE": "1"},
}
ROWS, HEADS, KEY_HEADS, SIZE = 8, 14, 2, 64
LENGTHS = tuple(range(301, 1501, 48))
CPU_LENGTHS = (31, 57, 90)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time SDPA on lengths seen first and again.")
    parser.add_argument("--out", type=Path, help="file that rows are added to")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measured(arguments.device)))
        return
    for name, variables in SETTINGS.items():
        command = [sys.executable, "-m", "benchmarks.attention_shapes.run", "--here"]
        done = subprocess.run(
            [*command, "--device", arguments.device],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        row = {"setting": name, **json.loads(done.stdout)}
        print("  ".join(f"{key} {value}" for key, value in row.items() if key != "about"))
        if arguments.out is not None:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, sort_keys=True) + "\n")


def measured(device: str) -> dict[str, Any]:
    """Median milliseconds of each length, first and again, without a mask and with one."""
    lengths = CPU_LENGTHS if device == "cpu" else LENGTHS
    row: dict[str, Any] = {}
    for masked in (False, True):
        one_pass(lengths[0] - 1, device, masked=masked)  # libraries are loaded, kernels chosen
        for sight in ("first", "again"):
            times = [one_pass(length, device, masked=masked) for length in lengths]
            name = f"{'masked' if masked else 'causal'}_{sight}_ms"
            row[name] = round(1e3 * statistics.median(times), 2)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": name}
    return {**row, "about": {**about, "torch": torch.__version__, "lengths": len(lengths)}}


def one_pass(length: int, device: str, *, masked: bool) -> float:
    """Seconds of a forward and a backward pass over rows of this length."""
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    key_heads = HEADS if masked else KEY_HEADS  # with a mask transformers repeats them
    query = torch.randn(ROWS, HEADS, length, SIZE, **options)
    key, value = (torch.randn(ROWS, key_heads, length, SIZE, **options) for _ in range(2))
    mask = None
    if masked:
        mask = torch.ones(ROWS, 1, length, length, dtype=torch.bool, device=device).tril()
    synchronize(device)
    began = time.perf_counter()
    out = F.scaled_dot_product_attention(
        *(query, key, value), attn_mask=mask, is_causal=not masked, enable_gqa=not masked
    )
    out.backward(torch.ones_like(out))
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
