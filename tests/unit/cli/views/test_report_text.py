"""The report on a terminal, and in a file."""

from io import StringIO

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.report import print_report
from autotune.report.gather import content_of
from autotune.run.past_run import reopen
from tests.unit.past_run import make_whole_run
from tests.unit.report.hostile import hostile


def test_a_terminal_gets_whole_words_and_a_file_whole_lines(tmp_path):
    content = content_of(reopen(make_whole_run(tmp_path).path))
    texts = {}
    for is_terminal in (True, False):
        file = StringIO()
        width = 80 if is_terminal else 160
        console = PlainConsole(
            file=file, width=width, force_terminal=is_terminal, color_system=None
        )
        print_report(content, console)
        texts[is_terminal] = file.getvalue()
    shown = texts[True].splitlines()
    assert max(map(len, shown)) <= 80
    assert "recommended: probe 1" in shown
    for line in (*content.compared, *content.skipped, *content.said):
        assert line in texts[False].splitlines()
        assert " ".join(line.split()) in " ".join(texts[True].split())


def test_no_text_of_a_run_obeys_itself_in_a_terminal(tmp_path):
    content = hostile(content_of(reopen(make_whole_run(tmp_path).path)))
    file = StringIO()
    print_report(content, PlainConsole(file=file, width=160, color_system=None))
    assert "\\x1b[31m" in file.getvalue()
    assert not {"\x1b", "\x00", "\u202e", "\ud800"} & set(file.getvalue())
