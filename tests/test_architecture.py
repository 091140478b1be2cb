"""The rules of the house (docs/architecture.md), held by reading the source.

A rule looks at all files, and names those that break it.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"
FILES = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}

# A folder imports from those to its left, and from none beside it.
ORDER = (
    "errors units plain_data < client < job < facts < space process < training"
    " < probe estimate < engine < plan search < bundle < run < report"
    " < api trackers server doctor script < cli"
)
CHILD = ("training", "estimate/tracing", "estimate/variants", "estimate/speed/measuring")
CHILD += ("script/child",)
"""What a child runs, besides the files that are named below and the `*worker.py` everywhere: only
there the training stack is imported at the top of a file."""
CHILD_FILES = ("probe/step_meter.py", "probe/rollout_meter.py", "process/clock.py")
CHILD_FILES += ("process/preload.py", "bundle/check/launch_worker.py")
CHILD_FUNCTIONS = ("facts", "probe", "process", "api/trainer_arguments.py")
"""Here a function that a child calls may import it; of the last, one that makes what a user trains
with in their own process."""
STACK = {
    *("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets"),
    *("tokenizers", "pyarrow", "huggingface_hub"),
}
OWNERS = {
    "click": ("cli",),
    "optuna": ("search",),
    "numpy": ("search", "estimate/speed"),
    "sqlalchemy": ("search/storage.py", "server/store", "server/access/tokens.py"),
    "alembic": ("server/store",),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn", "prometheus_client"), ("server",)),
    "ray": ("engine",),
    "jinja2": ("report/html.py",),
    "pandas": ("api",),
    "requests": ("client.py", "server/worker/door.py"),
    "pynvml": ("facts/devices.py",),
    "rich": ("cli",),
    **{name: (f"trackers/{name}.py",) for name in ("wandb", "mlflow", "trackio", "tensorboard")},
    "subprocess": ("process",),
    "multiprocessing": (),
    "pickle": ("estimate/tracing/cache.py",),
}
PURE = (
    *("job", "space", "bundle", "search/rules"),
    *("estimate/allocator", "estimate/formula", "estimate/records", "estimate/speed"),
)
"""What follows from its arguments alone: no clock, no chance, no file, no process."""
READS = (
    *("job/text_file.py", "space/definition.py", "space/foreign/tool.py"),
    *("bundle/check/read.py", "bundle/check/asking.py", "bundle/check/launch_worker.py"),
)
MEASURES = ("estimate/speed/measuring",)
IMPURE = {"time", "random", "subprocess", "socket", "requests", "os", "shutil", "tempfile"}


def imports(name: str) -> Iterator[tuple[str, bool]]:
    """Each module that a file imports, and whether it does so at its top."""
    tree = TREES[name]
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module), id(node) in top
            yield from ((f"{node.module}.{alias.name}", id(node) in top) for alias in node.names)


def within(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)


def file_of(module: str) -> str | None:
    """The file of a module of the package."""
    path = module.removeprefix("autotune").removeprefix(".").replace(".", "/")
    names = (f"{path}.py", f"{path}/__init__.py".removeprefix("/"))
    return next((n for n in names if n in FILES and module.startswith("autotune")), None)


def test_folders_import_one_way() -> None:
    level = {name: n for n, names in enumerate(ORDER.split(" < ")) for name in names.split()}
    wrong = []
    for name in FILES:
        folder = name.split("/")[0].removesuffix(".py")
        if folder in {"__init__", "__main__"}:
            continue
        for module, _ in imports(name):
            other = (file_of(module) or "__init__.py").split("/")[0].removesuffix(".py")
            if other not in {folder, "__init__"} and level[other] >= level[folder]:
                wrong.append(f"{name} imports {module}")
    assert not wrong


def test_files_import_each_other_in_no_circle() -> None:
    """Imports of functions and of types alone count, too; the package's face hands names on."""
    graph = {
        name: {
            other
            for module, _ in imports(name)
            if (other := file_of(module)) not in {None, name, "__init__.py"}
        }
        for name in FILES
    }
    done: set[str | None] = set()

    def visit(name: str | None, path: tuple[str | None, ...]) -> None:
        assert name not in path, " -> ".join(map(str, (*path, name)))
        if name not in done:
            for other in graph[str(name)]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_training_stack_is_imported_by_children_only() -> None:
    wrong = []
    for name in FILES:
        child = within(name, CHILD + CHILD_FILES) or name.endswith("worker.py")
        for module, top in imports(name):
            allowed = child or (not top and within(name, CHILD_FUNCTIONS))
            if module.split(".")[0] in STACK and not allowed:
                wrong.append(f"{name} imports {module}")
    assert not wrong


def test_no_file_of_the_parent_brings_the_training_stack_with_it() -> None:
    heavy = {n for n in FILES if any(top and m.split(".")[0] in STACK for m, top in imports(n))}
    before = 0
    while len(heavy) > before:
        before = len(heavy)
        heavy |= {n for n in FILES if any(top and file_of(m) in heavy for m, top in imports(n))}
    assert not {name for name in heavy if not within(name, CHILD + CHILD_FILES)}


def test_every_outside_library_has_one_owner() -> None:
    wrong = [
        f"{name} imports {module}"
        for name in FILES
        for module, _ in imports(name)
        if not within(name, OWNERS.get(module.split(".")[0], (name,)))
    ]
    assert not wrong


def test_the_service_is_a_door_that_nothing_leans_on() -> None:
    doors = ("server", "cli/serve.py", "cli/worker.py")
    wrong = [
        f"{name} imports {module}"
        for name in FILES
        for module, _ in imports(name)
        if module.startswith("autotune.server") and not within(name, doors)
    ]
    assert not wrong


def test_pure_folders_touch_no_clock_file_or_chance() -> None:
    wrong = []
    for name, file in FILES.items():
        if within(name, PURE) and not within(name, READS + MEASURES):
            wrong += [f"{name}: {m}" for m, _ in imports(name) if m.split(".")[0] in IMPURE]
            text = file.read_text(encoding="utf-8")
            if re.search(r"\bopen\(|read_text|write_text", text):
                wrong.append(f"{name} reads or writes a file")
    assert not wrong


def test_nothing_is_measured_by_a_clock_that_may_be_set() -> None:
    readers = [
        name
        for name, tree in TREES.items()
        if not name.startswith(("server/", "trackers/"))  # dates of events
        and name != "cli/views/events.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.fullmatch(r"time\.time(_ns)?|.*datetime\.(now|utcnow)", ast.unparse(node))
    ]
    assert not readers


def test_files_and_functions_are_small() -> None:
    wrong = []
    for name, tree in TREES.items():
        lines = FILES[name].read_text(encoding="utf-8").count("\n")
        wrong += [f"{name} has {lines} lines"] if lines > 500 else []
        made = within(name, ("server/store/migrations/versions",))  # by Alembic, from the tables
        for node in () if made else ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                wrong += [f"{node.name} in {name} has {lines} lines"] if lines > 60 else []
    assert not wrong


def test_public_names_are_documented_and_files_have_names_that_say_something() -> None:
    wrong = [name for name, tree in TREES.items() if not ast.get_docstring(tree)]
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                wrong += [] if ast.get_docstring(node) else [f"{node.name} in {name}"]
    assert not wrong
    nothing = {"utils", "helpers", "common", "base", "misc"}
    assert not [name for name in FILES if Path(name).stem in nothing]


QUESTIONS = {"What", "Whether", "How", "Where", "Of", "Those", "That", "Which", "Who", "Whose"}
QUESTIONS |= {"When", "Why", "It", "So", "By"}
"""First words of a docstring that leave it without a main clause."""
NO_VERBS = {"The", "A", "An", "Its", "Each", "Every", "All", "One", "Two", "None", "This", "These"}
NO_VERBS |= {"Everything", "Nothing", "Something", "Another", "Several", "Within", "As", "In", "On"}
NO_VERBS |= QUESTIONS | {"At", "From", "For", "With", "Bytes", "Tokens", "Seconds", "Rows"}


def test_docstrings_begin_with_a_verb_a_noun_or_true_if() -> None:
    """A function's with a verb, a predicate's with "True if", all others with a noun."""
    wrong = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            is_function = isinstance(node, ast.FunctionDef)
            if not is_function and not isinstance(node, ast.ClassDef):
                continue
            text = ast.get_docstring(node) or "Return"
            word = text.split()[0].rstrip(",:;.")
            marks = [ast.unparse(one) for one in getattr(node, "decorator_list", ())]
            returned = ast.unparse(getattr(node, "returns", None) or ast.Constant(None))
            if not is_function or returned == "bool" or any("property" in one for one in marks):
                is_bent = word in QUESTIONS
            else:
                is_bent = word in NO_VERBS or not word[0].isalpha() or word.endswith("'s")
            wrong += [f"{node.name} in {name}: {text.splitlines()[0]}"] if is_bent else []
    assert not [one for one in wrong if "in training/train_ppo.py" not in one]  # a user's file


LOADED = "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, autotune\n"
        "alone = sorted(name for name in sys.modules if name.startswith('autotune'))\n"
        "assert alone == ['autotune', 'autotune.plan', 'autotune.probe'], alone\n"
        "from autotune.cli import main\n"
        f"try:\n    main({arguments!r}, prog_name='autotune')\n"
        f"except SystemExit:\n    {LOADED}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ast.literal_eval(done.stderr.strip().splitlines()[-1]))
    assert not loaded & (STACK | {"optuna", "pandas", "pydantic", "rich", "yaml"})
    assert "Usage" in done.stdout
