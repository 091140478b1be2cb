"""What a run says in a terminal, on stderr: its lines, and below them one that moves."""

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.progress import EstimatesShown
from autotune.report.run_lines import RunLines


class TerminalListener(RunLines):
    """Prints what happens."""

    def __init__(self, console: PlainConsole):
        super().__init__(self._print)
        self._console = console
        self._estimates: EstimatesShown = EstimatesShown(console)

    def close(self) -> None:
        """Nothing more is said: no line is left half-way."""
        self._estimates.clear()

    def _print(self, text: str) -> None:
        self._estimates.clear()
        self._console.print_line(text)
