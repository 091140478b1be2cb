"""Sets fields of `transformers.TrainingArguments` in a script that is not changed for it.

Python imports this file by itself where its folder is on PYTHONPATH. It does nothing unless the
variable AUTOTUNE_SCRIPT names a JSON file: {"fields": {"per_device_train_batch_size": 4}}. Then
every `TrainingArguments` that the script makes gets these fields, as if they had been passed to it.
It needs the standard library alone, and imports nothing of the training stack: it waits until the
script does. Where the file has a `mode`, autotune looks at the training or measures it; a launch
has none.
"""

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "AUTOTUNE_SCRIPT"
ARGUMENTS, TRAINER = "transformers.training_args", "transformers.trainer"
PARSERS = ("transformers.hf_argparser", "trl.scripts._hf_argparser")


class Hook:
    """The changes of one process.

    Args:
        request: what the variable's file holds.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self._open: list[Any] = []
        self._searching: set[str] = set()
        self._actions: dict[str, Callable[[Any], None]] = {ARGUMENTS: self._on_arguments}
        if request.get("mode"):
            self._actions[TRAINER] = lambda module: self._child.on_trainer(module.Trainer)
            for name in PARSERS:
                self._actions[name] = lambda module: self._child.on_parser(module.HfArgumentParser)

    def install(self) -> None:
        """Change what is imported, as soon as it is."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module as everybody else finds it, with an action after it was executed."""
        action = self._actions.get(name)
        if action is None or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = executed
        return spec

    @functools.cached_property
    def _child(self) -> Any:
        """The code that looks and measures: autotune's own, which a launch does without."""
        if importlib.util.find_spec("autotune") is None:
            sys.path.append(self.request["package"])
        return importlib.import_module("autotune.script.child.watch").Watch(self.request)

    def _on_arguments(self, module: Any) -> None:
        kind = module.TrainingArguments
        self._wrap(kind)
        hook = self

        def __init_subclass__(cls: Any, /, **options: Any) -> None:
            super(kind, cls).__init_subclass__(**options)
            hook._wrap(cls)

        kind.__init_subclass__ = classmethod(__init_subclass__)

    def _wrap(self, kind: Any) -> None:
        original = kind.__dict__.get("__post_init__")
        if original is None:
            return

        @functools.wraps(original)
        def __post_init__(arguments: Any, *rest: Any, **named: Any) -> None:
            if any(arguments is inner for inner in self._open):
                original(arguments, *rest, **named)
                return
            self._open.append(arguments)
            try:
                self._set(arguments)
                original(arguments, *rest, **named)
            finally:
                self._open.pop()
            if self.request.get("mode"):
                self._child.arguments_made(arguments)

        kind.__post_init__ = __post_init__

    def _set(self, arguments: Any) -> None:
        if self.request.get("mode"):
            self._child.before_arguments(arguments)
        for name, value in self.request["fields"].items():
            if hasattr(arguments, name):
                setattr(arguments, name, value)


def begin() -> None:
    """Install the hook that the variable asks for; then whatever else is called `sitecustomize`."""
    file = os.environ.get(VARIABLE)
    if file and not any(type(finder).__name__ == Hook.__name__ for finder in sys.meta_path):
        Hook(json.loads(Path(file).read_text(encoding="utf-8"))).install()
    here = str(Path(__file__).resolve().parent)
    kept = list(sys.path)
    sys.path[:] = [entry for entry in kept if not entry or str(Path(entry).resolve()) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
    finally:
        sys.path[:] = [*kept, *(entry for entry in sys.path if entry not in kept)]
        if this is not None:
            sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":
    begin()
