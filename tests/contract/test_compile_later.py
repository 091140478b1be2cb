"""What stands behind torch where only traces are made: the compiler comes with its first use."""

import subprocess
import sys

PROGRAM = """
import sys, torch
import autotune.process.compile_later
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


def test_the_compiler_is_imported_when_something_compiled_is_called():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
