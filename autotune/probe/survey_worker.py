"""The child's side of a survey: facts of the model and the data, and the tokenized rows.

Raises nothing: problems of the user's model, data or training fields go into the reply.
"""

import contextlib
import io
import json
import os
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm.std import tqdm

from autotune.errors import UserError, user_error
from autotune.facts.known_models import known_model
from autotune.job.methods import METHODS
from autotune.probe.protocol import SurveyRequest
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress

MEANT_TO_BE_READ = (ValueError, OSError, ImportError)
"""Errors whose messages are sentences: a KeyError's is no more than the key."""
_TELL_S = 1.0
"""Seconds between two reports of a moving bar."""
NO_SENTENCES = (json.JSONDecodeError, UnicodeError)
"""Errors whose message does not tell what was read: their class is named, too."""
WORDS_MADE = 4096
"""Words of a tokenizer that is made: rows of stated lengths need few, and each process loads
all."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.*", "spiece.model")


def survey(path: Path) -> None:
    """Answer `request.json` with `{"model", "data"}`, or with `{"problems": [...]}`, of which each
    is `[where, what, hint or null]`."""
    folder = ChildFolder(path=path)
    request = SurveyRequest.from_plain(read_json(folder.request))
    os.environ.update(request.environment)  # transformers takes the first GPU that it sees
    problems: list[tuple[str, str, str | None]] = []
    reply: dict[str, Any] = {"problems": problems}
    stages = _Stages(Progress(folder.progress))
    try:
        stages.begin("training")
        _check_training(request, folder.scratch)
        stages.begin("reward_funcs")
        _check_rewards(request)
        stages.begin("model")
        model = _model(request, request.model, "model")
        if METHODS[request.method].teacher:
            stages.begin(METHODS[request.method].second_model)
            model = _taught(request, model)
        else:
            stages.begin("reward_model_path")
            reward_path, built_in = _reward_model(request)
            _check_reward_model(request, reward_path, model)
            model = replace(model, reward_shape=reward_path if built_in else None)
        reply["model"] = asdict(model)
        stages.begin("model")
        tokenizer = _tokenizer(request, model)
        stages.begin("dataset")
        reply["data"] = asdict(_data(request, tokenizer, model.vocab_size))
    except MemoryError:
        raise
    except UserError as error:
        problems += [
            (problem.where or stages.name, problem.what, problem.hint) for problem in error.problems
        ]
    except BaseException as error:  # a panic of Rust is no Exception
        traceback.print_exc()
        problems.append((stages.name, sentence_of(error), None))
    write_json(folder.reply, reply)


class _Stages:
    """The part of a job that is looked at, reported as progress, again as a bar of tqdm moves."""

    def __init__(self, progress: Progress) -> None:
        self.name = ""
        self._progress, self._told = progress, 0.0
        update = tqdm.update

        def update_and_report(bar: Any, n: float | None = 1) -> Any:
            if time.monotonic() - self._told > _TELL_S:
                self.begin(self.name)
            return update(bar, n)

        tqdm.update = update_and_report

    def begin(self, name: str) -> None:
        self.name, self._told = name, time.monotonic()
        self._progress.tell("surveying", stage=name)


def sentence_of(error: BaseException) -> str:
    """Return an error as a sentence; with the name of its class where that tells more."""
    message, name = " ".join(str(error).split())[:600], type(error).__name__
    if not message:
        return f"{name}, with no message"
    readable = isinstance(error, MEANT_TO_BE_READ) and not isinstance(error, NO_SENTENCES)
    return message if readable else f"{name}: {message}"


def _check_training(request: SurveyRequest, scratch: Path) -> None:
    """Let TRL itself judge the user's fields."""
    from autotune.training.registry import family
    from autotune.training.spec import OF_THE_MACHINE

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            given = {n: v for n, v in request.training.items() if n not in OF_THE_MACHINE}
            config = {"output_dir": str(scratch), "bf16": False, **given}
            family(request.method).parse(config, scratch)
    except SystemExit:  # argparse, which has printed why
        raise ValueError(output.getvalue().strip().splitlines()[-1]) from None


def _trusts(request: SurveyRequest) -> bool:
    """True only if `trust_remote_code` is the boolean true; the text "true" does not count."""
    return request.training.get("trust_remote_code") is True


def _check_rewards(request: SurveyRequest) -> None:
    """Check that the rewards can be found. Only a job that is going to be trained needs modules of
    the user, and imports them."""
    problems = []
    for name in request.reward_funcs:
        from autotune.training.online import reward_function

        module = name.rpartition(".")[0]
        try:
            if not (module and request.planned):
                reward_function(name)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))


def _reward_model(request: SurveyRequest) -> tuple[str | None, bool]:
    """Return (what `from_pretrained` takes for the reward model, if any; True if it is a built-in
    shape)."""
    from autotune.facts.model_files import locate_model

    path = request.second_model
    if path is None or not request.planned or known_model(path) is None:
        return path, False
    folder = Path(request.run_folder) / "reward_model"
    return locate_model(path, folder, None, shape_suffices=True)


def _check_reward_model(request: SurveyRequest, path: str | None, policy: Any) -> None:
    """Check that the reward model has one output, and for PPO that it knows the policy's tokens."""
    if path is None:
        return
    from autotune.facts.model import check_labels, model_config
    from autotune.facts.model_files import check_weights, refuse_pickles

    trust = _trusts(request)
    check_weights(path)
    check_labels(path, trust_remote_code=trust)
    if not request.planned and request.weights != "real":
        refuse_pickles(path)
    if not METHODS[request.method].value_model or policy.vocab_size is None:
        return
    config = model_config(path, "reward", trust_remote_code=trust)
    words = config.get_text_config().vocab_size
    if words < policy.vocab_size:
        raise user_error(
            f"PPO shows the policy's {policy.vocab_size} tokens to the reward model, which knows "
            f"{words}",
            hint="take one that was made from the policy's family",
        )


def _taught(request: SurveyRequest, model: Any) -> Any:
    """Return the model's facts with those of its teacher; real weights only where both have them.

    Raises:
        UserError: their words are not the same.
    """
    teacher = _model(request, request.second_model or "", "teacher")
    if teacher.vocab_size != model.vocab_size:
        raise user_error(
            f"TRL compares the words of both models: {model.name} has {model.vocab_size}, its "
            f"teacher {teacher.name} has {teacher.vocab_size} (`vocab_size` of their config.json)",
            hint="take a teacher of the same family and vocab_size",
        )
    real = {model.weights, teacher.weights} == {"real"}
    return replace(model, teacher=teacher, weights="real" if real else "random")


def _model(request: SurveyRequest, name: str, role: str) -> Any:
    """Return the facts of the job's model, or of its teacher.

    Args:
        role: `model` or `teacher`, as the folder of its shape is called.
    """
    from autotune.facts.model import survey_model
    from autotune.facts.model_files import refuse_pickles

    field = "model_revision" if role == "model" else f"{role}_model_revision"
    revision = request.training.get(field)
    model = survey_model(
        name,
        request.weights,
        Path(request.run_folder) / role,
        method=request.method,
        revision=revision,
        trust_remote_code=_trusts(request),
        shape_suffices=request.planned,
    )
    if not request.planned and request.weights != "real":
        refuse_pickles(model.path, revision)
    return model


def _tokenizer(request: SurveyRequest, model: Any) -> Any:
    """Return the model's tokenizer; where there is no data, one is made for a model that has none.

    transformers 5 makes an empty tokenizer of a folder without one, so the files are looked for.
    """
    import transformers

    folder = Path(model.path)
    if folder.is_dir() and not any(next(folder.glob(name), None) for name in TOKENIZER_FILES):
        built_folder = Path(request.run_folder) / "model"
        if model.built_in and request.lengths is None:
            raise user_error(
                f"the hub does not give the tokenizer of `{model.name}`, needed to read the data",
                hint="plan from lengths: `dataset: {lengths: {max: 2048, p50: 300, p99: 1500}}`",
            )
        if request.lengths is None or folder != built_folder:
            raise OSError(
                f"{folder} holds no tokenizer, needed to read the data; put one beside the "
                "config, or give `dataset: {lengths: ...}`"
            )
        vocabulary = model.vocab_size or 256
        if not METHODS[request.method].online:  # what is generated may be any token
            vocabulary = min(vocabulary, WORDS_MADE)
        return make_tokenizer(built_folder, vocabulary)
    return transformers.AutoTokenizer.from_pretrained(
        model.path, trust_remote_code=_trusts(request)
    )


def make_tokenizer(folder: Path, vocabulary: int) -> Any:
    """Return a tokenizer of made-up words, kept in `folder` beside the model's config."""
    import transformers

    _word_level(vocabulary).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if tokenizer("<3>")["input_ids"]:
        return tokenizer
    # Of some types (Qwen2) transformers keeps the vocabulary and reads it as bytes and merges.
    _byte_level(vocabulary - 1).save_pretrained(folder)  # transformers adds a word
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _word_level(vocabulary: int) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {"<pad>": 0, "<eos>": 1} | {f"<{n}>": n for n in range(2, vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return _with_ends(tokenizer)


def _byte_level(vocabulary: int) -> Any:
    """Return a tokenizer of bytes, to which a word of one letter is a token, with its space."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    space = "\u0120"
    alphabet = sorted(set(ByteLevel.alphabet()) - {"a", space})
    tokens = ["<pad>", "<eos>", "a", space, f"{space}a", *alphabet][:vocabulary]
    words = {word: n for n, word in enumerate(tokens)}
    words |= {f"<{n}>": n for n in range(len(words), vocabulary)}
    tokenizer = Tokenizer(BPE(words, [(space, "a")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), Decoder()
    return _with_ends(tokenizer)


def _with_ends(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def _data(request: SurveyRequest, tokenizer: Any, vocabulary: int | None) -> Any:
    from autotune.facts.data import survey_data

    folder = Path(request.run_folder) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return survey_data(request, tokenizer, folder, vocabulary)
