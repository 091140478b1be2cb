"""One pick, trained for one epoch of the same rows by TRL alone. It knows nothing of autotune.

The process that forks imports the stack and never starts CUDA, so each pick has a fresh context and
none waits for an import. Before the clock starts, a short row goes through the model once: loading
kernels is no matter of the pick.
"""

import multiprocessing
import os
import queue
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils.memory import should_reduce_batch_size
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import HfArgumentParser, PreTrainedTokenizerFast, TrainerCallback
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

OUTSIDE_BYTES = 3 * 2**28
"""Of a process beside the allocator, on Hopper GPUs: 0.73 to 0.75 GiB were measured."""
FIELDS = {field.name for kind in (SFTConfig, ModelConfig) for field in fields(kind)}
"""What TRL's two groups of arguments hold."""
SEARCH_STEPS = 10
"""Steps in which `auto_find_batch_size` may find its batch, as in `benchmarks/search/peers`."""


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        config: the model's config file; weights are random.
        lengths: tokens of each row, in the order of the data.
        limit_bytes: most bytes of the process on the GPU; None: no limit, as on the CPU.
        scratch: folder for what trainers write.
        seconds: a training that takes longer is ended.
    """

    config: Path
    lengths: list[int]
    limit_bytes: int | None
    scratch: Path
    seconds: float


def train(training: Training, values: dict[str, Any], environment: dict[str, str]) -> Any:
    """Train for an epoch with values of `FIELDS`.

    Returns:
        `outcome` (`ok`, `oom`, `crash`, `timeout`), and of an `ok`: real tokens a second (of a
        whole epoch), seconds of all optimizer steps and of the first, peaks in bytes, the
        micro-batch.
    """
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_child, args=(training, values, environment, answers))
    child.start()
    ends = time.monotonic() + training.seconds
    answer = None
    while answer is None and time.monotonic() < ends and child.is_alive():
        answer = _next(answers)
    answer = answer or _next(answers)
    outcome = "timeout" if child.is_alive() else f"crash, exit code {child.exitcode}"
    child.join(5 if answer else 0)
    child.kill()
    child.join()
    return answer or {"outcome": outcome}


def find_batch_size(training: Training, values: dict[str, Any]) -> tuple[Any, float]:
    """The micro-batch that transformers' `auto_find_batch_size` comes to, and the seconds."""
    began = time.monotonic()
    search = {"auto_find_batch_size": True, "max_steps": SEARCH_STEPS}
    answer = train(training, {**values, **search}, {})
    return answer, time.monotonic() - began


def _next(answers: Any) -> Any:
    try:
        return answers.get(timeout=0.5)
    except queue.Empty:
        return None


def _child(
    training: Training, values: dict[str, Any], environment: dict[str, str], answers: Any
) -> None:
    os.environ.update(environment)
    os.chdir(training.scratch)
    try:
        answers.put(_trained(training, values))
    except (RuntimeError, MemoryError) as error:
        outcome = "oom" if should_reduce_batch_size(error) else "crash"
        answers.put({"outcome": outcome, "said": str(error)[:300]})


def _trained(training: Training, values: dict[str, Any]) -> dict[str, Any]:
    on_gpu = training.limit_bytes is not None
    if training.limit_bytes is not None:
        _, total = torch.cuda.mem_get_info()
        allowed_bytes = training.limit_bytes - OUTSIDE_BYTES
        torch.cuda.set_per_process_memory_fraction(allowed_bytes / total)
    trainer = trainer_of(training, values, "cuda" if on_gpu else "cpu")
    first = _FirstStep()
    trainer.add_callback(first)
    _warm_up(trainer)
    _synchronize(on_gpu)
    began = time.perf_counter()
    trainer.train()
    _synchronize(on_gpu)
    seconds = time.perf_counter() - began
    longest = trainer.args.max_length or max(training.lengths)
    tokens = sum(min(n, longest) for n in training.lengths)
    return {
        "outcome": "ok",
        "tokens_per_s": tokens / seconds if trainer.args.max_steps < 0 else None,
        "seconds": seconds,
        "first_step_s": None if first.ended is None else first.ended - began,
        "optimizer_steps": trainer.state.global_step,
        "micro_batch": trainer._train_batch_size,
        "reserved_peak_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
        "allocated_peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "allocator_retries": torch.cuda.memory_stats()["num_alloc_retries"] if on_gpu else None,
    }


class _FirstStep(TrainerCallback):
    """When the first optimizer step had ended: what a training's start took is seen from it."""

    ended: float | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            _synchronize(torch.cuda.is_initialized())
            self.ended = time.perf_counter()


def trainer_of(
    training: Training,
    values: dict[str, Any],
    device: str,
    trainer_class: type[SFTTrainer] = SFTTrainer,
) -> SFTTrainer:
    """TRL's trainer on random weights and random tokens, with values of `FIELDS`."""
    base = {
        "num_train_epochs": 1,
        "output_dir": str(training.scratch),
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        "use_cpu": device == "cpu",
    }
    parser = HfArgumentParser((SFTConfig, ModelConfig))
    arguments, model_arguments = parser.parse_dict({**values, **base})
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(training.config)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config,
            dtype=model_arguments.dtype,
            attn_implementation=model_arguments.attn_implementation,
        )
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(2, 250, (n,), generator=draw).tolist() for n in training.lengths]
    return trainer_class(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=_tokenizer(),
        peft_config=get_peft_config(model_arguments),
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Something that pads: the rows are tokens already."""
    words = {"<pad>": 0, "<eos>": 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def _warm_up(trainer: SFTTrainer) -> None:
    model = trainer.model
    with trainer.compute_loss_context_manager():
        row = torch.ones((1, 64), dtype=torch.long, device=model.device)
        model(input_ids=row, labels=row).loss.backward()
    model.zero_grad(set_to_none=True)


def _synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
