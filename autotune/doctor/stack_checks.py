"""The installed packages: versions, whether they can be imported, what would help. Plain."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import Requirement

from autotune.doctor.finding import Finding
from autotune.doctor.torch_facts import TRAINERS, ImportReply
from autotune.facts.devices import DeviceFacts
from autotune.facts.stack import DISTRIBUTION, OPTIONAL
from autotune.space.packages import PACKAGES, QUANTISER, Package

TRAPS = {
    "trl": "1.13 to 1.15 divide their losses in ways of their own",
    "transformers": "6 removes `gradient_checkpointing`",
}
"""What is known to be wrong with versions that are left out."""
HELPFUL = ("flash-attn", "liger-kernel", QUANTISER)
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
OF_OPTIONAL = {module: name for name, module in OPTIONAL.items()}


def read_requirements(texts: Sequence[str]) -> list[Requirement]:
    """Those of a package's metadata that hold here without any extra."""
    parsed = [Requirement(text) for text in texts]
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]


def check_requirements(
    requirements: Sequence[Requirement] | None, installed: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Hold what is installed against what autotune is written for.

    Args:
        requirements: of autotune; None: it is not installed itself.
        installed: their versions; None: not installed.
    """
    name = "versions"
    source = f"metadata of the installed packages against those that {DISTRIBUTION} names"
    if requirements is None:
        found = f"{DISTRIBUTION} is not installed here, so its requirements are not known"
        remedy = "pip install -e .  (in its checkout)"
        yield Finding(name=name, state="unknown", found=found, remedy=remedy, source=source)
        return
    wrong = 0
    for requirement in requirements:
        version = installed.get(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        wrong += 1
        trap = TRAPS.get(requirement.name)
        found = f"{requirement.name} {version or 'is not installed'}"
        if version is not None:
            found += f", but {requirement.specifier} is needed" + (f": {trap}" if trap else "")
        yield Finding(
            name=name,
            state="fail",
            found=found,
            remedy=f"pip install '{requirement.name}{requirement.specifier}'",
            source=source,
        )
    if not wrong:
        found = f"all {len(requirements)} packages are such as autotune is written for"
        yield Finding(name=name, state="ok", found=found, source=source)


def check_imports(reply: ImportReply) -> Iterator[Finding]:
    """Yield whether the stack can be imported; that of optional packages, which libraries then
    import."""
    name, source = "imports", "importing them in a child"
    broken = {module: problem for module, problem in reply.problems.items() if problem}
    for module, problem in broken.items():
        package = OF_OPTIONAL.get(module, module)
        what = "what probes use of TRL and transformers" if module == TRAINERS else f"`{module}`"
        remedy = f"pip install --force-reinstall {package}"
        if module in OF_OPTIONAL:
            remedy += f"; or: pip uninstall {package}"
        if module == TRAINERS:
            remedy = "pip install --force-reinstall trl transformers"
        found = f"{what} cannot be imported: {problem}"
        yield Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
    if reply.ending:
        found = f"the child that looked ended too early, {reply.ending}"
        remedy = "run the import by hand for all it says: python -c 'import torch, trl, deepspeed'"
        yield Finding(name=name, state="fail", found=found, remedy=remedy, source=source)
    elif not broken:
        modules = [module for module in reply.problems if module != TRAINERS]
        found = f"{', '.join(modules)} can be imported"
        yield Finding(name=name, state="ok", found=found, source=source)


def check_methods(missing: Mapping[str, str]) -> Iterator[Finding]:
    """Yield which methods the installed TRL trains.

    Args:
        missing: of each method that it does not train, why.
    """
    source = "the trainers' files in the installed TRL"
    for method, reason in missing.items():
        found = f"`method: {method}` cannot be trained: {reason}"
        remedy = "pip install trl==1.12.0"
        yield Finding(name="methods", state="warn", found=found, remedy=remedy, source=source)


def check_helpful(absent: Sequence[str], device: DeviceFacts | None) -> Iterator[Finding]:
    """Yield packages that would make trainings on this GPU faster or smaller.

    Args:
        absent: what is not installed, as pip calls it.
        device: the first visible GPU; None: there is none.
    """
    if device is None:
        return
    for name in HELPFUL:
        packages = [package for package in PACKAGES if package.name == name]
        if name not in absent or not all(package.runs(device) for package in packages):
            continue
        options = " --no-build-isolation" if name == "flash-attn" else ""
        yield Finding(
            name="packages",
            state="warn",
            found=f"{name} is not installed: {_needs(name, packages)} left out",
            remedy=f"pip install {name}{options}",
            source="the installed modules; what values of knobs need them",
        )


def _needs(name: str, packages: Sequence[Package]) -> str:
    if name == QUANTISER:
        return "`tuning: qlora` is refused, and 8-bit and paged optimizers are"
    values = {f"`{package.knob}: {str(v).lower()}`" for package in packages for v in package.values}
    return f"{', '.join(sorted(values))} is"


def check_allocator(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield settings of torch's allocator that probes inherit and plans do not know of."""
    for name in ALLOCATOR:
        if environment.get(name):
            yield Finding(
                name="allocator",
                state="warn",
                found=f"{name}={environment[name]}: plans do not count it; where the knob "
                "`expandable_segments` is on, probes set their own, and a launch keeps yours",
                remedy=f"unset {name}",
                source="the environment",
            )


def check_compiler(tools: Mapping[str, bool]) -> Iterator[Finding]:
    """Yield what DeepSpeed's kernels for offloading are compiled with.

    Args:
        tools: whether each is there: a C++ compiler, ninja, Python's headers.
    """
    remedies = {
        "a C++ compiler": "apt-get install g++",
        "ninja": "pip install ninja",
        "Python's headers": "apt-get install python3-dev",
    }
    source = "PATH, CXX and Python's include folder; DeepSpeed compiles at first use"
    missing = [name for name, is_there in tools.items() if not is_there]
    for name in missing:
        found = f"{name} is missing: DeepSpeed cannot compile what offloading needs"
        remedy = remedies[name]
        yield Finding(name="compiler", state="warn", found=found, remedy=remedy, source=source)
    if not missing:
        found = f"{', '.join(tools)} are there"
        yield Finding(name="compiler", state="ok", found=found, source=source)


def check_locks(locks: Sequence[str]) -> Iterator[Finding]:
    """Yield locks that a killed compiler of DeepSpeed's has left: later processes wait for them.

    Args:
        locks: files that no process here has open.
    """
    for lock in locks:
        yield Finding(
            name="compiler",
            state="warn",
            found=f"{lock} was left by a compiler that was killed: who needs its result waits",
            remedy=f"rm {shlex.quote(lock)}",
            source="torch's folder of extensions, /proc/*/fd; torch's FileBaton waits for ever",
        )
