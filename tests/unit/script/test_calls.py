"""Whether a script trains again is read from its source, at the moment in which it trains."""

import runpy
from pathlib import Path

import pytest

HEAD = """
from types import SimpleNamespace
from autotune.script.child.calls import other_trainings


class Trainer:
    model = SimpleNamespace(train=lambda: None)

    def train(self):
        raise SystemExit(other_trainings())


def get():
    return Trainer()


get_trainer = get
first = Trainer()
"""


def places(folder: Path, text: str) -> list[str]:
    """Where a script trains again, by the line of its own part."""
    script = folder / "mine.py"
    script.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    skipped = HEAD.count("\n")
    found = []
    for place in ended.value.code:  # type: ignore[union-attr]
        name, _, rest = str(place).partition(":")
        line, _, what = rest.partition(" ")
        assert name == "mine.py"
        found.append(f"{int(line) - skipped} {what}".strip())
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first.train()\n", []),
        ("first.train()\nfirst.train()\n", ["2"]),
        ("second = Trainer()\nfirst.train()\nsecond.train()\n", ["3"]),
        ("first.train()\nget().train()\n", []),  # nobody knows what it is
        ("first.train()\nmodel = get()\nmodel.train()\n", []),  # of a model: another mode
        ("for fold in range(3):\n    first.train()\n", ["1 (a loop around it)"]),
        ("if first:\n    first.train()\nelse:\n    first.train()\n", []),
        ("try:\n    first.train()\nexcept ValueError:\n    first.train()\n", []),
        ("def main():\n    first.train()\n\n\nmain()\nmain()\n", ["6"]),
        (
            "def main():\n    first.train()\n\n\nfor _ in (1, 2):\n    main()\n",
            ["5 (a loop around it)"],
        ),
        ("second = get_trainer()\nfirst.train()\nsecond.train()\n", ["3"]),
        ("trainer2 = get()\nfirst.train()\ntrainer2.train()\n", ["3"]),
        ("first.train(*eval(str([])))\nfirst.model.train()\nprint(str(first))\n", []),
        ("def later():\n    first.train()\n\n\nfirst.train()\n", []),
    ],
)
def test_the_places_at_which_a_script_trains_again(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert places(tmp_path, text) == expected
