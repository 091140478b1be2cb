"""Reward models, DPO and KTO: runs of tiny models on the CPU, from a job to a trained model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import load_from_disk
from tokenizers.processors import TemplateProcessing

from autotune.facts.data import survey_data
from autotune.probe.survey_worker import make_tokenizer
from autotune.process.child_server import ChildServer
from tests.cpu.conftest import LLAMA, Bench, Command, open_bench
from tests.cpu.stand_ins import give_tokenizer, stand_in
from tests.cpu.test_run import assert_launched, probes_of, write_job
from tests.guards import some_of

METHODS = ("reward", "dpo", "kto")
LONG = pytest.mark.nightly("launches")
PINS: dict[str, dict[str, bool]] = {
    "dpo": {"gradient_checkpointing": False},
    "kto": {"gradient_checkpointing": True},
}
"""One candidate, or few, are enough: the search is tested elsewhere."""
WIDE = {**LLAMA, "intermediate_size": 6000, "vocab_size": 5000}
"""Its activations outweigh what one process takes more than another."""
LENGTHS = "dataset={lengths: {max: 120, p50: 30, p99: 100, rows: 400}}"
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "again",
    "and",
    "again",
]


def rows(count: int = 200) -> list[dict[str, str]]:
    """Pairs of uneven text."""
    made = []
    for n in range(count):
        prompt = " ".join(WORDS[: 2 + n % 7])
        better, worse = (" ".join(WORDS[k % 5 :] * (1 + k % 3)) for k in (n, n + 1))
        made.append({"prompt": prompt, "chosen": " " + better, "rejected": " " + worse})
    return made


def arguments(method: str, folder: Path) -> list[str]:
    """Reward models are the example's, with adapters."""
    if method == "reward":
        dataset = f"dataset={folder / 'pairs.jsonl'}"
        sets = (
            dataset,
            "gradient_checkpointing=false",
            "per_device_train_batch_size=2",
            "budget=1",
        )
        return stand_in("reward-long-context", folder, *sets)
    pins = {"attn_implementation": "sdpa", "optim": "adamw_torch_fused", **PINS[method]}
    pins["per_device_train_batch_size"] = 4
    write_job(
        folder,
        method=method,
        dataset="pairs.jsonl",
        max_length=64,
        budget={"probes": 1, "minutes": 5},
        fixed=pins,
    )
    (folder / "model" / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    give_tokenizer(folder / "model")
    return ["job.yaml"]


@pytest.mark.parametrize("method", some_of(METHODS, {"dpo"}, "launches"))
def test_a_preference_job_becomes_a_verified_bundle_that_trains(
    method: str, autotune: Command
) -> None:
    """Real text with its own tokenizer; KTO takes the pairs apart."""
    text = "\n".join(json.dumps(row) for row in rows()) + "\n"
    (autotune.folder / "pairs.jsonl").write_text(text, encoding="utf-8")
    job = arguments(method, autotune.folder)
    result = json.loads(autotune("run", *job, "--out", "run", "--json", expect=None))
    assert result["outcome"] == "recommended"
    assert_launched(result["verification"])
    probes = probes_of(autotune, "run")
    assert {one["outcome"] for one in probes} <= {"ok", "stopped"} and probes


@pytest.fixture(scope="module", params=METHODS)
def pairs(
    request: pytest.FixtureRequest, server: ChildServer, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    sets = [LENGTHS, f"method={request.param}"]
    return open_bench(tmp_path_factory.mktemp(request.param), server, WIDE, sets)


@pytest.mark.parametrize(
    "pairs",
    [pytest.param(method, marks=LONG) for method in ("reward", "dpo", "kto")],
    indirect=True,
)
def test_more_memory_than_there_is_is_a_real_oom(pairs: Bench) -> None:
    """Half of what the larger micro-batch adds is 60 MiB and more; processes differ by less."""
    few, many = (
        pairs.probe(f"{size} roomy", per_device_train_batch_size=size, gradient_checkpointing=False)
        for size in (2, 8)
    )
    assert few.peak_memory_bytes is not None and many.peak_memory_bytes is not None
    limit = (few.peak_memory_bytes + many.peak_memory_bytes) // 2
    assert many.peak_memory_bytes - limit > 60 * 2**20
    knobs = {"per_device_train_batch_size": 8, "gradient_checkpointing": False}
    tight = pairs.probe("tight", limit=limit, **knobs)
    assert tight.outcome == "oom", tight.reason


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_what_is_computed_before_the_training_is_in_the_speed(
    method: str, server: ChildServer, tmp_path: Path
) -> None:
    pairs = open_bench(tmp_path, server, LLAMA, [LENGTHS, f"method={method}"])
    before = pairs.probe("before", precompute_ref_log_probs=True)
    assert before.outcome == "ok", before.reason
    assert before.before_training_s_per_token is not None and before.before_training_s_per_token > 0
    assert before.tokens_per_step is not None and before.step_time_s is not None
    assert before.tokens_per_s is not None
    epochs = 3
    beforehand = before.tokens_per_step * before.before_training_s_per_token / epochs
    expected = before.tokens_per_step / (before.step_time_s + beforehand)
    assert before.tokens_per_s == pytest.approx(expected)
    beside = pairs.probe("beside", precompute_ref_log_probs=False)
    assert beside.before_training_s_per_token is None


def test_lengths_in_place_of_pairs_are_the_lengths_of_the_rows(
    pairs: Bench, tmp_path: Path
) -> None:
    data = pairs.facts.data
    assert data.form == "lengths"
    assert abs(data.longest - 120) <= 2
    assert abs(data.quantiles["p50"] - 30) <= 4


@pytest.mark.parametrize("begins", [False, True], ids=["bare", "with a first token"])
@pytest.mark.parametrize("method", METHODS)
def test_a_plan_takes_the_rows_that_the_trainer_would_make_of_a_text(
    method: str, begins: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    tokenizer = make_tokenizer(tmp_path, 300)
    if begins:
        first = ("<3>", tokenizer.convert_tokens_to_ids("<3>"))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<3> $A", special_tokens=[first]
        )
    lengths = {"max": 90, "p50": 20, "p99": 70, "rows": 60}

    def rows_of(planned: bool) -> Any:
        request = SimpleNamespace(
            method=method, lengths=lengths, seed=3, training={}, planned=planned
        )
        folder = tmp_path / str(planned)
        survey_data(request, tokenizer, folder)
        return load_from_disk(folder / "rows")

    planned, trained = rows_of(True), rows_of(False)
    assert planned.column_names == trained.column_names
    for name in ("lengths", "first_label", *({"label"} & {*trained.column_names})):
        assert planned[name][:] == trained[name][:], name
    assert max(map(max, planned["lengths"][:])) == 90
