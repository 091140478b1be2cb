"""Data that call their columns otherwise than TRL does: planned, verified and trained on."""

import json
import subprocess

import pytest

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, assert_launched, save_chat_model, write_job

ONE = {**FEW, "gradient_checkpointing": False, "per_device_train_batch_size": 4}
COLUMNS = {"prompt": "instruction", "completion": "output"}


@pytest.mark.nightly("launches")
def test_a_run_renames_columns_and_its_bundle_trains_on_the_renamed_copy(autotune: Command) -> None:
    folder = autotune.folder
    rows = [{"instruction": f"add {n} and {n}", "output": f"it is {2 * n}"} for n in range(60)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    write_job(folder, model="model", dataset="rows.jsonl", columns=COLUMNS, fixed=ONE)
    save_chat_model(folder / "model")
    result = json.loads(
        autotune("run", "job.yaml", "--out", "run", "--budget", "1", "--json", expect=None)
    )
    assert_launched(result["verification"])
    out = folder / "out"
    words = ["--max_steps", "2", "--output_dir", str(out), "--save_strategy", "no"]
    launch = ["bash", str(folder / "run" / "bundle" / "launch.sh"), *words]
    subprocess.run(launch, check=True, capture_output=True, timeout=300)
    assert (out / "model.safetensors").is_file()


def test_a_plan_reads_the_same_rows_and_copies_nothing(autotune: Command) -> None:
    folder = autotune.folder
    rows = [{"instruction": "add one and two", "output": "three"}] * 8
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    write_job(folder, model="model", dataset="rows.jsonl", fixed=FEW)
    save_chat_model(folder / "model")
    err = autotune.refused("plan", "job.yaml", "--device", "h200")
    assert "the data has instruction, output (`columns: {prompt: instruction}` renames)" in err
    columns = f"columns={json.dumps(COLUMNS)}"
    plan = json.loads(autotune("plan", "job.yaml", "--device", "h200", "--set", columns, "--json"))
    assert plan["counts"]["fit"] == plan["counts"]["candidates"]
