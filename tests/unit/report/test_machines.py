"""What is said of a job on several machines. The rows are written by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli import plan as cli
from autotune.errors import UserError
from autotune.facts.prices import Prices
from autotune.report.machines import (
    Limits,
    MachineRow,
    limits_of,
    machine_cells,
    machine_lines,
    machines_plain,
    offers,
)
from tests.unit.builders import GIB

HOUR = 3600.0
PRICES = Prices(by_kind={"H100": 3.0, "L40S": 1.0, "T4": 0.5}, source="Prices: mine.yaml")


def row(machine, hours=1.0, kind="H100", count=1, **changes):
    fields = {
        "machine": machine,
        "kind": kind,
        "count": count,
        "limit_bytes": 79 * GIB,
        "text": "4 x 8 with checkpointing",
        "short": "4 x 8, ckpt",
        "fits": True,
        "safe": True,
        "p_oom": 0.0,
        "peak_memory_bytes": 20 * GIB,
        "tokens_per_s": 9000.0,
        "job_s": None if hours is None else hours * HOUR,
    }
    return MachineRow(**{**fields, **changes})


H100 = row("h100", 4.0)
L40S = row("l40s", 10.0, "L40S", limit_bytes=44 * GIB)
FOUR = row("4xl40s", 3.0, "L40S", 4, limit_bytes=44 * GIB)
SMALL = row(
    "t4", None, "T4", limit_bytes=14 * GIB, safe=False, fits=False, p_oom=1.0, at_least=True
)
RISKY = row("t4", 9.0, "T4", limit_bytes=21 * GIB, safe=False, p_oom=0.3)
WRONG = MachineRow(machine="3xh100", kind="H100", count=3, problem="8 rows cannot be divided")


def lines(rows, prices=None, **limits):
    limits = Limits(**limits)
    return list(machine_lines(rows, offers(rows, prices, limits), prices, limits))


def table(rows, prices=None):
    return list(machine_cells(rows, offers(rows, prices, Limits()), prices))


def show(rows, prices=None):
    cli.print_table(machines_plain(rows, offers(rows, prices, Limits()), [], prices)["table"])


ROWS = st.lists(
    st.builds(
        lambda hours, kind, count, safe: (hours, kind, count, safe),
        st.integers(1, 6),
        st.sampled_from(["H100", "L40S", "T4", "no price"]),
        st.sampled_from([1, 2, 4]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS, st.one_of(st.none(), st.just(PRICES)), st.integers(1, 6), st.integers(1, 30))
def test_offers_are_those_that_nothing_beats_in_an_order_that_pays(drawn, prices, hours, money):
    rows = [
        row(f"m{n}", hours, kind, count, safe=safe)
        for n, (hours, kind, count, safe) in enumerate(drawn)
    ]
    found = offers(rows, prices, Limits(most_s=hours * HOUR, most_money=money if prices else None))
    assert [o.row.machine for o in found if not o.row.safe] == []
    assert len(found) == sum(one.safe for one in rows)
    infinite = float("inf")
    paid = {o.row.machine: infinite if o.money is None else o.money for o in found}
    for offer in found:
        price = None if prices is None else prices.by_kind.get(offer.row.kind)
        cost = None if price is None else price * offer.row.count * offer.job_s / HOUR
        assert offer.money == (None if cost is None else pytest.approx(cost))
        mine = paid[offer.row.machine]
        faster = [o for o in found if o.job_s < offer.job_s]
        assert offer.best is (not [o for o in faster if paid[o.row.machine] <= mine])
        cheap = prices is None or mine <= money
        assert offer.within is (offer.job_s <= hours * HOUR and cheap)
    keys = [(paid[o.row.machine], o.job_s) for o in found]
    assert keys == sorted(keys)


def test_a_kind_that_stands_for_a_size_is_said_to():
    assumed = "24 GiB: taken as an RTX 4090, the commonest card of that size"
    *_, last = lines([H100, row("rtx-4090", 5.0, assumed=assumed)])
    assert last == f"Assumed: {assumed}."


def test_without_prices_the_fastest_is_named_and_the_smallest_that_does():
    (line,) = lines([H100, L40S, FOUR, SMALL])
    assert line == "The fastest is 4 L40S: 3.0 h. One L40S takes 10.0 h."


def test_with_prices_the_cheapest_is_named_and_the_fastest():
    first, *notes = lines([H100, L40S, FOUR, SMALL], PRICES)
    assert first == "Rent one L40S: 10.0 h, 10.00 $. 4 L40S take 3.0 h, 12.00 $."
    assert notes[0] == "Prices: mine.yaml."


def test_what_has_no_price_and_what_is_not_planned_is_named():
    text = "\n".join(lines([H100, row("a40", 3.0, "A40")], PRICES))
    assert "No price for a40." in text
    assert "Priced, but not planned: L40S, T4." in text
    listed = replace(PRICES, listed=True)
    assert "not planned" not in "\n".join(lines([H100], listed))


def test_limits_are_kept():
    assert lines([H100, L40S, FOUR], most_s=5 * HOUR) == [
        "The fastest is 4 L40S: 3.0 h. One H100 takes 4.0 h."
    ]
    in_time = lines([H100, L40S, FOUR], PRICES, most_s=5 * HOUR)[0]
    assert in_time == "Rent 4 L40S: 3.0 h, 12.00 $. One H100 takes 4.0 h, 12.00 $."
    money = lines([H100, L40S, FOUR], PRICES, most_money=11)[0]
    assert money == "Rent one L40S: 10.0 h, 10.00 $."
    nothing = lines([H100, L40S, FOUR], PRICES, most_s=HOUR)[0]
    assert nothing == (
        "Nothing keeps your limits: the fastest (4xl40s) takes 3.0 h, the cheapest costs 10.00 $."
    )
    unpriced = lines([row("a40", 3.0, "A40")], PRICES, most_money=50.0)[0]
    assert unpriced == "Nothing keeps your limits: the fastest (a40) takes 3.0 h."


def test_where_nothing_is_safe_the_smallest_need_is_told():
    assert lines([SMALL, replace(RISKY, peak_memory_bytes=25 * GIB)]) == [
        "It is safe on none of these: the smallest configuration needs at least 20 GiB on each "
        "device."
    ]
    assert lines([WRONG]) == ["It cannot be planned on any of these: 8 rows cannot be divided."]


def test_the_table_has_a_row_for_each_machine_and_marks_what_nothing_beats():
    rows = [WRONG, SMALL, H100, L40S, FOUR, RISKY]
    head, *cells = table(rows, PRICES)
    assert head == ["", "machine", "hours", "money", "tokens/s", "GiB", "of GiB", "with"]
    assert [one[1] for one in cells] == ["l40s", "4xl40s", "h100", "3xh100", "t4", "t4"]
    assert [one[0] for one in cells] == ["*", "*", "", "", "", ""]
    assert cells[0][2:] == ["10", "10.00", "9k", "20.0", "44.0", "4 x 8, ckpt"]
    assert cells[3][-1] == "8 rows cannot be divided"
    assert cells[4][-3:] == [">20.0", "14.0", "does not fit"]
    assert cells[5][-1] == "may fit: 4 x 8, ckpt"
    head, *cells = table(rows)
    assert "money" not in head and all(len(one) == len(head) for one in cells)


def test_the_table_is_legible_at_80_columns_and_explains_its_signs(capsys):
    long = replace(H100, short="128 x 1024, ckpt, ZeRO-3, optimizer and weights on cpu, and more")
    show([long, SMALL, replace(WRONG, problem="so " * 60)], PRICES)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) == 80
    assert "ckpt: checkpointing" in printed and "; *: none is faster" in printed
    assert ">: at least" in printed
    show([replace(RISKY, short="1 x 8")])
    assert ":" not in capsys.readouterr().out.replace("may fit:", "")


def test_programs_get_the_rows_with_what_they_cost():
    rows = [H100, SMALL, L40S]
    plain = machines_plain(rows, offers(rows, PRICES, Limits()), ["a line"], PRICES)
    assert plain["schema"] == 1 and plain["lines"] == ["a line"]
    assert [one["machine"] for one in plain["machines"]] == ["h100", "t4", "l40s"]
    assert [one["money"] for one in plain["machines"]] == [12.0, None, 10.0]
    assert [one["best"] for one in plain["machines"]] == [True, False, True]
    heads, *cells = table(rows, PRICES)
    assert plain["table"]["rows"] == cells and len(plain["table"]["heads"]) == len(heads)
    assert plain["table"]["heads"][-3:] == ["GiB", "of GiB", "with"]
    assert plain["machines"][0].keys() == {*MachineRow.__dataclass_fields__, "money", "best"}


@pytest.mark.parametrize(
    ("text", "amount"),
    [("50", 50.0), ("50$", 50.0), ("$ 50.25", 50.25), ("$9", 9.0)],
)
def test_money_is_an_amount(text, amount):
    assert limits_of(None, text, PRICES) == Limits(most_money=amount)


@pytest.mark.parametrize("text", ["50 EUR", "€9"])
def test_money_of_another_currency_is_not_taken_for_that_of_the_prices(text):
    with pytest.raises(UserError, match="but the prices are in"):
        limits_of(None, text, PRICES)


@pytest.mark.parametrize("text", ["0", "-5", "much", "1,000", "10 000", "1,00", "5.5.5", ""])
def test_what_is_not_an_amount_is_refused(text):
    with pytest.raises(UserError, match="not an amount above 0"):
        limits_of(None, text, PRICES)


def test_money_needs_prices_and_a_deadline_a_time():
    with pytest.raises(UserError, match="no prices are known"):
        limits_of(None, "50$", None)
    assert limits_of("20h", None, None) == Limits(most_s=20 * HOUR)
    with pytest.raises(UserError) as caught:
        limits_of("soon", None, None)
    assert caught.value.problems[0].where == "deadline"
