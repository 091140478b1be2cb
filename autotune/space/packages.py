"""Packages that knobs need where a job trains: which are there, and what is no candidate without
them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.facts import Facts
from autotune.facts.devices import DeviceFacts
from autotune.facts.stack import StackFacts
from autotune.job.job import Job, KnobValue
from autotune.space.attention import ATTENTION, FLASH, KERNELS, flash_facts, to_install
from autotune.space.knobs import Candidate, Rule

QUANTISER = "bitsandbytes"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package, and the values of a knob that need it.

    Attributes:
        name: what pip calls it.
        fact: what rules of a search space call its being there; None: they need not ask.
        makers: of GPUs that it runs on; None: of all.
        least_capability: the lowest compute capability of NVIDIA's that it runs on; None: any.
        traced: whether a trace can do without it.
        probed: whether a probe needs it.
    """

    name: str
    knob: str
    values: tuple[KnobValue, ...]
    fact: str | None = None
    makers: tuple[str, ...] | None = None
    least_capability: tuple[int, int] | None = None
    traced: bool = True
    probed: bool = True

    def runs(self, device: DeviceFacts) -> bool:
        """True if it exists for a device."""
        if device.kind == "cuda" and self.makers is not None and device.maker not in self.makers:
            return False
        capability, least = device.capability, self.least_capability
        return least is None or capability is None or capability >= least

    def here(self, stack: StackFacts) -> bool:
        """True if it is installed on this machine."""
        return self.name not in stack.absent


def _optimizers(name: str, *values: str, traced: bool = False) -> Package:
    return Package(name=name, knob="optim", values=values, traced=traced)


PACKAGES = (
    # Only what may come from the hub in its place: `space/attention.py` has the whole of it.
    Package(
        name=KERNELS,
        knob=ATTENTION,
        values=tuple(flash.value for flash in FLASH),
        makers=FLASH[0].makers,
        least_capability=FLASH[0].least,
        probed=False,
    ),
    # Liger for all three makers: its setup.py, `get_default_dependencies`.
    Package(name="liger-kernel", knob="use_liger_kernel", values=(True,), fact="liger"),
    Package(name="vllm", knob="use_vllm", values=(True,), probed=False),
    # bitsandbytes for all three makers: the table "Accelerator support" of its 0.50.
    _optimizers(
        QUANTISER,
        *("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_32bit", "paged_adamw_8bit"),
        *("lion_8bit", "lion_32bit", "paged_lion_32bit", "paged_lion_8bit"),
        *("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
        traced=True,
    ),
    _optimizers(
        QUANTISER,
        *("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
    ),
    _optimizers("torchao", "adamw_torch_4bit", "adamw_torch_8bit"),
    _optimizers(
        "galore-torch",
        *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
        *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
    ),
    _optimizers("apollo-torch", "apollo_adamw", "apollo_adamw_layerwise"),
    _optimizers("lomo-optim", "lomo", "adalomo"),
    _optimizers("grokadamw", "grokadamw"),
    _optimizers("schedulefree", *(f"schedule_free_{kind}" for kind in ("adamw", "radam", "sgd"))),
    _optimizers("torch-optimi", "stable_adamw"),
)
"""What the stack runs without, by the values that ask for it: of optimizers those for which
transformers' `trainer_optimizer.py` imports a package."""


_NOT_ESTIMATED = "no trace can do without the package {}, which is not installed here"


def package_facts(facts: Facts) -> Mapping[str, bool]:
    """Return what rules may ask of packages: whether each is there, or taken to be, and runs."""
    return flash_facts(facts) | {
        f"stack.{package.fact}": package.runs(facts.device)
        and (facts.stack.assumed or package.here(facts.stack))
        for package in PACKAGES
        if package.fact is not None
    }


def package_rules(facts: Facts) -> Iterator[Rule]:
    """Yield what is no candidate for a package that no rule of the search space asks for."""
    if packed := facts.model.dequantized_from:
        yield from _packed_rules(packed.upper(), facts)
    for package in PACKAGES:
        forbid = {package.knob: list(package.values)}
        if package.fact is not None or not package.probed or package.here(facts.stack):
            continue
        if not facts.stack.assumed:
            yield Rule(forbid=forbid, reason=f"the package {package.name} is not installed")
        elif not package.traced:
            yield Rule(forbid=forbid, reason=_NOT_ESTIMATED.format(package.name))


def _packed_rules(packed: str, facts: Facts) -> Iterator[Rule]:
    """Yield what transformers does not do with a checkpoint that is packed (its quantizers/auto.py
    and quantizer_mxfp4.py)."""
    yield Rule(
        forbid={"job.tuning": "qlora"},
        reason=f"the checkpoint is in {packed}, and transformers quantises none again: take "
        "`tuning: lora`, or a copy of the model in 16 bits",
    )
    if not facts.stack.assumed and KERNELS not in facts.stack.absent:
        yield Rule(
            forbid={"device.kind": "cuda"},
            reason=f"with the package {KERNELS} transformers keeps {packed} packed, and refuses to "
            f"train it: `pip uninstall {KERNELS}`, or take a copy of the model in 16 bits",
        )


NOT_ESTIMATED = frozenset(_NOT_ESTIMATED.format(package.name) for package in PACKAGES)
"""The reasons for which candidates are left out that could be trained, but not estimated."""


def packages_to_install(job: Job, facts: Facts, candidate: Candidate) -> list[str]:
    """Return the packages that a candidate needs where it trains, and that are not here."""
    needed = [
        package.name
        for package in PACKAGES
        if package.name != KERNELS and candidate.values.get(package.knob) in package.values
    ]
    if job.tuning == "qlora":
        needed.append(QUANTISER)
    attention = to_install(candidate.values.get(ATTENTION), facts)
    missing = [name for name in dict.fromkeys(needed) if name in facts.stack.absent]
    return [*([attention] if attention else []), *missing]
