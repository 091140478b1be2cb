"""What stands behind torch where only traces are made comes with its first use."""

import subprocess
import sys

import pytest

COMPILER = """
import sys, torch
import autotune.process.later_imports
import bitsandbytes.backends.default.ops
assert "torch._inductor.compile_fx" not in sys.modules, "bitsandbytes has imported the compiler"

@torch.compile(backend="eager")
def twice(x):
    "Doubles."
    return 2 * x

named = torch.compile(lambda x: x + 1, backend="eager")
assert twice.__doc__ == "Doubles."
x = torch.ones(2)
assert twice(x).tolist() == [2.0, 2.0] == twice(x).tolist()
assert named(x).tolist() == [2.0, 2.0]
"""
SOLVER = """
import sys, torch
import autotune.process.later_imports
import transformers.modeling_utils, trl
from transformers.loss import loss_for_object_detection as losses
assert not [name for name in sys.modules if name.startswith("scipy.")], "scipy was imported"
rows, columns = losses.linear_sum_assignment([[2.0, 1.0], [1.0, 3.0]])
assert (rows.tolist(), columns.tolist()) == ([0, 1], [1, 0])
import scipy.optimize
assert scipy.optimize.linear_sum_assignment.__module__.startswith("scipy.")
assert scipy.optimize.minimize
"""
LOOKUPS = """
import importlib.metadata, sys
import autotune.process.later_imports
import torch._library.utils
import transformers.utils.import_utils as importing
from autotune.process import import_lookups as ours

assert sys.version_info >= (3, 12) or (
    importlib.metadata.packages_distributions is ours.packages_distributions
)
assert torch._library.utils.get_source is ours.source_of_caller
assert importing.fetch__all__.func is ours.exported_names
"""


@pytest.mark.parametrize(
    "program", [COMPILER, SOLVER, LOOKUPS], ids=["compiler", "solver", "lookups"]
)
def test_it_is_imported_when_it_is_first_called(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
