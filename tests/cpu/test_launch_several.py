"""Bundles of two processes, launched for real on CPUs: what was asked for is what runs."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from autotune.bundle.bundle import bundle_files
from autotune.probe.protocol import Measurement
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.trl_config import settings
from tests.guards import some_of
from tests.unit.builders import make_candidate, make_facts, make_job
from tests.unit.bundle.check.pairs import PAIRS, write_pair

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("deepspeed_compiled")]

SLURM = Path(__file__).parents[1] / "slurm"
"""Stand-ins for Slurm's commands, which start the nodes on this machine."""
HIDDEN, VOCABULARY = 64, 509
RATES = [1e-3, 7.5e-4, 5e-4, 2.5e-4]
BASE = {"distributed_type": "DEEPSPEED", "zero_stage": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_type": "MULTI_CPU"},
    "slurm": {"distributed_type": "MULTI_CPU"},
    "zero1": BASE | {"zero_stage": 1},
    "zero2": BASE,
    "zero2_offload": BASE | {"offload_optimizer_device": "cpu"},
    "zero3": BASE | {"zero_stage": 3, "offload_param_device": "cpu"},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_reshard_after_forward": True},
}
GROUPS = {"generation_batch_size": 8, "num_generations": 4, "max_completion_length": 8}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpo": (BASE | {"precompute_ref_log_probs": False}, {}),
    "grpo": (BASE | {"zero_stage": 3, "beta": 0.04, **GROUPS}, {"reward_funcs": ["mine.length"]}),
}
"""Of other methods: knobs, and what the job says besides."""
COLUMNS = {"sft": ["text"], "dpo": ["prompt", "chosen", "rejected"], "grpo": ["prompt"]}
NODES: dict[str, dict[str, str]] = {
    "slurm": {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1"},
    "zero2": {"RANK_VARIABLE": "PET_NODE_RANK", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"}
    | {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29500"},
}
"""Launched on two machines: what Slurm and Kubeflow Trainer say there."""
SFTS_OWN = ("loss_type", "padding_free", "max_length")
SHADOWED = ("torch", "yaml", "json", "accelerate", "trl")
"""Modules that the folder of a launch has files of, too."""
REWARD = "def length(completions, **_):\n    return [float(len(set(c))) for c in completions]\n"


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """A small model with weights, and a few rows."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    folder = tmp_path_factory.mktemp("material")
    words = {word: n for n, word in enumerate(["<unk>", "<pad>", "</s>"])}
    words |= {f"w{n}": n for n in range(3, VOCABULARY)}
    splitter = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    splitter.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=splitter, **tokens).save_pretrained(folder / "model")
    set_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
        )
    ).save_pretrained(folder / "model")
    rows = [" ".join(f"w{(7 * n * k) % 500 + 3}" for k in range(5 + n % 20)) for n in range(64)]
    for method, columns in COLUMNS.items():
        (folder / method).mkdir()
        lines = "".join(json.dumps(dict.fromkeys(columns, row)) + "\n" for row in rows)
        (folder / method / "train.jsonl").write_text(lines, encoding="utf-8")
    return folder


def write_bundle(folder: Path, material: Path, name: str) -> None:
    """The bundle of two processes; FSDP's is one for GPUs, as accelerate wants it."""
    kind = "cuda" if name == "fsdp2" else "cpu"
    knobs, asked = OTHERS.get(name) or (STRATEGIES[name], {})
    method = name if name in OTHERS else "sft"
    training = {"learning_rate": 1e-3, "weight_decay": 0.1, "logging_steps": 1}
    job = make_job(precision="fp32", training=training, method=method, **asked)
    devices = job.devices.model_copy(update={"count": 2})
    facts = make_facts(kind, installed=True)
    model = replace(facts.model, path=str(material / "model"), hidden_size=HIDDEN)
    candidate = make_candidate(2, 2, optim="adamw_torch_fused", **knobs)
    if method != "sft":
        own = {n: v for n, v in candidate.values.items() if n not in SFTS_OWN}
        candidate = replace(candidate, values=own)
    chosen = Ranked(
        number=1,
        candidate=candidate,
        measurement=Measurement(
            outcome="ok", reason="measured", tokens_per_s=1.0, step_time_s=1.0, peak_memory_bytes=1
        ),
    )
    files = bundle_files(
        Recommendation(chosen=chosen, reasons=(), ties=(), runners_up=()),
        settings(
            job.model_copy(update={"devices": devices}),
            replace(
                facts,
                model=model,
                device=replace(facts.device, cores=2, peers=(7,) if kind == "cuda" else ()),
                data=replace(facts.data, source=str(material / method)),
            ),
            candidate,
            str(folder.parent / "trained"),
        ),
        python=sys.executable,
        origin="Made by a test.",
        verification=None,
    )
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Launched:
    """What two processes wrote down, and what they saved."""

    ranks: list[dict[str, Any]]
    shapes: dict[str, list[int]]


def launched(material: Path, folder: Path, strategy: str) -> Launched:
    """Move the bundle, launch it from elsewhere, and read what ran."""
    write_bundle(folder / "made", material, strategy)
    moved = (folder / "made").rename(folder / "it's moved")
    seen = folder / "seen"
    seen.mkdir()
    (folder / "mine.py").write_text(REWARD, encoding="utf-8")
    for name in SHADOWED:
        code = f"open({str(folder / 'RAN')!r}, 'w')\nraise SystemExit('shadowed')\n"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    spy = Path(__file__).parent / "rank_spy"
    script = ["bash", str(moved / "launch.sh")]
    if strategy in NODES:
        script = ["srun", "bash", str(moved / "launch_nodes.sh")]
    if strategy == "slurm":
        script = ["bash", str(moved / "launch.slurm")]
    environment = {
        **os.environ,
        "PYTHONPATH": str(spy),  # alone: an empty entry beside it would be the folder
        "RANK_SPY": str(seen),
        **({"CPUS_AS_GPUS": "1"} if strategy == "fsdp2" else {}),
        **NODES.get(strategy, {}),
        "PATH": f"{SLURM}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(moved),
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        environment["MAIN_PORT"] = str(free.getsockname()[1])
    with socket.create_server(("127.0.0.1", 0)) as somebody:  # whose port it is told to take
        done = subprocess.run(
            [*script, "--max_steps", "4"],
            cwd=folder,
            env={**environment, "MASTER_PORT": str(somebody.getsockname()[1])},
            capture_output=True,
            text=True,
            timeout=1200,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (folder / "RAN").exists()
    ranks = [json.loads((seen / str(rank)).read_text()) for rank in (0, 1)]
    with safe_open(folder / "trained" / "model.safetensors", "pt") as saved:
        shapes = {name: saved.get_slice(name).get_shape() for name in saved.keys()}  # noqa: SIM118
    return Launched(ranks, shapes)


@pytest.fixture(scope="module")
def runs(material, tmp_path_factory):
    """Every strategy, launched once and when it is asked for."""
    done: dict[str, Launched] = {}

    def run(strategy: str) -> Launched:
        if strategy not in done:
            done[strategy] = launched(material, tmp_path_factory.mktemp("a 0 ü"), strategy)
        return done[strategy]

    return run


OFTEN = ("ddp", "slurm", "zero3")
"""Probes, traces and the virtual GPU have the others as well; a launch takes half a minute."""
LAUNCHED = some_of(STRATEGIES, OFTEN, "launches")


@pytest.mark.parametrize("strategy", LAUNCHED)
def test_the_strategy_asked_for_is_the_one_that_runs(strategy, runs):
    asked = STRATEGIES[strategy]
    for rank in runs(strategy).ranks:
        assert rank["distributed_type"] == asked["distributed_type"]
        assert (rank["processes"], rank["device"], rank["backend"]) == (2, "cpu", "gloo")
        stage = asked.get("zero_stage")
        assert set(rank["stages"]) == ({stage} if stage else set())
        assert rank["wrapped"] == (asked["distributed_type"] == "MULTI_CPU")
        assert ("FSDPModule" in rank["model"]) == (strategy == "fsdp2")


@pytest.mark.parametrize("strategy", LAUNCHED)
def test_an_offloaded_optimizer_is_deepspeeds_own(strategy, runs):
    for rank in runs(strategy).ranks:
        offloaded = "offload_optimizer_device" in STRATEGIES[strategy]
        assert rank["optimizers"][-1] == ("DeepSpeedCPUAdam" if offloaded else "AdamW")


@pytest.mark.parametrize("strategy", LAUNCHED)
def test_all_strategies_compute_the_same(strategy, runs):
    found, plain = runs(strategy).ranks[0], runs("ddp").ranks[0]
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert len(set(found["losses"])) == 4
    # The trainer's schedule and its two groups, norms without decay, stay in charge.
    assert found["rates"] == pytest.approx(RATES)
    assert found["groups"] == plain["groups"]
    assert [group["weight_decay"] for group in found["groups"]] == [0.1, 0.0]


@pytest.mark.parametrize("strategy", LAUNCHED)
def test_whole_weights_are_saved(strategy, runs):
    shapes = runs(strategy).shapes
    assert shapes["model.embed_tokens.weight"] == [VOCABULARY, HIDDEN]
    assert shapes == runs("ddp").shapes


def test_a_taken_port_ends_a_launch_over_machines_with_its_name(material, tmp_path):
    """On one machine accelerate takes another port; machines have to agree on one."""
    write_bundle(tmp_path / "bundle", material, "zero2")
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = str(somebody.getsockname()[1])
        place = {"NODES": "2", "MACHINE_RANK": "0", "MAIN_ADDRESS": "127.0.0.1", "MAIN_PORT": port}
        done = subprocess.run(
            ["bash", str(tmp_path / "bundle" / "launch_nodes.sh"), "--max_steps", "4"],
            env={**os.environ, **place},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert f"port `{port}`, but another process is utilizing it" in done.stderr
    assert not (tmp_path / "trained").exists()


@pytest.mark.nightly("launches")
@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_run_under_deepspeed_too(method, runs):
    for rank in runs(method).ranks:
        assert (rank["distributed_type"], rank["processes"]) == ("DEEPSPEED", 2)
        # DPO's reference is an engine of its own.
        assert set(rank["stages"]) <= {OTHERS[method][0]["zero_stage"], 0}
        assert OTHERS[method][0]["zero_stage"] in rank["stages"]
        assert len(rank["losses"]) == 4
        assert not rank["wrapped"]
    assert runs(method).shapes["model.embed_tokens.weight"] == [VOCABULARY, HIDDEN]


@pytest.mark.nightly("launches")
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_launch_says_what_a_check_says(name, wrong, material, tmp_path):
    """`tests/unit/bundle/check/test_pairs.py` has the checks."""
    folder, fsdp = tmp_path / "pair", PAIRS[name].engine == "fsdp"
    own = {"sft.model_name_or_path": str(material / "model")}
    own |= {"sft.dataset_name": str(material / "sft")}
    own |= {} if fsdp else {"sft.ddp_backend": "gloo"}
    write_pair(folder, name, wrong=wrong, also=own)
    (folder / "seen").mkdir()
    spy = {"PYTHONPATH": str(Path(__file__).parent / "rank_spy"), "RANK_SPY": str(folder / "seen")}
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    script = ["accelerate.yaml", "-m", "trl.scripts.sft", "--config", "sft.yaml"]
    done = subprocess.run(
        [*launch, *script],
        cwd=folder,
        env={**os.environ, **spy, **({"CPUS_AS_GPUS": "1"} if fsdp else {})},
        capture_output=True,
        text=True,
        timeout=600,
    )
    ranks = sorted(path.name for path in (folder / "seen").iterdir())
    if wrong:
        assert PAIRS[name].launch in done.stderr, done.stderr[-3000:]
        assert (done.returncode != 0, ranks) == (True, [])
    else:
        assert (done.returncode, ranks) == (0, ["0", "1"]), done.stderr[-3000:]
