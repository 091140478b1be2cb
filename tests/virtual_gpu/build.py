"""Builds the stand-in libraries of a virtual GPU for one installation of torch.

    python tests/virtual_gpu/build.py SITE_PACKAGES TARGET

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
    """Files that the libraries link, of those that stand-ins are known for."""
    known = {file for _, file in FAMILIES}
    found: set[str] = set()
    for library in libraries:
        told = subprocess.run(
            ["readelf", "-d", library], capture_output=True, text=True, check=True
        )
        found |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", told.stdout))
    strange = sorted(
        name for name in found if re.match(r"lib(cu|nccl|nv)", name) and name not in known
    )
    if strange:
        raise SystemExit(
            f"virtual_gpu: this torch links {', '.join(strange)}, and there is no stand-in for that"
            "\n\nhint: use the torch of constraints.txt; its stand-ins are made for CUDA 13"
        )
    return found & known


def compile_library(target: Path, source: list[Path], *flags: str) -> None:
    """Compile C into a shared library."""
    command = ["gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{target.name}"]
    made = subprocess.run(
        [*command, "-o", target, *source, *flags], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise SystemExit(f"virtual_gpu: {target.name} cannot be compiled\n\n{made.stderr.strip()}")


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
    """Make all stand-ins in `target`."""
    if shutil.which("gcc") is None or shutil.which("nm") is None:
        raise SystemExit(
            "virtual_gpu: gcc and nm are needed to build the stand-in libraries\n\n"
            "hint: apt-get install gcc binutils (or your system's like)"
        )
    torch = sorted((site_packages / "torch" / "lib").glob("lib*.so*"))
    if not any(file.name == "libtorch_cuda.so" for file in torch):
        raise SystemExit(
            f"virtual_gpu: {site_packages} has no CUDA build of torch\n\n"
            "hint: remove .venv-cuda and run scripts/virtual_gpu again"
        )
    libraries = torch + [site_packages / name for name in EXTRA if (site_packages / name).exists()]
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


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
