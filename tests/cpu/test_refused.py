"""Jobs that a survey refuses: the rule, what came and the next step, before any probe."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.cpu.conftest import LLAMA, Command
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_run import write_job

NO_TRACE = ("Traceback", "ValueError", "RuntimeError", "OSError")


def refused(autotune: Command, *arguments: str) -> str:
    """What a command says that ends with exit code 2."""
    err = autotune.refused(*arguments)
    assert not [word for word in NO_TRACE if word in err], err
    return err


def teach_to_chat(model: Path) -> None:
    """Give a model's folder the quickstart's tokenizer, and a template."""
    (model / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    give_tokenizer(model)


def save_judge(folder: Path, labels: int) -> str:
    """A classifier with its weights, as transformers saves one."""
    config = transformers.LlamaConfig(**{**LLAMA, "num_labels": labels})
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("method", "labels"),
    [("grpo", 2), pytest.param("ppo", 3, marks=pytest.mark.ppo), ("reward", 2)],
)
def test_a_reward_model_of_several_labels_is_refused(
    method: str, labels: int, autotune: Command
) -> None:
    judge = save_judge(autotune.folder / "judge", labels)
    changes = {"model": judge} if method == "reward" else {"reward_model_path": judge}
    length = 100 if method == "reward" else None
    write_job(autotune.folder, method=method, max_length=length, fixed={}, **changes)
    err = refused(autotune, "validate", "--space", "job.yaml")
    assert f"a reward model has one label, but {judge} has {labels}: TRL loads it with" in err
    assert "  hint: take one that was trained with `num_labels: 1`" in err


def test_a_causal_model_may_judge_with_a_new_head(autotune: Command) -> None:
    folder = autotune.folder / "causal"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(folder)
    write_job(
        autotune.folder, method="grpo", max_length=None, fixed={}, reward_model_path=str(folder)
    )
    assert json.loads(autotune("validate", "--space", "job.yaml", "--json"))["candidates"]


CHAT = [{"role": "user", "content": "write a poem"}]
ANSWER = [{"role": "assistant", "content": "the sea"}]


@pytest.mark.parametrize(
    ("method", "row", "way"),
    [
        ("rloo", {"prompt": CHAT}, ""),
        ("dpo", {"chosen": CHAT + ANSWER, "rejected": CHAT + ANSWER}, ""),
        (
            "sft",
            {"messages": CHAT + ANSWER},
            "name one with `training: {chat_template_path: ...}`, ",
        ),
    ],
)
def test_conversations_without_a_template_are_refused(
    method: str, row: dict[str, Any], way: str, autotune: Command
) -> None:
    (autotune.folder / "rows.jsonl").write_text(3 * (json.dumps(row) + "\n"), encoding="utf-8")
    own = {"max_length": None, "reward_funcs": ["think_format_reward"]} if method == "rloo" else {}
    write_job(autotune.folder, method=method, dataset="rows.jsonl", fixed={}, **own)
    teach_to_chat(autotune.folder / "model")
    (autotune.folder / "model" / "chat_template.jinja").unlink()
    err = refused(autotune, "validate", "--space", "job.yaml")
    assert err == (
        f"error: dataset: `{next(iter(row))}` holds conversations, but the model's tokenizer has "
        "no chat template to make text of them\n"
        "  hint: take a model with one, put a `chat_template.jinja` beside its tokenizer, "
        f"{way}or give plain text\n"
    )
