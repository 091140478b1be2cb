"""The installed packages, judged by their metadata and by what a child imported."""

from dataclasses import replace

import pytest

from autotune.doctor import stack_checks
from autotune.doctor.torch_facts import ImportReply
from autotune.facts.stack import OPTIONAL
from tests.unit.doctor.machines import IMPORTS, check_whole, gpu, states

TEXTS = ["trl>=1.0,!=1.14.*,<1.17", "transformers<6", 'pytest; extra == "test"', "click"]
NEEDED = stack_checks.read_requirements(TEXTS)
GOOD = {"trl": "1.12.0", "transformers": "5.23.0", "click": "8.5.1"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"trl": "1.14.2"}, "trl 1.14.2, but !=1.14.*,<1.17,>=1.0 is needed: 1.13 to 1.15 divide"),
        ({"transformers": "6.0.1"}, "transformers 6.0.1, but <6 is needed: 6 removes"),
        ({"click": None}, "click is not installed"),
    ],
)
def test_versions_that_are_left_out_are_told_with_what_is_wrong_with_them(changes, found):
    (finding,) = stack_checks.check_requirements(NEEDED, {**GOOD, **changes})
    assert check_whole(finding).state == "fail"
    assert finding.found.startswith(found)
    assert finding.remedy.startswith(f"pip install '{next(iter(changes))}")


def test_good_versions_are_one_finding_and_extras_do_not_count():
    (finding,) = stack_checks.check_requirements(NEEDED, GOOD)
    assert check_whole(finding).found == "all 3 packages are such as autotune is written for"
    assert states(stack_checks.check_requirements(None, {})) == ["unknown"]


def test_a_torch_that_cannot_be_imported_is_one_finding():
    problem = "ImportError: libcudart.so.13: cannot open shared object file"
    (finding,) = stack_checks.check_imports(ImportReply(problems={"torch": problem}))
    assert check_whole(finding).state == "fail"
    assert finding.found == f"`torch` cannot be imported: {problem}"


def test_a_broken_optional_package_may_be_removed():
    broken = replace(IMPORTS, problems={"torch": "", "flash_attn": "ImportError: undefined symbol"})
    (finding,) = stack_checks.check_imports(broken)
    assert check_whole(finding).state == "fail"
    assert finding.remedy.endswith("or: pip uninstall flash-attn")


def test_a_child_that_ended_early_is_told_with_where():
    ended = replace(IMPORTS, ending="computing on GPU 0: SIGSEGV ended it")
    (finding,) = stack_checks.check_imports(ended)
    assert check_whole(finding).state == "fail"
    assert "computing on GPU 0: SIGSEGV" in finding.found
    assert states(stack_checks.check_imports(IMPORTS)) == ["ok"]


def test_a_trl_without_a_trainer_is_told():
    (finding,) = stack_checks.check_methods({"ppo": "TRL 1.16 has no PPOTrainer"})
    assert check_whole(finding).state == "warn"
    assert not list(stack_checks.check_methods({}))


def test_packages_that_would_help_are_those_that_run_on_the_gpu():
    def named(absent, **fields):
        found = list(stack_checks.check_helpful(absent, gpu(**fields).device))
        assert set(states(found)) <= {"warn"}
        return [finding.found.partition(" ")[0] for finding in found]

    everything = list(OPTIONAL)
    assert named(everything) == ["flash-attn", "liger-kernel", "bitsandbytes"]
    assert named(everything, capability=(7, 5)) == ["liger-kernel", "bitsandbytes"]
    assert named(["flash-attn"]) == ["flash-attn"]
    assert not list(stack_checks.check_helpful(everything, None))


def test_settings_of_the_allocator_are_told():
    (finding,) = stack_checks.check_allocator({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    assert check_whole(finding).remedy == "unset PYTORCH_CUDA_ALLOC_CONF"
    assert not list(stack_checks.check_allocator({"PYTORCH_CUDA_ALLOC_CONF": ""}))


def test_each_missing_tool_of_the_compiler_has_its_remedy():
    tools = {"a C++ compiler": False, "ninja": False, "Python's headers": False}
    found = list(stack_checks.check_compiler(tools))
    assert states(found) == ["warn", "warn", "warn"]
    assert [finding.remedy.split()[-1] for finding in found] == ["g++", "ninja", "python3-dev"]
    assert states(stack_checks.check_compiler(dict.fromkeys(tools, True))) == ["ok"]


def test_a_lock_that_was_left_is_removed_by_a_command_that_a_shell_takes():
    (finding,) = stack_checks.check_locks(["/home/a b/cpu_adam/lock"])
    assert check_whole(finding).remedy == "rm '/home/a b/cpu_adam/lock'"
