"""A job on several machines: a row each, what to rent, and what that costs. Pure but for plans
that are kept."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.facts.machines import Machine
from autotune.facts.prices import Prices
from autotune.job.job import Job, KnobValue
from autotune.job.methods import METHODS
from autotune.plan.answer import SPEED_ERROR
from autotune.plan.cache import PlanCache
from autotune.plan.machines import MachinePlan, plan_machines
from autotune.plan.progress import Progress
from autotune.report.words import batch_text, candidate_text, checkpointing_cell, install_text
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.sharding.sharding import engine_name, sharding_of
from autotune.space.trl_config import DEFAULTS
from autotune.units import format_bytes, format_seconds, format_speed, parse_seconds

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """The best configuration of a job on a machine. Bytes, seconds, tokens a second.

    Attributes:
        machine: its name, with the count where that was asked for.
        kind: the full name of its devices.
        text: the configuration in words; of what does not fit the leanest.
        short: its batch, checkpointing and sharding alone.
        at_least: whether the peak is a lower bound.
        job_s: of all epochs, without evaluation and saving; None: nothing fits, or not known.
        by_formula: whether the engine that spreads it was not traced.
        problem: why it cannot be planned there.
        assumed: why it is this kind, where a size was named.
    """

    machine: str
    kind: str
    count: int
    limit_bytes: int = 0
    text: str = ""
    short: str = ""
    knobs: dict[str, KnobValue] = field(default_factory=dict)
    fits: bool = False
    safe: bool = False
    p_oom: float = 1.0
    peak_memory_bytes: int = 0
    at_least: bool = False
    tokens_per_s: float | None = None
    job_s: float | None = None
    by_formula: bool = False
    packages: list[str] = field(default_factory=list)
    problem: str | None = None
    assumed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The user's limits on a training: its time in seconds, its money in the prices' currency."""

    most_s: float | None = None
    most_money: float | None = None


def limits_of(deadline: str | None, at_most: str | None, prices: Prices | None) -> Limits:
    """Return the limits that texts say, such as `20h` and `50$`.

    Raises:
        UserError: one says none, or money without prices in that currency.
    """
    try:
        most_s = None if deadline is None else parse_seconds(deadline)
    except ValueError as error:
        hint = "such as `20h` or `90m`"
        raise user_error(str(error), where="deadline", hint=hint) from None
    return Limits(most_s=most_s, most_money=None if at_most is None else _amount(at_most, prices))


def _amount(text: str, prices: Prices | None) -> float:
    number = re.fullmatch(r"[$€£]?\s*([0-9]+(?:\.[0-9]+)?)\s*[^\s\d.,]{0,3}", text.strip())
    if number is None or float(number[1]) <= 0:
        what = f"`{text}` is not an amount above 0"
        raise user_error(what, where="at_most", hint="such as `50$`")
    if prices is None:
        hint = "add `--prices FILE` (a line a kind: `h100: 2.50`), or `--prices listed`"
        raise user_error("no prices are known", where="at_most", hint=hint)
    signs = re.sub(r"[\d.\s]", "", text)
    if signs and signs != prices.currency:
        what = f"`{text}` is in {signs}, but the prices are in {prices.currency}"
        hint = f"write `{number[1]}{prices.currency}`, or `currency: {signs}` in the price file"
        raise user_error(what, where="at_most", hint=hint)
    return float(number[1])


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine on which the job is safe, with its price.

    Attributes:
        money: of the whole job; None: no price is known.
        within: whether it keeps the user's limits.
        best: whether no other one is both faster and cheaper.
    """

    row: MachineRow
    money: float | None
    within: bool
    best: bool

    @property
    def job_s(self) -> float:
        """Seconds of the job."""
        assert self.row.job_s is not None
        return self.row.job_s


def machine_rows(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    machines: Sequence[Machine],
    *,
    assume: bool,
    progress: Progress,
) -> list[MachineRow]:
    """Return a row for each machine, in their order; those of an equal question are remembered.

    Raises:
        UserError: the job cannot be.
        MachineError: the training stack cannot be run here.
    """
    cache = PlanCache.of_user()
    key = cache.key(job, definition, f"{list(machines)!r} {assume=}")
    rows = None if key is None else cache.rows(key, list[MachineRow])
    if rows is None:
        plans = plan_machines(job, definition, scratch, machines, assume=assume, progress=progress)
        rows = [_row(plan) for plan in plans]
        if key is not None:
            cache.keep_rows(key, rows, list[MachineRow])
    return rows


def _row(plan: MachinePlan) -> MachineRow:
    machine, count = plan.machine, plan.job.devices.total
    row = MachineRow(
        machine=machine.name,
        kind=machine.kind.name,
        count=count,
        problem=plan.problem,
        assumed=machine.kind.assumed,
    )
    if plan.first is None:
        return row
    candidate, estimate = plan.first.candidate, plan.first.estimate
    return dataclasses.replace(
        row,
        limit_bytes=plan.limit_bytes,
        text=candidate_text(candidate, plan.bound_space, count),
        short=_short(candidate, count),
        knobs=dict(candidate.knobs),
        fits=estimate.fits,
        safe=plan.first.safe,
        p_oom=round(estimate.p_oom, 4),
        peak_memory_bytes=estimate.peak_memory_bytes,
        at_least=estimate.at_least,
        tokens_per_s=estimate.tokens_per_s,
        job_s=None if plan.answer is None else plan.answer.job_s,
        by_formula=not estimate.traced,
        packages=[] if plan.answer is None else list(plan.answer.packages),
    )


def _short(candidate: Candidate, devices: int) -> str:
    values, sharding = candidate.values, sharding_of(candidate.values, devices)
    again = values.get(CHECKPOINTING)
    words = ["ckpt" if again is True else f"ckpt {checkpointing_cell(again)}"] if again else []
    words += [engine_name(sharding)] if devices > 1 else []
    words += ["activations offloaded"] if values.get("activation_offloading") else []
    return ", ".join([batch_text(candidate), *words])


def offers(rows: Sequence[MachineRow], prices: Prices | None, limits: Limits) -> list[Offer]:
    """Return the machines on which the job is safe: the cheapest first, where prices are known;
    else the fastest.

    What has no price comes last, where others have one.
    """
    priced = [(row, _money(row, prices)) for row in rows if row.safe and row.job_s is not None]

    def place(pair: tuple[MachineRow, float | None]) -> tuple[bool, float, float]:
        row, money = pair
        return money is None, money or 0.0, row.job_s or 0.0

    made = []
    for row, money in sorted(priced, key=place):
        beaten = any(
            (other.job_s or 0.0) < (row.job_s or 0.0)
            and (money is None or (paid is not None and paid <= money))
            for other, paid in priced
        )
        slow = limits.most_s is not None and (row.job_s or 0.0) > limits.most_s
        dear = limits.most_money is not None and (money is None or money > limits.most_money)
        made.append(Offer(row=row, money=money, within=not (slow or dear), best=not beaten))
    return made


def _money(row: MachineRow, prices: Prices | None) -> float | None:
    price = None if prices is None else prices.by_kind.get(row.kind)
    return None if price is None or row.job_s is None else price * row.count * row.job_s / 3600


def machine_lines(
    rows: Sequence[MachineRow], made: Sequence[Offer], prices: Prices | None, limits: Limits
) -> Iterator[str]:
    """Yield what to rent or use, and what else there is."""
    within = [offer for offer in made if offer.within]
    if not made:
        yield _nothing(rows)
    elif not within:
        fastest = min(made, key=lambda offer: offer.job_s)
        cheapest = min((o for o in made if o.money is not None), key=_paid, default=None)
        least = "" if cheapest is None else f", the cheapest costs {_cost(cheapest, prices)}"
        yield (
            f"Nothing keeps your limits: the fastest ({fastest.row.machine}) takes "
            f"{format_seconds(fastest.job_s)}{least}."
        )
    else:
        yield _recommended(within, prices)
    if prices is not None:
        yield from _notes_of_prices(rows, prices)
    yield from (f"Assumed: {row.assumed}." for row in rows if row.assumed)


def _recommended(within: Sequence[Offer], prices: Prices | None) -> str:
    first, *others = within
    if first.money is None:
        texts = [f"The fastest is {_named(first.row)}: {_takes(first, prices)}."]
    else:
        texts = [f"Rent {_named(first.row)}: {_takes(first, prices)}."]
    further = [o for o in others if o.best and o.job_s < first.job_s]
    fastest = min(further, key=lambda offer: offer.job_s, default=None)
    smallest = min(within, key=lambda o: (o.row.count * o.row.limit_bytes, o.job_s))
    for other in (fastest, smallest):
        if other is not None and other is not first:
            verb = "takes" if other.row.count == 1 else "take"
            texts.append(f"{_named(other.row, capital=True)} {verb} {_takes(other, prices)}.")
    return " ".join(dict.fromkeys(texts))


def _named(row: MachineRow, *, capital: bool = False) -> str:
    short = row.machine.removeprefix(f"{row.count}x").replace("-", " ")
    name = short if short != short.lower() else short.upper()
    text = f"{'one' if row.count == 1 else row.count} {name}"
    return text[0].upper() + text[1:] if capital else text


def _takes(offer: Offer, prices: Prices | None) -> str:
    hours = format_seconds(offer.job_s)
    return hours if offer.money is None else f"{hours}, {_cost(offer, prices)}"


def _cost(offer: Offer, prices: Prices | None) -> str:
    assert prices is not None and offer.money is not None
    return f"{offer.money:.2f} {prices.currency}"


def _paid(offer: Offer) -> float:
    assert offer.money is not None
    return offer.money


def _nothing(rows: Sequence[MachineRow]) -> str:
    planned = [row for row in rows if row.problem is None]
    if not planned:
        return f"It cannot be planned on any of these: {rows[0].problem}."
    least = min(planned, key=lambda row: row.peak_memory_bytes)
    bound = "at least " if least.at_least else ""
    return (
        f"It is safe on none of these: the smallest configuration needs {bound}"
        f"{format_bytes(least.peak_memory_bytes)} on each device."
    )


def _notes_of_prices(rows: Sequence[MachineRow], prices: Prices) -> Iterator[str]:
    yield f"{prices.source}."
    kinds = {row.kind for row in rows}
    if missing := [row.machine for row in rows if row.kind not in prices.by_kind]:
        yield f"No price for {', '.join(missing)}."
    unused = sorted(prices.by_kind.keys() - kinds)
    if unused and not prices.listed:
        yield f"Priced, but not planned: {', '.join(unused)}."


def closing_lines(job: Job, made: Sequence[Offer]) -> list[str]:
    """Return what the times are of, how sure they are, and what the machines need installed."""
    if not made:
        return []
    needed = sorted({package for offer in made for package in offer.row.packages})
    return [time_line(job), *([install_text(needed)] if needed else [])]


def time_line(job: Job) -> str:
    """Return what the times are of, and how sure they are."""
    steps = job.training.get("max_steps")
    default = {**DEFAULTS, **METHODS[job.method].defaults}["num_train_epochs"]
    epochs = f"{job.training.get('num_train_epochs', default):g} epochs"
    length = f"{steps} steps" if isinstance(steps, int) and steps > 0 else epochs
    return (
        f"Times: {length} at the estimated speed (+-{SPEED_ERROR:.0%}), without evaluation and "
        "saving."
    )


def machines_plain(
    rows: Sequence[MachineRow],
    made: Sequence[Offer],
    lines: Sequence[str],
    prices: Prices | None = None,
) -> dict[str, Any]:
    """Return the JSON data of a plan for several machines."""
    heads, *cells = machine_cells(rows, made, prices)
    offered = {offer.row.machine: offer for offer in made}

    def plain(row: MachineRow) -> dict[str, Any]:
        offer = offered.get(row.machine)
        money = None if offer is None else offer.money
        return {**vars(row), "money": money, "best": offer is not None and offer.best}

    return {
        "schema": SCHEMA,
        "lines": list(lines),
        "machines": [plain(row) for row in rows],
        "table": {
            "heads": heads,
            "rows": cells,
            "shared": "",
            "notes": signs(cells),
        },
    }


def machine_cells(
    rows: Sequence[MachineRow], made: Sequence[Offer], prices: Prices | None
) -> Iterator[list[str]]:
    """Yield a line for each machine, the head first: those on which it is safe as they are
    offered, then the others. `*`: no other one is both faster and cheaper."""
    head = ["", "machine", "hours", "money", "tokens/s", "GiB", "of GiB", "with"]
    yield head if prices is not None else [name for name in head if name != "money"]
    offered = {offer.row.machine: offer for offer in made}
    others = [row for row in rows if row.machine not in offered]
    for row in [*(offer.row for offer in made), *others]:
        offer = offered.get(row.machine)
        mark = "*" if prices is not None and offer is not None and offer.best else ""
        hours = "-" if offer is None else f"{offer.job_s / 3600:.3g}"
        money = "-" if offer is None or offer.money is None else f"{offer.money:.2f}"
        cost = [] if prices is None else [money]
        yield [mark, row.machine, hours, *cost, *_figures(row)]


def signs(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return what the signs mean that stand in the rows of a table."""
    meanings = {
        "ckpt: checkpointing (1/2: half)": any("ckpt" in row[-1] for row in cells),
        "*: none is faster and cheaper": any(row[0] for row in cells),
        ">: at least": any(text.startswith(">") for row in cells for text in row[:-1]),
    }
    return [text for text, is_there in meanings.items() if is_there]


def _figures(row: MachineRow) -> list[str]:
    if row.problem is not None:
        return ["-", "-", "", row.problem]
    speed = "-" if row.tokens_per_s is None else format_speed(row.tokens_per_s)
    peak = f"{'>' if row.at_least else ''}{row.peak_memory_bytes / 2**30:.1f}"
    words = row.short if row.safe else f"may fit: {row.short}" if row.fits else "does not fit"
    return [speed.removesuffix(" tokens/s"), peak, f"{row.limit_bytes / 2**30:.1f}", words]
