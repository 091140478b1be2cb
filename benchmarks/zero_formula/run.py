"""The formula of ZeRO against real DeepSpeed ranks on the CPU.

    python benchmarks/zero_formula/run.py       # a few minutes

Each case: the record of one device, traced and divided (`estimate/zero.py`), and the same steps for
real through TRL's SFTTrainer in two or four processes; compared is the peak of the second optimizer
step of what the allocator gave out. Writes `results.jsonl` and `results.md`.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.estimate.protocol import MicroBatch, TraceRequest  # noqa: E402
from autotune.estimate.record import live_bytes  # noqa: E402
from autotune.estimate.trace import trace_steps  # noqa: E402
from autotune.estimate.zero import divided, zero_of  # noqa: E402
from autotune.probe.survey import make_tokenizer  # noqa: E402
from benchmarks.estimate_exactness.run import about_this_run  # noqa: E402

HERE = Path(__file__).parent
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def cases() -> Iterator[dict[str, Any]]:
    """Stages; all weights or adapters; ranks. In float32: transformers refuses `bf16` without a GPU
    unless told `use_cpu`, and then there is no DeepSpeed."""
    for stage, lora, ranks in itertools.product((1, 2, 3), (False, True), (2, 4)):
        yield {"stage": stage, "lora": lora, "ranks": ranks}


def request_of(case: dict[str, Any], model: Path) -> TraceRequest:
    """Two optimizer steps of two short rows."""
    config: dict[str, Any] = {
        "model_name_or_path": str(model),
        "report_to": "none",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "max_length": 128,
        "loss_type": "nll",
        "bf16": False,
        "dtype": "float32",
        "optim": "adamw_torch",
        "attn_implementation": "sdpa",
        "gradient_checkpointing": False,
    }
    if case["lora"]:
        config |= {"use_peft": True, "lora_r": 16, "lora_target_modules": ["all-linear"]}
    step = MicroBatch(lengths=(128, 96))
    return TraceRequest(
        method="sft",
        config=config,
        model_path=str(model),
        layers=None,
        cuda=None,
        steps=[step, step],
    )


def deepspeed_config(case: dict[str, Any]) -> dict[str, Any]:
    """A DeepSpeed JSON with every value resolved, as transformers would derive the buckets."""
    bucket = MODEL["hidden_size"] ** 2  # type: ignore[operator]
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": case["stage"],
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": bucket,
            "stage3_prefetch_bucket_size": int(0.9 * bucket),
            "stage3_param_persistence_threshold": 10 * MODEL["hidden_size"],  # type: ignore[operator]
        },
    }


def real(case: dict[str, Any], request: TraceRequest, folder: Path) -> dict[str, Any]:
    """What rank 0 of two took."""
    folder.mkdir()
    asked = {
        "request": {**request.plain(), "steps": []},
        "steps": request.plain()["steps"],
        "deepspeed": str(folder / "ds.json"),
        "reply": str(folder / "reply.json"),
    }
    (folder / "ds.json").write_text(json.dumps(deepspeed_config(case)), encoding="utf-8")
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    ranks = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={case['ranks']}"]
    done = subprocess.run(
        [*ranks, "--master_port=29577", str(HERE / "worker.py"), str(folder / "asked.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not (folder / "reply.json").is_file():
        raise RuntimeError(done.stderr[-8000:])
    found: dict[str, Any] = json.loads((folder / "reply.json").read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Every case; rows and table."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="zero-formula-") as scratch:
        model = Path(scratch, "model")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        make_tokenizer(model, 2000)
        for number, case in enumerate(cases()):
            request = request_of(case, model)
            found = real(case, request, Path(scratch, str(number)))
            assert found["stage"] == case["stage"], "the engine that ran is another one"
            events = [tuple(event) for event in trace_steps(request).events]
            zero = zero_of(request.config, case["stage"], case["ranks"], 512)
            use = live_bytes(divided(events, zero))
            one = live_bytes(events)
            row = {
                **case,
                "estimate_bytes": use.peak_bytes,
                "one_device_bytes": one.peak_bytes,
                "real_bytes": found["peak_bytes"],
                "error": use.peak_bytes / found["peak_bytes"] - 1,
                "parts": use.parts,
            }
            rows.append({**row, "about": about_this_run()})
            print(json.dumps(row), flush=True)
    lines = ["| stage | trained | ranks | one device MiB | estimate | real | error |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        trained, kind = "LoRA" if row["lora"] else "all", row["ranks"]
        sizes = (row["one_device_bytes"], row["estimate_bytes"], row["real_bytes"])
        figures = " | ".join(f"{size / 2**20:.0f}" for size in sizes)
        lines.append(f"| {row['stage']} | {trained} | {kind} | {figures} | {row['error']:+.1%} |")
    errors = sorted(abs(row["error"]) for row in rows)
    lines.append(f"\nMedian {statistics.median(errors):.1%}, most {errors[-1]:.1%}.")
    (HERE / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / "results.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
