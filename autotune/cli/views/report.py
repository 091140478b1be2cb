"""The report of a run on the terminal."""

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.tables import expected_table, lines_table, signs
from autotune.report.content import Content


def print_report(content: Content, console: PlainConsole) -> None:
    """Print what a run measured and recommends, within the console's width."""

    def say(text: str = "") -> None:
        # A terminal gets whole words; a file gets whole lines.
        soft = not console.is_terminal
        console.print(text, highlight=False, markup=False, soft_wrap=soft)

    console.print(lines_table(content.lines, console.width))
    for line in signs(content.lines):
        say(line)
    if content.shared:
        say(f"all: {content.shared}")
    expected = expected_table(content.lines)
    if expected is not None:
        say()
        console.print(expected)
    for line in [
        *content.compared,
        *content.unprobed,
        *content.skipped,
        *content.said,
        *(f"note: {note}" for note in content.notes),
    ]:
        say(line)
    chosen = content.chosen
    say()
    if chosen is None or not chosen.recommended:
        say("no recommendation yet")
        return
    say(f"recommended: probe {chosen.probe}")
    for reason in chosen.reasons:
        say(f"- {reason}")
    say(chosen.verification)
    say(f"bundle: {chosen.bundle}")
