"""Host memory of full fine-tuning on the CPU: `autotune plan` against `autotune probe`.

    python benchmarks/host_memory/run.py [--repeats 2]

The Qwen2.5-0.5B shape, float32, the plain loss, micro-batch 8, at several lengths. The plan is made
before the probe, and the row is written before the next one; `results.md` is made of all rows.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}
PINNED = {
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "attn_implementation": "sdpa",
    "optim": "adamw_torch",
    "padding_free": False,
    "train_sampling_strategy": "random",
}


def job(length: int) -> dict[str, object]:
    """The job of one length."""
    return {
        "model": "config.json",
        "dataset": {"lengths": {"max": length, "rows": 64}},
        "global_batch_size": 16,
        "max_length": length,
        "precision": "fp32",
        "devices": {"kind": "cpu"},
        "budget": {"probe_minutes": 30},
        "fixed": PINNED,
    }


def autotune(folder: Path, *arguments: str) -> dict[str, object]:
    """What a command of the command line says as JSON."""
    command = [sys.executable, "-m", "autotune", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def row(length: int) -> dict[str, object]:
    """Plan and probe one length."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        (folder / "job.yaml").write_text(json.dumps(job(length)), encoding="utf-8")
        plan = autotune(folder, "plan", "job.yaml")
        probe = autotune(folder, "probe", "job.yaml")
    estimate = plan["candidates"][0]["estimate"]  # type: ignore[index]
    measurement = probe["measurement"]
    return {
        "length": length,
        "expected_bytes": estimate["peak_memory_bytes"],
        "expected_tensors_bytes": estimate["peak_allocated_bytes"],
        "sigma_bytes": estimate["sigma_bytes"],
        "measured_bytes": measurement["peak_memory_bytes"],  # type: ignore[index]
        "outcome": measurement["outcome"],  # type: ignore[index]
        "plan_seconds": plan["seconds"],
        "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
        "machine": platform.processor() or platform.machine(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def table(rows: list[dict[str, float]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| tokens in a row | expected GiB | of it tensors | measured GiB | expected / measured |",
        "|---|---|---|---|---|",
    ]
    for one in rows:
        ratio = one["expected_bytes"] / one["measured_bytes"]
        sizes = [one[n] / 2**30 for n in ("expected_bytes", "expected_tensors_bytes")]
        lines.append(
            f"| {one['length']} | {sizes[0]:.2f} | {sizes[1]:.2f} "
            f"| {one['measured_bytes'] / 2**30:.2f} | {ratio:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 32, 128])
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    asked = parser.parse_args()
    file = asked.results
    for _ in range(asked.repeats):
        for length in asked.lengths:
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row(length)) + "\n")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    file.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
