"""The same for bitsandbytes' optimizers, where that package is installed (it runs on a CPU too).

pip install bitsandbytes && python benchmarks/estimate_exactness/eight_bit.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import Results, parser_of  # noqa: E402
from benchmarks.estimate_exactness.cases import BITSANDBYTES, Case  # noqa: E402
from benchmarks.estimate_exactness.run import run  # noqa: E402

MODELS = ("qwen2", "qwen2-untied", "gemma", "llama-deep")
CASES = [
    Case(model=model, method=method, optimizer=optim, shape="1x17")
    for model in MODELS
    for method in ("full", "lora-all-16")
    for optim in BITSANDBYTES
]
"""Every optimizer with every model, all weights and adapters."""


if __name__ == "__main__":
    asked = parser_of(__doc__, Path(__file__).with_suffix(".jsonl")).parse_args()
    run(CASES, Results(asked.results, asked.only), packages=["bitsandbytes"])
