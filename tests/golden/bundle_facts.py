"""Facts of the recorded bundles.

The fields of the stack are written down, so that another TRL does not change what is compared.
"""

from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts
from autotune.facts.model import ModelFacts
from autotune.facts.stack import StackFacts

MIB = 2**20


def make_facts(
    kind: str = "cpu", *, model: str = "/models/small", source: str = "/data/texts"
) -> Facts:
    """A model, its data and a machine; an empty `source` stands for lengths in place of data."""
    return Facts(
        model=ModelFacts(
            name=model,
            path=model,
            weights="real",
            architecture="Qwen2ForCausalLM",
            model_type="qwen2",
            parameters=3_000_000,
            hidden_size=192,
            layers=4,
            vocab_size=4096,
            max_positions=2048,
            attention_modules=("k_proj", "o_proj", "q_proj", "v_proj"),
        ),
        data=DataFacts(
            source=source,
            form="text" if source else "lengths",
            rows=4000,
            rows_measured=4000,
            test_rows=0,
            mean_length=250.0,
            quantiles={"p1": 30, "p50": 180, "p99": 900},
            longest=1000,
        ),
        device=DeviceFacts(
            kind=kind,
            index=3 if kind == "cuda" else 0,
            name="NVIDIA Test 80GB" if kind == "cuda" else "Test CPU",
            total_bytes=81920 * MIB,
            free_bytes=65536 * MIB,
            cores=6,
            capability=(9, 0) if kind == "cuda" else None,
        ),
        stack=StackFacts(
            python="3.11.0",
            versions={"trl": "1.12.0", "torch": "2.13.0", "bitsandbytes": None},
            absent=("bitsandbytes",),
            training_fields=("activation_checkpointing", "activation_checkpointing_kwargs"),
        ),
    )
