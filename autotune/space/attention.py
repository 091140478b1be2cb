"""Kernels of attention: which FlashAttention a name stands for, and what it needs. Pure.

transformers loads FlashAttention from its hub with the package `kernels`, compiled, where the
package of its own is not installed (`modeling_flash_attention_utils.py`), and what a job names
there (`kernels-community/...`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.job.methods import METHODS
from autotune.space.knobs import Rule

ATTENTION = "attn_implementation"
KERNELS = "kernels"
"""The package that loads kernels from the hub."""
HUB = "kernels-community/"
"""Begins the names of kernels that transformers trusts without being told to."""


@dataclass(frozen=True, kw_only=True)
class Flash:
    """One FlashAttention.

    Attributes:
        package: what pip calls its own.
        hub: what transformers loads where that is not there.
        makers: of GPUs that it runs on.
        least: the lowest compute capability of NVIDIA's.
        most: the highest.
        most_with_sinks: the highest on which it computes sinks of attention.
        where: the same in words.
    """

    number: int
    package: str
    hub: str
    makers: tuple[str, ...] = ("NVIDIA",)
    least: tuple[int, int]
    most: tuple[int, int] = (99, 0)
    most_with_sinks: tuple[int, int] = (99, 0)
    where: str

    @property
    def value(self) -> str:
        """Its name in `attn_implementation`."""
        return f"flash_attention_{self.number}"

    def runs(self, facts: Facts) -> bool:
        """True if it exists for the device that trains."""
        device = facts.device
        made = device.kind == "cpu" or device.maker in self.makers
        return made and (device.capability is None or self.least <= device.capability <= self.most)


FLASH = (
    # For AMD: its README, "AMD ROCm Support"; transformers takes a kernel of AMD's from the hub.
    Flash(
        number=2,
        package="flash-attn",
        hub=f"{HUB}flash-attn2",
        makers=("NVIDIA", "AMD"),
        least=(8, 0),
        where="NVIDIA from Ampere on, AMD",
    ),
    # hopper/flash_api.cpp refuses what is older than Ampere; its kernels are of sm_80 and sm_90a,
    # and the second run on Hopper alone.
    Flash(
        number=3,
        package="flash_attn_3",
        hub=f"{HUB}vllm-flash-attn3",
        least=(8, 0),
        most=(9, 0),
        where="NVIDIA from Ampere to Hopper",
    ),
    # transformers asks for Hopper; flash_attn/cute/interface.py takes 8.x to 12.x, and of sinks
    # 9.0 to 11.0 (flash-attention's PR 2752).
    Flash(
        number=4,
        package="flash-attn-4",
        hub=f"{HUB}flash-attn4",
        least=(9, 0),
        most_with_sinks=(11, 0),
        where="NVIDIA from Hopper on",
    ),
)
_OF_VALUE = {flash.value: flash for flash in FLASH}


def flash_of(kernel: object) -> Flash | None:
    """Return the FlashAttention of a value of `attn_implementation`, for one of the hub the one
    that its name tells, or else the second; None: it is another kind of attention."""
    name = str(kernel)
    if not name.startswith(HUB):
        return _OF_VALUE.get(name)
    repository = name.partition("@")[0].partition(":")[0]
    return next((flash for flash in FLASH if repository.endswith(str(flash.number))), FLASH[0])


def is_flash(kernel: object) -> bool:
    """True if a value of `attn_implementation` is a FlashAttention, or a kernel of the hub."""
    return flash_of(kernel) is not None


def flash_facts(facts: Facts) -> dict[str, bool]:
    """Return what rules may ask: whether each FlashAttention is there, or taken to be, and runs."""
    return {f"stack.{flash.value}": _refusal(flash, flash.value, facts) is None for flash in FLASH}


def attention_rules(job: Job, facts: Facts) -> Iterator[Rule]:
    """Yield which kernels of attention are no candidates, and why."""
    values = [job.fixed.get(ATTENTION), *job.recipe.get(ATTENTION, ())]
    hub_names: list[KnobValue] = [name for name in values if str(name).startswith(HUB)]
    every = [*_OF_VALUE, *hub_names]
    yield Rule(
        forbid={ATTENTION: every, "device.kind": "cpu"}, reason="FlashAttention runs on GPUs only"
    )
    yield Rule(
        forbid={ATTENTION: every, "model.flash_attention": False},
        reason="this architecture has no FlashAttention",
    )
    if METHODS[job.method].value_model:
        wide = {"dtype": "float32"}
        why = ", and PPOTrainer generates and scores without autocast"
    else:
        wide, why = {"job.precision": "fp32", "dtype": "float32"}, ""
    yield Rule(
        forbid={ATTENTION: every, **wide},
        reason=f"FlashAttention computes in bf16 or fp16 only{why}",
    )
    if facts.model.flash_kernels and job.tuning == "full":
        yield Rule(
            forbid={ATTENTION: every},
            reason="FlashAttention gives this architecture's sinks no gradient, and full tuning "
            "trains them",
        )
    for kernel in every:
        flash = flash_of(kernel)
        reason = None if flash is None else _refusal(flash, str(kernel), facts)
        if reason is not None:
            yield Rule(forbid={ATTENTION: kernel}, reason=reason)


def to_install(kernel: object, facts: Facts) -> str | None:
    """Return the package that a kernel of attention needs and that is not here: of the two that
    FlashAttention may come from the one that needs no compiler."""
    flash = flash_of(kernel)
    if flash is None or _is_here(sources := _sources(flash, str(kernel), facts), facts):
        return None
    return _requirement(sources[0], facts) if sources else None


def is_downloaded(kernel: object, facts: Facts) -> bool:
    """True if the first training loads this kernel of attention from the hub."""
    flash = flash_of(kernel)
    sources = () if flash is None else _sources(flash, str(kernel), facts)
    return KERNELS in sources and not _is_here(sources[1:], facts)


def _refusal(flash: Flash, kernel: str, facts: Facts) -> str | None:
    """Return why it does not compute the attention of this model there; None: it does."""
    title = kernel if kernel.startswith(HUB) else f"FlashAttention {flash.number}"
    takes = facts.model.flash_kernels
    if takes and {*takes}.isdisjoint(_names(flash, kernel)):
        return f"{title} does not compute this architecture's attention ({', '.join(takes)} do)"
    if takes and (facts.device.capability or flash.least) > flash.most_with_sinks:
        return f"{title} computes no sinks of attention on this GPU"
    if not flash.runs(facts):
        return f"{title} does not run on this GPU ({flash.where})"
    sources = _sources(flash, kernel, facts)
    if not sources:
        return (
            f"{title} comes with the package {KERNELS}, with which transformers keeps a checkpoint "
            f"in {facts.model.dequantized_from} as it is, and refuses to train it"
        )
    if facts.stack.assumed or _is_here(sources, facts):
        return None
    return f"{title} (package {' or '.join(sources)}) is not installed"


def _names(flash: Flash, kernel: str) -> tuple[str, ...]:
    """Return what an architecture may list a kernel as that it runs."""
    return (kernel.partition("@")[0],) if kernel.startswith(HUB) else (flash.value, flash.hub)


def _sources(flash: Flash, kernel: str, facts: Facts) -> tuple[str, ...]:
    """Return the packages that it may come from, the one without a compiler first."""
    takes, named = facts.model.flash_kernels, kernel.startswith(HUB)
    served = named or flash.value in facts.stack.hub_attention
    by_hub_alone = named or (bool(takes) and flash.value not in takes)
    return (
        *([KERNELS] if served and facts.model.dequantized_from is None else []),
        *([] if by_hub_alone else [flash.package]),
    )


def _is_here(sources: tuple[str, ...], facts: Facts) -> bool:
    return any(name not in facts.stack.absent for name in sources)


def _requirement(package: str, facts: Facts) -> str:
    return f"{package}{facts.stack.kernels_range}" if package == KERNELS else package
