"""Packages that knobs need where a job trains: those that it asks for by name are taken to be on a
machine that is elsewhere. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.facts import Facts
from autotune.job.job import Job, KnobValue


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package, the value of a knob that needs it, and the fact that says that it is here.

    Attributes:
        least_capability: the lowest compute capability that it runs on; None: any.
    """

    name: str
    knob: str
    value: KnobValue
    fact: str
    least_capability: tuple[int, int] | None = None


PACKAGES = (
    Package(
        name="flash-attn",
        knob="attn_implementation",
        value="flash_attention_2",
        fact="flash_attention_2",
        least_capability=(8, 0),
    ),
    Package(
        name="flash_attn_3",
        knob="attn_implementation",
        value="flash_attention_3",
        fact="flash_attention_3",
        least_capability=(8, 0),
    ),
    Package(name="liger-kernel", knob="use_liger_kernel", value=True, fact="liger"),
)


def package_facts(job: Job, facts: Facts) -> Mapping[str, bool]:
    """What rules may ask of packages: whether each is here, or taken to be there, and runs."""
    names = {package.name for package in assumed_packages(job, facts)}
    return {
        f"stack.{package.fact}": _runs(package, facts)
        and (package.name in names or getattr(facts.stack, package.fact))
        for package in PACKAGES
    }


def _runs(package: Package, facts: Facts) -> bool:
    capability = facts.device.capability
    return (
        package.least_capability is None
        or capability is None
        or capability >= package.least_capability
    )


def assumed_packages(job: Job, facts: Facts) -> list[Package]:
    """The packages that a job pins or lists values of, where its device is not on this machine."""
    elsewhere = facts.device.kind == "cuda" and facts.device.driver is None
    return [
        package
        for package in PACKAGES
        if elsewhere
        and _runs(package, facts)
        and package.value in _listed_values(job, package.knob)
    ]


def _listed_values(job: Job, knob: str) -> tuple[KnobValue, ...]:
    values = job.fixed.get(knob, job.recipe.get(knob))
    return tuple(values) if isinstance(values, list | tuple) else (values,)


def packages_note(job: Job, facts: Facts) -> str | None:
    """What a plan says of them."""
    names = " and ".join(package.name for package in assumed_packages(job, facts))
    return f"needs {names} on the training machine" if names else None
