"""The rules of the house (docs/architecture.md), held by reading the source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"
FILES = sorted(PACKAGE.rglob("*.py"))

# Rooms from the ground up: a file may import from its own line and from the lines above it.
LAYERS = (
    ("errors", "units", "local_paths"),
    ("yaml_file", "job", "methods"),
    ("facts",),
    ("space",),
    ("probe", "training"),
    ("estimate",),
    ("run_folder", "plan_cache"),
    ("path_tasks",),
    ("counting",),
    ("duration", "instead", "exchanging", "serving", "hosting"),
    ("candidate_estimates",),
    ("recommend", "what_if", "search", "surveying", "expectations"),
    ("placing", "bases", "traced_paths"),
    ("answering", "device_ceilings"),
    ("planning", "comparison"),
    ("expecter", "history"),
    ("largest", "fewest", "advising", "replacing"),
    ("promise", "emit"),
    ("verify", "checking"),
    ("session", "probing"),
    ("searching",),
    ("conclusion", "too_little"),
    ("tuning", "reopening"),
    ("report",),
    ("cli",),
)
# Files that a forkserver's child runs; only they may import the training stack at the top.
CHILD_ONLY = {
    *(f"training/{name}.py" for name in ("family", "sft", "reward", "preference", "online", "ppo")),
    "training/beforehand.py",
    "training/quantized.py",
    "training/train_ppo.py",
    "training/vllm_stand_in.py",
    "probe/clock.py",
    "probe/meters.py",
    "probe/rollout_meter.py",
    "probe/preload.py",
    "estimate/trace.py",
    "estimate/watch.py",
    "estimate/sharded_watch.py",
    "estimate/fake_accelerator.py",
    "estimate/fake_engines.py",
    "estimate/fake_world.py",
    "estimate/rollout_trace.py",
    "estimate/rollout_phases.py",
    "estimate/ppo_phases.py",
    "estimate/tracer.py",
    "estimate/unknown_values.py",
    "estimate/carried.py",
    "estimate/cuda_dispatch.py",
    "estimate/cuda_rules.py",
    "estimate/fused_head.py",
    "estimate/flash_attention.py",
    "estimate/liger.py",
    "estimate/eight_bit.py",
    "estimate/quantized.py",
    "estimate/quantized_layers.py",
    "estimate/cpu_rules.py",
    "estimate/cpu_scratch.py",
    "estimate/profiled.py",
    "estimate/stand_ins.py",
    "estimate/regions.py",
    "estimate/work.py",
    "estimate/truth.py",
    "estimate/bench_ceilings.py",
    "estimate/bench_clock.py",
    "estimate/bench_operators.py",
    "training/distributed.py",
    "training/first_rank.py",
}
CHILD_FUNCTIONS = {
    "facts/model.py",
    "facts/quantizing.py",
    "facts/data.py",
    "facts/tokenizing.py",
    "probe/extensions.py",
    "probe/worker.py",
    "probe/survey.py",
    "probe/memory.py",
    "probe/out_of_memory.py",
    "training/batches.py",
    "training/rehearsal.py",
}
HEAVY = {
    *("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets"),
    *("tokenizers", "pyarrow", "huggingface_hub"),
}
OWNERS = {
    "click": {"cli"},
    "optuna": {"search"},
    "numpy": {"search", *CHILD_ONLY, *CHILD_FUNCTIONS},
    "sqlalchemy": {"search"},
    "pynvml": {"facts/devices.py"},
    "rich": {"cli", "report"},
    "subprocess": {"probe/runner.py", "probe/launch.py", "probe/guard.py"},
    "multiprocessing": set(),
    "pickle": set(),
}
PURE = (
    "recommend.py",
    "duration.py",
    "promise.py",
    *(f"search/{name}.py" for name in ("expected", "surrogate", "beliefs", "dominance", "gain")),
    *(f"search/{name}.py" for name in ("settling", "stopping")),
    "probe/repeats.py",
    "what_if.py",
    "instead.py",
    "serving.py",
    "emit",
    "space",
    "probe/throughput.py",
    "probe/record.py",
    *(f"estimate/{name}.py" for name in ("allocator", "allocator_pools", "allocator_expandable")),
    *(f"estimate/{name}.py" for name in ("record", "merging", "resizing", "templates", "shapes")),
    *(f"estimate/{name}.py" for name in ("memory", "estimates", "closed_form", "paths")),
    "estimate/host_bytes.py",
    "estimate/offloaded.py",
    "estimate/skeleton.py",
    "bases.py",
    "hosting.py",
    *(f"estimate/{name}.py" for name in ("speed", "shape_times", "path_speed", "calibration")),
    "estimate/ceilings.py",
    "estimate/tabled_ceilings.py",
    "estimate/linear.py",
    "expectations.py",
    "comparison.py",
)
IMPURE = {"time", "random", "subprocess", "socket", "requests", "os", "shutil", "tempfile"}
READS_FILES = {"space/load.py", "space/definition.py"}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def imports(file: Path) -> list[tuple[str, bool]]:
    """(module, at the top of the file?) of every import."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(file)} imports relatively"
            found.append((str(node.module), id(node) in top))
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "autotune" and len(parts) > 1 else None


def within(file: Path, places: set[str]) -> bool:
    return any(name_of(file) == place or name_of(file).startswith(place + "/") for place in places)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_point_one_way(file: Path) -> None:
    level = {name: index for index, names in enumerate(LAYERS) for name in names}
    own = name_of(file).split("/")[0].removesuffix(".py")
    if own in {"__init__", "__main__"}:
        return
    for module, _ in imports(file):
        other = room(module)
        if other is None:
            continue
        assert other in level, f"{other} has no layer"
        assert level[other] <= level[own], f"{name_of(file)} imports {module} from above"


def test_the_rooms_import_each_other_in_no_circle() -> None:
    modules = {
        "autotune." + name_of(file).removesuffix(".py").replace("/", "."): file for file in FILES
    }
    graph = {
        module: {name for name, top in imports(file) if top and name in modules}
        for module, file in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in graph[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_the_training_stack_is_imported_by_children_only(file: Path) -> None:
    for module, top in imports(file):
        if module.split(".")[0] in HEAVY:
            allowed = name_of(file) in CHILD_ONLY or (not top and name_of(file) in CHILD_FUNCTIONS)
            assert allowed, f"{name_of(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_outside_library_has_one_owner(file: Path) -> None:
    for module, _ in imports(file):
        owners = OWNERS.get(module.split(".")[0])
        assert owners is None or within(file, owners), f"{name_of(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_pure_rooms_touch_no_clock_file_or_chance(file: Path) -> None:
    if not within(file, set(PURE)) or name_of(file) in READS_FILES:
        return
    assert not {module.split(".")[0] for module, _ in imports(file)} & IMPURE
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"\bopen\(|read_text|write_text|os\.environ", text)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_and_functions_are_small(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 300, f"{name_of(file)} wants dividing"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= 60, f"{node.name} in {name_of(file)} has {lines} lines"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_public_names_are_documented(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{name_of(file)} has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} in {name_of(file)} has no docstring"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_file_has_a_name_that_says_nothing(file: Path) -> None:
    assert file.stem not in {"utils", "helpers", "common", "base", "misc"}


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from autotune.cli import main\n"
        "try:\n"
        f"    main({arguments!r}, prog_name='autotune')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ast.literal_eval(done.stderr.strip().splitlines()[-1]))
    assert not loaded & (HEAVY | {"optuna", "pydantic", "rich", "yaml"})
    assert "autotune" in done.stdout or "Usage" in done.stdout


def test_importing_the_package_loads_nothing_but_itself() -> None:
    code = "import sys, autotune; print(sorted(n for n in sys.modules if n.startswith('autotune')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ast.literal_eval(done.stdout) == ["autotune"]
