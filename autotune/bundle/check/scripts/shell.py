"""What shell scripts start, as far as their text says it: a vLLM server, or a training. Pure.

Scripts are read, not run: a variable that one line sets to a plain word is known, any other is
not, and nothing is said of it.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile

from autotune.bundle.check.commands import Started
from autotune.bundle.check.scripts.flags import flags_of

GPUS = "CUDA_VISIBLE_DEVICES"
ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
"""Of the names of scripts."""
_DEFAULT = re.compile(r"\$\{CUDA_VISIBLE_DEVICES:?-([\w,-]+)\}")
_CONSTANT = re.compile(
    r"""^(?:export[ ]|readonly[ ])?([A-Za-z_]\w*)=(["']?)([\w./:,@-]+)\2[ ]*(?:[#].*)?$""", re.M
)
_PLAIN = re.compile(r"[\w,-]+")
_SHORT = {"tp": "tensor-parallel-size", "dp": "data-parallel-size", "pp": "pipeline-parallel-size"}
_SERVES = (("vllm-serve",), ("vllm", "serve"), ("vllm.entrypoints.cli.main", "serve"))
_SERVES_BY_MODULE = (("vllm.entrypoints.openai.api_server",),)
_METHODS = ("grpo", "rloo", "sft", "dpo", "kto", "reward")
_TRAINS = (
    ("accelerate", "launch"),
    ("accelerate.commands.launch",),
    ("torchrun",),
    *(("trl", name) for name in _METHODS),
    *((f"trl.scripts.{name}",) for name in _METHODS),
)
_SAYS = ("echo", "printf")
_BEFORE = ("export", "exec", "env", "nohup", "then", "do", "else")
"""Words before a command."""
Words = Sequence[str]


def started(script: str, text: str) -> list[Started]:
    """The servers and trainings that a script starts, in its order."""
    found: list[Started] = []
    exported: tuple[str, ...] | None = None
    for words in _commands(_with_constants(text)):
        own, command = _environment(words)
        told = _gpus(own, words)
        if told is None and own is not None and exported is None:
            told = ()
        if told is not None and not (own is not None and command):
            exported = told
        serves = _has(command, (*_SERVES, *_SERVES_BY_MODULE))
        if command and command[0] not in _SAYS and (serves or _has(command, _TRAINS)):
            found.append(
                Started(
                    script=script,
                    serves=serves,
                    by_trl="vllm-serve" in command,
                    gpus=exported if told is None else told,
                    flags=_flags(command),
                    model=_model(command) if serves else None,
                    told=None if serves else flags_of(command, _METHODS),
                )
            )
    return found


def _with_constants(text: str) -> str:
    """The text with those variables filled in that one line sets, once and for all."""
    for line in list(_CONSTANT.finditer(text)):
        name, value = line[1], line[3]
        again = re.findall(rf"\b{name}\+?=|\b(?:for|read|local|declare)\b[^\n;]*\b{name}\b", text)
        if name == GPUS or len(again) > 1:
            continue
        place = text.index(line[0]) + len(line[0])
        used = re.compile(rf"\$(?:{name}\b|{{{name}}})")
        text = text[:place] + used.sub(value, text[place:])
    return text


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""  # it would end a word at its `#`, too: ${MODEL##*/}
        command: list[str] = []
        try:
            for word in takewhile(_is_said, lexer):
                if set(word) <= set(";&|"):
                    yield command
                    command = []
                else:
                    command.append(word)
        except ValueError:  # a quotation that goes on in the next line
            command = list(takewhile(_is_said, line.split()))
        yield command


def _is_said(word: str) -> bool:
    """Whether no comment begins with it."""
    return not word.startswith("#")


def _environment(words: Words) -> tuple[str | None, list[str]]:
    """(The GPUs that are set for a command, or by `export`; the command without what is set)."""
    rest, own = list(words), None
    while rest and (rest[0] in _BEFORE or re.match(r"[A-Za-z_]\w*=", rest[0])):
        word = rest.pop(0)
        if word.startswith(f"{GPUS}="):
            own = word.partition("=")[2]
    return own, rest


def _gpus(own: str | None, words: Words) -> tuple[str, ...] | None:
    """GPUs that a command sets, or has as its default."""
    if own is not None and _PLAIN.fullmatch(own):
        return tuple(own.split(","))
    for word in words:
        default = _DEFAULT.search(word)
        if default is not None:
            return tuple(default[1].split(","))
    return None


def _has(command: Words, known: Sequence[Words]) -> bool:
    """Whether some words stand in it one behind the other, the first as the name of a file."""
    names = [word.rpartition("/")[2] for word in command]
    return any(
        names[n : n + len(wanted)] == list(wanted) for wanted in known for n in range(len(names))
    )


def _flags(command: Words) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for word, value in zip(command, [*command[1:], ""], strict=True):
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, equals, own = word.lstrip("-").partition("=")
        told = own if equals else "" if value.startswith("-") else value
        name = _SHORT.get(name, name).replace("_", "-")
        found[name] = None if "$" in told else told
    return found


def _model(command: Words) -> str | None:
    """What is served: a flag, or the word behind `serve`."""
    own = _flags(command).get("model")
    if own is None and "serve" in command[:-1]:
        own = command[command.index("serve") + 1]
    return None if own is None or own.startswith("-") or "$" in own else own
