"""What the installed accelerate and DeepSpeed let their files hold, read from their source.

Their own classes say it: names, types and bounds. Nothing is imported (DeepSpeed alone takes
seconds), and a newer version is read as it is. Where a package is missing nothing is known.
"""

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.facts.stack import source_of

ACCELERATE = (
    ("commands/config/config_args.py", "BaseConfig"),
    ("commands/config/config_args.py", "ClusterConfig"),
)
DEEPSPEED = {
    "zero_optimization": ("runtime/zero/config.py", "DeepSpeedZeroConfig"),
    "zero_optimization.offload_param": (
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadParamConfig",
    ),
    "zero_optimization.offload_optimizer": (
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadOptimizerConfig",
    ),
    "fp16": ("runtime/precision_config.py", "DeepSpeedFP16Config"),
    "bf16": ("runtime/precision_config.py", "DeepSpeedBF16Config"),
}
"""The class that stands for a section of DeepSpeed's file."""
RENAMED_BY_ACCELERATE = ("fp16", "dynamo_backend")
"""Older names, which accelerate still reads (`BaseConfig.process_config`)."""


@dataclass(frozen=True)
class DeclaredField:
    """A field as its class declares it: its type as text, and the least and most it may be."""

    type: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchFields:
    """Fields that accelerate's and DeepSpeed's files may have; empty where nothing is known.

    Attributes:
        accelerate: the fields of accelerate's file, by name.
        distributed_types: the values of its `distributed_type`.
        deepspeed: the fields of each section of DeepSpeed's file that a class stands for.
    """

    accelerate: Mapping[str, DeclaredField] = field(default_factory=dict)
    distributed_types: tuple[str, ...] = ()
    deepspeed: Mapping[str, Mapping[str, DeclaredField]] = field(default_factory=dict)


@functools.cache
def launch_fields() -> LaunchFields:
    """Return what the installed versions declare."""
    accelerate = {n: f for source in ACCELERATE for n, f in _declared("accelerate", *source)}
    older = {name: DeclaredField("Any") for name in RENAMED_BY_ACCELERATE if accelerate}
    sections = {name: dict(_declared("deepspeed", *source)) for name, source in DEEPSPEED.items()}
    return LaunchFields(
        accelerate=accelerate | older,
        distributed_types=_values("accelerate", "utils/dataclasses.py", "DistributedType"),
        deepspeed={name: fields for name, fields in sections.items() if fields},
    )


def _values(package: str, file: str, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration."""
    return tuple(
        str(statement.value.value)
        for statement in _body(package, file, name)
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    )


def _declared(package: str, file: str, name: str) -> Iterator[tuple[str, DeclaredField]]:
    for statement in _body(package, file, name):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        value = statement.value
        keywords = value.keywords if isinstance(value, ast.Call) else []
        given: dict[str | None, Any] = {
            k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)
        }
        text = ast.unparse(statement.annotation)
        if isinstance(value, ast.Constant) and value.value is None and "Optional" not in text:
            text = f"Optional[{text}]"
        least = given.get("ge")
        if "gt" in given:
            least = given["gt"] + 1 if text == "int" else given["gt"]
        declared = DeclaredField(text, least, given.get("le"))
        yield statement.target.id, declared
        if isinstance(given.get("alias"), str):
            yield given["alias"], declared


def _body(package: str, file: str, name: str) -> list[ast.stmt]:
    tree = ast.parse(source_of(package, file))
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return next((node.body for node in classes if node.name == name), [])
