"""`autotune completion`."""

import click

from autotune.cli.command import echo, guarded

PROGRAM = "autotune"
VARIABLE = "_AUTOTUNE_COMPLETE"
"""Click answers a shell where this is set."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@guarded
def command(shell: str) -> int:
    """Print a script that makes a shell complete commands, options and files.

    \b
    bash: add  eval "$(autotune completion bash)"  to ~/.bashrc
    zsh:  add  eval "$(autotune completion zsh)"   to ~/.zshrc, below compinit
    fish: autotune completion fish > ~/.config/fish/completions/autotune.fish
    """
    from click.shell_completion import get_completion_class

    from autotune.cli import main

    completion = get_completion_class(shell)
    assert completion is not None
    echo(completion(main, {}, PROGRAM, VARIABLE).source())
    return 0
