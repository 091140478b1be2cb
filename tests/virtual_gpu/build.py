"""Builds the stand-in libraries of a virtual GPU for one installation of torch.

    python tests/virtual_gpu/build.py SITE_PACKAGES TARGET
    python tests/virtual_gpu/build.py SITE_PACKAGES           only look whether they fit this torch

Torch's CUDA libraries say which symbols of which libraries they want. What stand_ins/*.c answers
lies in `libvirtual_gpu.so`; for each library that is wanted there is a file of its name, which
links that and answers 0 to everything else. A library of bitsandbytes is read, too.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from autotune.errors import AutotuneError, machine_error

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
SOURCES = Path(__file__).parent / "stand_ins"
CORE = "libvirtual_gpu.so"
FAMILIES = (
    (r"cublasLt", "libcublasLt.so.13"),
    (r"cublas", "libcublas.so.13"),
    (r"cudnn", "libcudnn.so.9"),
    (r"cusparseLt", "libcusparseLt.so.0"),
    (r"cusparse", "libcusparse.so.12"),
    (r"cufft", "libcufft.so.12"),
    (r"curand", "libcurand.so.10"),
    (r"cusolver", "libcusolver.so.12"),
    (r"nccl[A-Z]", "libnccl.so.2"),
    (r"nvrtc", "libnvrtc.so.13"),
    (r"nvshmem", "libnvshmem_host.so.3"),
    (r"cuFile", "libcufile.so.0"),
    (r"cupti", "libcupti.so.13"),
    (r"(__)?cuda", "libcudart.so.13"),
    (r"cu[A-Z]", "libcuda.so.1"),
    (r"nvml", "libnvidia-ml.so.1"),
)
"""How the symbols of a library begin, the first that fits; and its file, of CUDA 13."""
ALIASES = {"libnvidia-ml.so": "libnvidia-ml.so.1", "libcuda.so": "libcuda.so.1"}
EXTRA = ("bitsandbytes/libbitsandbytes_cuda130.so",)
AGAIN = "remove .venv-cuda; the next call of scripts/virtual_gpu makes it again"


def printed(*command: str | Path) -> str:
    """What a command prints.

    Raises:
        CalledProcessError: it failed.
    """
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wanted_symbols(libraries: Iterable[Path]) -> Iterator[tuple[str, str, str | None]]:
    """(symbol, the file that has it, the version that is asked for) of all libraries."""
    for library in libraries:
        for line in printed("nm", "-D", "--undefined-only", library).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            for pattern, file in FAMILIES:
                if re.match(pattern, symbol):
                    yield symbol, file, version.lstrip("@") or None
                    break


def needed_files(libraries: Iterable[Path]) -> set[str]:
    """Files that the libraries link, of those that stand-ins are known for.

    Raises:
        MachineError: they link a library of NVIDIA's that there is no stand-in for.
    """
    known = {file for _, file in FAMILIES}
    found = set(re.findall(r"\(NEEDED\).*\[(.*)\]", printed("readelf", "-d", *libraries)))
    strange = sorted(
        name for name in found if re.match(r"lib(cu|nccl|nv)", name) and name not in known
    )
    if strange:
        raise machine_error(
            f"this torch links {', '.join(strange)}, and there is no stand-in for that",
            hint=f"{AGAIN}; stand-ins are made for CUDA 13",
        )
    return found & known


def check(site_packages: Path) -> list[Path]:
    """Torch's libraries, if stand-ins fit them.

    Raises:
        MachineError: there is no compiler, or this is not the CUDA build that constraints.txt has.
    """
    missing = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
    if missing:
        raise machine_error(
            f"{' and '.join(missing)} must be there to build the stand-in libraries",
            hint="apt-get install gcc libc6-dev binutils (or your system's like)",
        )
    torch = site_packages / "torch"
    version = torch / "version.py"
    told = version.read_text(encoding="utf-8") if version.exists() else ""
    found = re.search(r"__version__ = '(.*)'", told)
    locked = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert locked is not None
    if found is None or found[1].partition("+")[0] != locked[1]:
        raise machine_error(
            f"{site_packages} has torch {found[1] if found else '(none)'}, and constraints.txt "
            f"has {locked[1]}",
            hint=AGAIN,
        )
    libraries = sorted((torch / "lib").glob("lib*.so*"))
    if not any(file.name == "libtorch_cuda.so" for file in libraries):
        raise machine_error(
            f"{site_packages} has torch {found[1]}, which is no CUDA build", hint=AGAIN
        )
    real = [folder for folder in (site_packages, *sys.path) if Path(folder, "nvidia").exists()]
    if real:
        raise machine_error(
            f"{real[0]} has nvidia-* packages: torch would load these libraries, not the stand-ins",
            hint=AGAIN,
        )
    needed_files(libraries)
    return libraries


def compile_library(target: Path, source: list[Path], *flags: str) -> None:
    """Compile C into a shared library.

    Raises:
        MachineError: the compiler cannot.
    """
    command = ["gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    made = subprocess.run(
        [*command, "-o", target, *source, *flags], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise machine_error(
            f"{target.name} cannot be compiled: {made.stderr.strip()}",
            hint="apt-get install gcc libc6-dev (or your system's like)",
        )


def answered_symbols(core: Path) -> set[str]:
    """The symbols that the core has an answer to."""
    lines = printed("nm", "-D", "--defined-only", core).splitlines()
    return {line.split()[-1] for line in lines}


def build_library(target: Path, symbols: Mapping[str, str | None], answered: set[str]) -> None:
    """One library by its name: its versions, and 0 for what the core does not answer."""
    source, script = target.with_suffix(".c"), target.with_suffix(".map")
    rest = sorted(set(symbols) - answered)
    source.write_text("".join(f"int {symbol}(void) {{ return 0; }}\n" for symbol in rest))
    flags = ["-Wl,--no-as-needed", f"-L{target.parent}", "-lvirtual_gpu", "-Wl,-rpath,$ORIGIN"]
    versions = sorted({version for version in symbols.values() if version})
    if versions:  # of one library there has been one
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
        flags.append(f"-Wl,--version-script,{script}")
    compile_library(target, [source], *flags)
    source.unlink()
    script.unlink(missing_ok=True)


def build(site_packages: Path, target: Path) -> None:
    """Make all stand-ins in `target`.

    Raises:
        MachineError: they do not fit this torch, or cannot be compiled.
    """
    torch = check(site_packages)
    extra = [Path(folder, name) for folder in sys.path for name in EXTRA]
    libraries = torch + [file for file in extra if file.exists()]
    target.mkdir(parents=True, exist_ok=True)
    core = target / CORE
    compile_library(core, sorted(SOURCES.glob("*.c")), "-lpthread", "-ldl")
    files: dict[str, dict[str, str | None]] = {file: {} for file in needed_files(torch)}
    files |= {file: files.get(file, {}) for _, file in FAMILIES}
    for symbol, file, version in wanted_symbols(libraries):
        files[file][symbol] = files[file].get(symbol) or version
    answered = answered_symbols(core)
    for file, symbols in sorted(files.items()):
        build_library(target / file, symbols, answered)
    for alias, file in ALIASES.items():
        (target / alias).unlink(missing_ok=True)
        (target / alias).symlink_to(file)


def main(site_packages: Path, target: Path | None = None) -> None:
    try:
        build(site_packages, target) if target else check(site_packages)
    except AutotuneError as error:
        print(f"virtual_gpu: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
