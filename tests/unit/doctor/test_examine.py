"""All findings of a machine together."""

from dataclasses import replace

from autotune.doctor.examine import judge
from autotune.doctor.finding import count
from autotune.doctor.torch_facts import ImportReply
from tests.unit.doctor.machines import CPU_TORCH, IMPORTS, MACHINE, NO_DRIVER, driver, gpu, states


def test_a_good_machine_has_no_findings_but_good_ones():
    found = list(judge(MACHINE))
    assert set(states(found)) == {"ok"}
    assert len(found) > 12


def test_a_machine_without_gpus_is_judged_by_the_rest():
    imports = replace(IMPORTS, torch=CPU_TORCH)
    plain = replace(MACHINE, driver=NO_DRIVER, visible=(), imports=imports)
    assert set(states(judge(plain))) == {"ok"}


def test_where_torch_cannot_be_imported_nothing_is_said_of_it_but_that():
    broken = replace(MACHINE, imports=ImportReply(problems={"torch": "OSError: no"}))
    found = list(judge(broken))
    assert count(found, "fail") == 1
    assert [f.name for f in found if f.state != "ok"] == ["imports"]
    assert not [f for f in found if f.name in ("torch and CUDA", "GPU 0", "NCCL")]


def test_a_slice_of_a_gpu_is_told_once():
    sliced = replace(
        MACHINE, visible=None, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}, absent=("flash-attn",)
    )
    assert [f.name for f in judge(sliced) if f.state != "ok"] == ["visible GPUs"]


def test_several_gpus_are_judged_one_by_one():
    torch = replace(IMPORTS.torch, trials={"0": "", "1": "RuntimeError: lost"})
    two = replace(
        MACHINE,
        driver=driver(gpu(0), gpu(1)),
        visible=(0, 1),
        imports=replace(IMPORTS, torch=torch),
    )
    assert [f.name for f in judge(two) if f.state == "fail"] == ["GPU 1"]
