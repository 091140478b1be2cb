"""What a run says in a terminal, on stderr: its lines, and below them one that moves."""

from rich.markup import escape

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.progress import EstimatesShown
from autotune.report.candidate_lines import describe
from autotune.report.run_lines import RunLines
from autotune.space.knobs import Candidate


class TerminalListener(RunLines):
    """Prints what happens."""

    def __init__(self, console: PlainConsole):
        super().__init__(self._print)
        self._console = console
        self._estimates: EstimatesShown = EstimatesShown(console)

    def probing(self, number: int, candidate: Candidate) -> None:
        if self._console.is_terminal:
            line = f"probe {number:3d}  {describe(candidate, self._free)} ..."
            self._console.print(escape(line), end="\r", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing more is said: no line is left half-way."""
        self._estimates.clear()

    def _print(self, text: str) -> None:
        self._estimates.clear()
        self._console.print(escape(text), highlight=False, soft_wrap=True)
