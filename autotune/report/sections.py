"""The content of a report as headed sections with tables. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.report.content import Content, Expected, KnobWorth, Line, Memory, Probe, Worth
from autotune.report.parts import ordered
from autotune.report.words import legend
from autotune.units import format_bytes, format_seconds

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells of text.

    Attributes:
        heads: of the columns; those of figures end in `#`, and are right-aligned.
        caption: what it shows.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it.

    Attributes:
        name: of its place in the page, and of its figure where it has one.
        text: sentences, each a paragraph.
    """

    name: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


def sections(content: Content) -> Iterator[Section]:
    """Yield all but the recommendation and how to repeat it."""
    made = list(_told(content))
    yield from made
    cells = (cell for one in made for table in one.tables for row in table.rows for cell in row)
    texts = (content.headline, *(text for one in made for text in one.text), *cells)
    if words := legend(texts):
        tables = _table("What the words mean", ("word", "what it means"), words)
        yield Section(name="words", title="Words", tables=tables)


def _told(content: Content) -> Iterator[Section]:
    yield _candidates(content)
    yield _memory(content)
    yield _expected(content)
    yield _worth(
        "knobs",
        "What each knob is worth",
        "The fastest with each value within memory, everything else free.",
        "Only one value was possible for each knob.",
        content.speed_knobs,
    )
    yield _worth(
        "recipe",
        "What the recipe's values cost",
        "These change what is learned. The fastest with each value, everything else free.",
        "The job varies nothing of its recipe.",
        content.recipe_knobs,
    )
    yield _ruled_out(content)
    yield _time(content)
    yield _about(content)


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[Table, ...]:
    """Return a table; none where it would have no rows."""
    cells = tuple(tuple(row) for row in rows)
    return (Table(caption=caption, heads=tuple(heads), rows=cells),) if cells else ()


def _candidates(content: Content) -> Section:
    limit = f"A probe may take {format_bytes(content.limit_bytes)}; recommended is what takes at "
    text = [f"{limit}most {format_bytes(content.allowed_bytes)}."]
    if content.shared:
        text.append(f"All: {content.shared}.")
    heads = ("probe", "candidate", "tokens/s#", "from", "peak#", "outcome")
    rows = [
        (_numbers(line), line.candidate, *_speed_and_source(line), _peak(line), line.outcome)
        for line in content.lines
    ]
    return Section(
        name="candidates",
        title="Speed against memory",
        text=tuple(text) if rows else ("Nothing was probed.",),
        tables=_table("Candidates that were probed", heads, rows),
    )


def _numbers(line: Line) -> str:
    return ", ".join(map(str, line.numbers))


def _speed_and_source(line: Line) -> tuple[str, str]:
    if line.tokens_per_s is not None:
        return speed_text(line.tokens_per_s, line.uncertainty), "measured"
    estimated = None if line.expected is None else line.expected.tokens_per_s
    return (NOTHING, "") if estimated is None else (speed_text(estimated), "estimated")


def speed_text(speed: float | None, uncertainty: float | None = None) -> str:
    """Return tokens per second: `200`, `200 ±1.0%`."""
    if speed is None:
        return NOTHING
    error = "" if uncertainty is None else f" \N{PLUS-MINUS SIGN}{100 * uncertainty:.1f}%"
    return f"{speed:.0f}{error}"


def size_text(size: int | None) -> str:
    """Return a size as text: `1.25 GiB`."""
    return NOTHING if size is None else format_bytes(size)


def _peak(line: Line) -> str:
    if line.least_bytes is not None:
        return f"at least {format_bytes(line.least_bytes)}"
    return size_text(line.peak_memory_bytes)


def _memory(content: Content) -> Section:
    memory = content.memory
    names = ordered({name for candidate in memory for name in candidate.parts})
    heads = ["part", *(f"{candidate.what}: {candidate.candidate}#" for candidate in memory)]
    rows = [[name, *(size_text(c.parts.get(name, 0)) for c in memory)] for name in names]
    if memory:
        rows.append(["all, estimated", *(_sum(candidate) for candidate in memory)])
        rows.append(["peak, measured", *(size_text(c.measured_bytes) for c in memory)])
    text = "The parts are estimated: a probe measures their sum alone."
    return Section(
        name="memory",
        title="Memory by part",
        text=(text if memory else "No part is known: nothing of these was estimated.",),
        tables=_table("Estimated parts of the peak", heads, rows),
    )


def _sum(memory: Memory) -> str:
    size = format_bytes(memory.estimated_bytes)
    return f"at least {size}" if memory.at_least else size


def _expected(content: Content) -> Section:
    rows = [
        (str(line.numbers[0]), line.candidate, *_beside(line, line.expected))
        for line in content.lines
        if line.expected is not None
    ]
    heads = ["probe", "candidate", "tokens/s#", "estimated#", "off#"]
    heads += ["peak#", "estimated peak#", "peak off#"]
    nothing = "There is nothing to compare: no candidate was both estimated and probed."
    return Section(
        name="expected",
        title="Estimated against measured",
        text=content.compared or (() if rows else (nothing,)),
        tables=_table("Before any probe, and measured", heads, rows),
    )


def _beside(line: Line, expected: Expected) -> tuple[str, ...]:
    speed, peak = line.tokens_per_s, line.peak_memory_bytes
    return (
        speed_text(speed),
        speed_text(expected.tokens_per_s),
        _off(expected.tokens_per_s, speed),
        size_text(peak),
        size_text(expected.peak_memory_bytes),
        _off(expected.peak_memory_bytes, peak),
    )


def _off(estimated: float | None, measured: float | None) -> str:
    if not estimated or not measured:
        return NOTHING
    return f"{100 * (estimated / measured - 1):+.1f}%"


def _worth(name: str, title: str, text: str, nothing: str, knobs: Sequence[KnobWorth]) -> Section:
    heads = ["knob", "value", "tokens/s, measured#", "of the best#", "from"]
    heads += ["tokens/s, estimated#", "of the best estimated#", "of estimates#"]
    rows = [row for knob in knobs for row in _worth_rows(knob)]
    return Section(
        name=name,
        title=title,
        text=(text if rows else nothing,),
        tables=(
            *_table(title, heads, rows),
            *_table("What they do", ("knob", "what it does"), [(k.name, k.why) for k in knobs]),
        ),
    )


def _worth_rows(knob: KnobWorth) -> Iterator[tuple[str, ...]]:
    measured = max((w.measured for w in knob.values if w.measured), default=None)
    estimated = max((w.estimated for w in knob.values if w.estimated), default=None)
    for worth in knob.values:
        yield (
            knob.name,
            f"{worth.label} (default)" if worth.is_default else worth.label,
            speed_text(worth.measured),
            _share(worth.measured, measured),
            _source(worth),
            speed_text(worth.estimated),
            _share(worth.estimated, estimated),
            str(worth.estimates) if worth.estimates else NOTHING,
        )


def _share(speed: float | None, best: float | None) -> str:
    return NOTHING if not speed or not best else f"{100 * speed / best:.1f}%"


def _source(worth: Worth) -> str:
    if worth.probe is None:
        return "none within memory"
    return (
        f"probe {worth.probe}"
        if worth.probes == 1
        else f"probe {worth.probe}, best of {worth.probes}"
    )


def _ruled_out(content: Content) -> Section:
    failed = [
        (str(probe.number), probe.candidate, probe.outcome, _why_not(probe))
        for probe in content.probes
        if probe.standing not in ("recommended", "ok")
    ]
    text = (*content.skipped, *content.unprobed)
    excluded = [(reason, str(count)) for reason, count in content.excluded]
    return Section(
        name="ruled-out",
        title="What was ruled out, and why",
        text=text if text or failed or excluded else ("Nothing was ruled out.",),
        tables=(
            *_table(
                "Probes that cannot be recommended",
                ("probe", "candidate", "outcome", "why"),
                failed,
            ),
            *_table("Combinations that are never tried", ("why", "combinations#"), excluded),
        ),
    )


def _why_not(probe: Probe) -> str:
    if probe.standing == "over headroom":
        return "it leaves less memory free than the headroom asks for"
    if probe.outcome == "ok":
        return f"its bundle failed verification: {probe.reason}"
    return probe.reason


def _time(content: Content) -> Section:
    heads = ["probe", "candidate", "outcome", "began#", "took#", "tokens/s#", "peak#", "node"]
    rows = [
        [
            str(probe.number),
            probe.candidate,
            probe.outcome,
            format_seconds(probe.began_s),
            format_seconds(probe.seconds),
            speed_text(probe.tokens_per_s, probe.uncertainty),
            size_text(probe.peak_memory_bytes),
            probe.node or "",
        ]
        for probe in content.probes
    ]
    text = "Time is that of the probes alone, one after another."
    if any(probe.node for probe in content.probes):
        devices = format_seconds(sum(probe.seconds for probe in content.probes))
        text = f"Time is that of the probes alone, some at once: devices had {devices} of them."
    else:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Section(
        name="time",
        title="The search in time",
        text=(text, *content.said),
        tables=_table("Every probe", heads, rows),
    )


def _about(content: Content) -> Section:
    return Section(
        name="about",
        title="Job, machine and versions",
        text=content.notes,
        tables=(
            *_table("The job", ("what", "value"), content.about),
            *_table("The machine", ("what", "value"), content.machine),
            *_table("Versions", ("what", "value"), content.versions),
        ),
    )
