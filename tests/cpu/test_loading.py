"""What ranks have in memory while a model is built: under FSDP the first loads it, for all."""

from dataclasses import replace
from typing import Any

import pytest
import transformers

from autotune.probe import measure as measuring
from autotune.probe.ending import Limits
from autotune.probe.measure import measure
from autotune.probe.protocol import read_json
from autotune.probe.runner import ProbeServer
from tests.cpu.conftest import LLAMA, Bench, open_bench

pytestmark = pytest.mark.slow

MODEL = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 6}
STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_CPU"},
    "FSDP2": {"distributed_type": "FSDP"},
}


@pytest.fixture(scope="module")
def bench(server: ProbeServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job of two processes whose model has weights."""
    lengths = "dataset={lengths: {max: 16, rows: 64}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=4", "max_length=16"]
    made = open_bench(tmp_path_factory.mktemp("loading"), server, MODEL, sets)
    config = transformers.AutoConfig.from_pretrained(made.facts.model.path)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(made.facts.model.path)
    return made


@pytest.mark.parametrize("weights", ["random", "real"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_models_of_random_weights_are_made_as_real_ones_are_loaded(
    bench: Bench, strategy: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how much a rank grows, over the bytes of the whole model."""
    monkeypatch.setattr(measuring, "WORKER", "tests.cpu.workers:notes_loading")
    facts = replace(bench.facts, model=replace(bench.facts.model, weights=weights))
    folder = replace(bench.run.probe(0), path=bench.run.path / "probes" / f"{weights} {strategy}")
    request = replace(bench, facts=facts).request(
        per_device_train_batch_size=2, **STRATEGIES[strategy]
    )
    ended = measure(bench.server, folder, request, Limits(wall_s=600, stall_s=120))
    assert "Loaded" in str(ended.failure), (ended.reason, ended.failure)
    whole = 4 * bench.facts.model.parameters
    first, second = (int(read_json(folder.path / f"loading-{n}.json") or 0) / whole for n in (0, 1))
    if strategy == "DDP":
        assert min(first, second) > 1.5  # the model, and the buckets of its gradients
    else:
        assert second < 1.2 < 1.4 < first
