"""The stack: versions, what is installed, and which names this version of it uses.

Everything here is read without importing the libraries: versions from their metadata, field names
from their source. That keeps `autotune validate` fast and right for the versions installed.
"""

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.job.methods import METHODS, SFT

DISTRIBUTION = "autotune-finetune"
"""What pip calls this package."""

LIBRARIES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "deepspeed",
    "datasets",
    "optuna",
    "nvidia-ml-py",
)

OPTIONAL = {
    "apollo-torch": "apollo_torch",
    "bitsandbytes": "bitsandbytes",
    "flash-attn": "flash_attn",
    "flash-attn-4": "flash_attn",
    "flash_attn_3": "flash_attn_interface",
    "galore-torch": "galore_torch",
    "grokadamw": "grokadamw",
    "kernels": "kernels",
    "liger-kernel": "liger_kernel",
    "lomo-optim": "lomo_optim",
    "schedulefree": "schedulefree",
    "torch-optimi": "optimi",
    "torchao": "torchao",
    "vllm": "vllm",
}
"""What some values of knobs need and autotune itself does not: what pip calls it, and the module
that it brings."""

# What a field was called, and what newer versions call it. The name in use is the one that the
# installed version's own source defines; see `field_name`.
RENAMED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}

_LEFT_OUT = ("1.13.", "1.14.", "1.15.")
FIT_TRL = "pip install 'trl>=1.16,<1.17' (or trl==1.12.0, the last that has PPO)"
_CONFIG_SOURCES = {
    "transformers": (("training_args.py", "TrainingArguments"),),
    "trl": (
        ("trainer/base_config.py", "_BaseConfig"),
        ("trainer/model_config.py", "ModelConfig"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class StackFacts:
    """Versions of the stack and what it can do here."""

    python: str
    versions: dict[str, str | None]
    absent: tuple[str, ...] = ()
    """Return the packages of `OPTIONAL` that are not installed, by pip's names."""
    assumed: bool = False
    """Whether what is absent is taken to be there: a plan is for another machine."""
    hub_attention: tuple[str, ...] = ()
    """Kernels of attention that transformers has `kernels` load where no package of theirs is."""
    kernels_range: str = ""
    """Which versions of `kernels` transformers takes, as pip writes it; empty: any."""
    model_kwargs: bool = True
    """Whether TRL's scripts pass `model_init_kwargs` on to the model (from 1.16 on)."""
    fused_head: bool = False
    """Whether TRL scores tokens without holding their logits, whatever the loss."""
    checkpoints_every_n: bool = False
    """Whether transformers can checkpoint every n-th layer, and offload what that keeps."""
    checkpoints_selectively: bool = False
    """Whether TRL's SFTTrainer has selective checkpointing."""
    training_fields: tuple[str, ...] = ()
    """Fields of the method's training arguments and of ModelConfig in these versions."""


def installed(method: str = SFT.name) -> StackFacts:
    """Return the stack as it is installed, with the fields of a method."""
    return StackFacts(
        python=platform.python_version(),
        versions={name: version(name) for name in LIBRARIES},
        absent=absent(),
        hub_attention=hub_attention(),
        kernels_range=kernels_range(),
        model_kwargs="model_init_kwargs.update(" in source_of("trl", "scripts/sft.py"),
        fused_head=fused_head(),
        checkpoints_every_n="every_n_layers" in source_of("transformers", "trainer.py"),
        checkpoints_selectively="enable_selective" in source_of("trl", "trainer/sft_trainer.py"),
        training_fields=tuple(sorted(training_fields(method))),
    )


def absent() -> tuple[str, ...]:
    """Return the packages of `OPTIONAL` that are not installed, by pip's names. Two bring the same
    module, and of one transformers refuses some versions."""
    return tuple(
        name
        for name, module in OPTIONAL.items()
        if not module_found(module)
        or (name.startswith("flash-attn") and version(name) is None)
        or (name == "kernels" and not _kernels_taken())
    )


def version(library: str) -> str | None:
    """Return the installed version; None where it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_found(module: str) -> bool:
    """True if a module is installed; it is not imported."""
    return importlib.util.find_spec(module) is not None


@functools.cache
def hub_attention() -> tuple[str, ...]:
    """Return the kernels of attention that the installed transformers loads from the hub where no
    package of theirs is installed."""
    source = source_of("transformers", "modeling_flash_attention_utils.py")
    table = re.search(r"^FLASH_ATTN_KERNEL_FALLBACK = \{(.*?)^\}", source, re.S | re.M)
    return tuple(re.findall(r'"(flash_attention_\d)":', table[1])) if table else ()


@functools.cache
def kernels_range() -> str:
    """Return which versions of `kernels` the installed transformers takes, as pip writes it;
    empty: any."""
    source = source_of("transformers", "utils/import_utils.py")
    found = dict(re.findall(r'^KERNELS_(MIN|MAX)_VERSION = "(.+)"', source, re.M))
    return f">={found['MIN']},<{found['MAX']}" if len(found) == 2 else ""


def _kernels_taken() -> bool:
    """True if transformers takes the installed version of `kernels`."""
    from packaging.specifiers import SpecifierSet

    found = version("kernels")
    return found is not None and SpecifierSet(kernels_range()).contains(found, prereleases=True)


@functools.cache
def fused_head() -> bool:
    """True if TRL's SFTTrainer gives its model a fused LM head (from 1.15 on)."""
    return "add_fused_lm_head(" in source_of("trl", "trainer/sft_trainer.py")


def source_of(package: str, file: str) -> str:
    """Return a file's text; empty where there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin).parent / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@functools.cache
def training_fields(method: str = SFT.name) -> frozenset[str]:
    """Return the fields of a method's training arguments and of ModelConfig in the installed
    versions."""
    shared_sources = [
        (package, *source) for package, sources in _CONFIG_SOURCES.items() for source in sources
    ]
    if METHODS[method].own_script:
        name = METHODS[method].config.replace("Config", "ScriptArguments")
        shared_sources.append(("autotune", f"training/{METHODS[method].own_script}", name))
    return frozenset(
        field for source in (_config_of(method), *shared_sources) for field in _fields_of(*source)
    )


def _config_of(method: str) -> tuple[str, str, str]:
    """Return where the class of a method's training arguments is: package, file, name."""
    entry = METHODS[method]
    if entry.own_script:
        return "autotune", f"facts/{method}_config.pyi", entry.config
    return "trl", entry.source, entry.config


def _fields_of(package: str, file: str, class_name: str) -> dict[str, str]:
    """Return the fields of a class, each with its type as its source has it."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in _annotated(package, file, class_name)
        if isinstance(statement.target, ast.Name) and not statement.target.id.startswith("_")
    }


def _annotated(package: str, file: str, class_name: str) -> list[ast.AnnAssign]:
    return [
        statement
        for node in ast.parse(source_of(package, file)).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    ]


@functools.cache
def field_types(method: str | None = None) -> Mapping[str, str]:
    """Return what a file of the trainer may hold: field -> its type, as the installed versions
    write it (`int | None`); without a method the fields that all share."""
    shared_sources = [
        (package, *file) for package, files in _CONFIG_SOURCES.items() for file in files
    ]
    sources = [*shared_sources, ("trl", "scripts/utils.py", "ScriptArguments")]
    if method is not None:
        entry = METHODS[method]
        sources.append(_config_of(method))
        sources.append(("trl", f"scripts/{method}.py", f"{method.upper()}ScriptArguments"))
        if entry.own_script:
            name = entry.config.replace("Config", "ScriptArguments")
            sources.append(("autotune", f"training/{entry.own_script}", name))
    types: dict[str, str] = {}
    for source in sources:  # a later class narrows what an earlier one says
        types |= _fields_of(*source)
    return types


@functools.cache
def field_defaults(method: str) -> Mapping[str, Any]:
    """Return what fields of a method's training arguments and of ModelConfig are where nobody sets
    them: those whose source says it in a plain value."""
    sources = [(package, *file) for package, files in _CONFIG_SOURCES.items() for file in files]
    sources.append(_config_of(method))
    defaults: dict[str, Any] = {}
    for source in sources:  # a later class narrows what an earlier one says
        for name, value in _values_of(*source).items():
            with contextlib.suppress(ValueError):
                defaults[name] = ast.literal_eval(value)
    return defaults


def _values_of(package: str, file: str, class_name: str) -> dict[str, ast.expr]:
    """Return the fields of a class, each with its default as its source has it."""
    values = {}
    for statement in _annotated(package, file, class_name):
        value = statement.value
        if isinstance(value, ast.Call):
            value = next((k.value for k in value.keywords if k.arg == "default"), None)
        if value is not None and isinstance(statement.target, ast.Name):
            values[statement.target.id] = value
    return values


def unfit() -> str | None:
    """Return why the installed TRL is not supported; None: it is."""
    installed_trl = version("trl") or ""
    if not installed_trl.startswith(_LEFT_OUT):
        return None
    return (
        f"TRL {installed_trl} is not supported: 1.13 to 1.15 compute their losses in parts of "
        "their own, which estimates do not know"
    )


def missing(method: str) -> str | None:
    """Return why the installed TRL cannot train by a method; None: it can."""
    if not module_found("trl"):
        return "TRL is not installed"
    # (The trainer of that name in TRL 1.12 is another one.)
    known = source_of("trl", METHODS[method].source)
    if (reason := unfit()) is not None or (known and (fused_head() or not METHODS[method].teacher)):
        return reason
    return f"TRL {version('trl')} has no {METHODS[method].trainer}{METHODS[method].removal}"


def refuse_missing(method: str) -> None:
    """Refuse a method whose trainer the installed TRL does not have.

    Raises:
        UserError: so it is.
    """
    if (reason := missing(method)) is not None:
        hint = FIT_TRL if unfit() else METHODS[method].install
        raise user_error(reason, where="" if unfit() else "method", hint=hint)


def field_name(name: str, fields: frozenset[str]) -> str:
    """Return what a version with these fields prefers to call the field `name`."""
    newer = RENAMED.get(name)
    return newer if newer is not None and newer in fields else name


def canonical_name(name: str) -> str:
    """Return the name of the knob that a field, old or new, belongs to."""
    older = {new: old for old, new in RENAMED.items()}
    return older.get(name, name)
