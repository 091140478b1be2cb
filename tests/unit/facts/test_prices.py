"""Prices of GPUs, of a file or of the table in the package."""

import datetime
from importlib import resources

import pytest
import yaml

from autotune.errors import UserError
from autotune.facts.device_kinds import find_kind
from autotune.facts.prices import LISTED, prices_of


def written(folder, text):
    file = folder / "prices.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("h100: 2.50\nRTX 4090: 1\n", "$"),
        ("prices: {h100-sxm: 2.5, rtx4090: 1}\ncurrency: EUR\ndate: 2026-11-01\n", "EUR"),
        ('H100: 2.5\n"4090": 1.0\n', "$"),
    ],
)
def test_a_file_has_a_line_a_kind(text, currency, tmp_path):
    file = written(tmp_path, text)
    prices = prices_of(file)
    assert prices.by_kind == {find_kind("h100").name: 2.5, find_kind("rtx-4090").name: 1.0}
    assert (prices.currency, prices.source, prices.listed) == (currency, f"Prices: {file}", False)


def test_all_problems_are_told_at_once_with_their_lines(tmp_path):
    file = written(
        tmp_path,
        "h100: 2.5\nH100-SXM: 3\nl40s: -1\na40: yes\nl4: 1e9\nt4: .nan\nh2000: 1\nv100: much\n",
    )
    with pytest.raises(UserError) as caught:
        prices_of(file)
    told = {problem.where.rpartition(":")[2]: problem for problem in caught.value.problems}
    assert sorted(told) == ["2", "3", "4", "5", "6", "7", "8"]
    assert told["2"].what.startswith("`H100-SXM` is priced twice")
    assert all("not a number above 0" in told[line].what for line in "34568")
    assert "`h2000` is not a known kind of GPU" in told["7"].what
    assert told["7"].hint is not None and "h200" in told["7"].hint


def test_problems_below_prices_have_their_lines_and_so_has_an_unknown_key(tmp_path):
    file = written(tmp_path, "prices:\n  h100: 0\n  l40s: 1\nvat: 19\n")
    with pytest.raises(UserError) as caught:
        prices_of(file)
    places = {problem.where.rpartition(":")[2]: problem.what for problem in caught.value.problems}
    assert places["2"] == "the price of `h100` is `0`, not a number above 0"
    assert places["4"] == "unknown key `vat`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no prices"),
        ("prices: {}\n", "it has no prices"),
        ("prices: 5\n", "it has no prices"),
        ("- h100\n", "mapping"),
        ("h100: [\n", "prices.yaml"),
        ("h100: 1\nh100: 2\n", "twice"),
    ],
)
def test_what_holds_no_prices_is_refused(text, message, tmp_path):
    with pytest.raises(UserError) as caught:
        prices_of(written(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read the file with prices"):
        prices_of(str(tmp_path / "none.yaml"))


def test_each_listed_price_is_of_a_known_kind_and_has_a_source_and_a_date():
    file = resources.files("autotune").joinpath("facts", "prices.yaml")
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    dates = []
    for name, entry in data["prices"].items():
        assert find_kind(name)
        assert 0 < entry["price"] < 20 and entry["source"].startswith("https://"), name
        dates.append(entry["date"])
        assert isinstance(entry["date"], datetime.date)
    assert data["date"] == max(dates)
    prices = prices_of(LISTED)
    assert len(prices.by_kind) == len(data["prices"]) > 10 and prices.listed
    assert str(data["date"]) in prices.source
