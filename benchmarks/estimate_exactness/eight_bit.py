"""The same for bitsandbytes' optimizers, where that package is installed (it runs on a CPU too).

pip install bitsandbytes && python benchmarks/estimate_exactness/eight_bit.py
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from autotune.probe.runner import ProbeServer  # noqa: E402
from benchmarks.estimate_exactness.cases import BITSANDBYTES, Case  # noqa: E402
from benchmarks.estimate_exactness.models import write_model  # noqa: E402
from benchmarks.estimate_exactness.run import (  # noqa: E402
    IMPORTED,
    about_this_run,
    compare,
    line_of,
    server_environment,
)

MODELS = ("qwen2", "qwen2-untied", "gemma", "llama-deep")


def main() -> None:
    """Every optimizer with every model, all weights and adapters; rows to `eight_bit.jsonl`."""
    about = {**about_this_run(), "bitsandbytes": version("bitsandbytes")}
    cases = [
        Case(model=model, method=method, optimizer=optim, shape="1x17")
        for model in MODELS
        for method in ("full", "lora-all-16")
        for optim in BITSANDBYTES
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="eight-bit-") as scratch:
        models = Path(scratch, "models")
        for name in MODELS:
            write_model(name, models / name)
        with ProbeServer(Path(scratch, "log"), IMPORTED, server_environment()) as server:
            for index, case in enumerate(cases):
                row = compare(case, server, models, Path(scratch, str(index)))
                rows.append({**row, "about": about})
                print(line_of(row), flush=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path(__file__).with_suffix(".jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
