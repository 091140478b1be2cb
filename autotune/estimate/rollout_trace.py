"""Two optimizer steps of a real online trainer under FakeTensorMode: generation, scoring, update.

The trainer is the one that probes use, and generation is transformers' own. Of a completion only
the first tokens are decoded, in the first step only one; then the trainer goes on as if all had
been (`decoding.py` puts in what the second step left out). What rewards completions by a function
costs nothing here; reward models run.
Runs in a child only.
"""

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader

from autotune.estimate import record
from autotune.estimate.cuda_rules import CudaRules
from autotune.estimate.eight_bit import bitsandbytes_optimizers
from autotune.estimate.protocol import RolloutTraceReply, RolloutTraceRequest, TraceRequest
from autotune.estimate.quantized import adapters_on_quantized
from autotune.estimate.regions import watch_layers
from autotune.estimate.stand_ins import fake_run, replaced
from autotune.estimate.trace import (
    Watch,
    asked_probe,
    inner_model,
    materialize,
    models_of,
    trace_config,
)
from autotune.estimate.tracer import Tracer
from autotune.training.families import family

STEPS = 2
GENERATION, DECODE, SCORING = "generation", "decode", "scoring"


def trace_rollout(request: RolloutTraceRequest) -> RolloutTraceReply:
    """Run the steps of `request` on fake tensors.

    Raises:
        Irregular: fewer layers are asked for, and they cannot stand for all.
        Exception: whatever the stack raises where the candidate cannot be traced.
    """
    cuda = None if request.cuda is None else CudaRules(**request.cuda)
    asked = as_trace(request)
    with tempfile.TemporaryDirectory(prefix="autotune-trace-") as scratch:
        config = trace_config(asked, Path(scratch))
        _, training, model = family(request.method).parse(config, Path(scratch))
        training.max_steps = STEPS
        made = models_of(asked, training, model)
        made = dataclasses.replace(made, rewards=free_rewards(made.rewards))
        tracer = Tracer(made.policy.config.get_text_config().vocab_size, cuda)
        with contextlib.ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(fake_run(tracer, cuda))
            stack.enter_context(bitsandbytes_optimizers(on_cuda=cuda is not None))
            stack.enter_context(adapters_on_quantized(on_cuda=cuda is not None))
            for one in made.all():
                materialize(one, tracer)
            with tracer:
                rows = asked_prompts(request)
                trainer = family(request.method).trainer(
                    asked_probe(asked), training, model, rows, made
                )
                for parameter in trainer.model.parameters():
                    tracer.count_as(parameter, record.WEIGHTS)
            layers = watch_layers(tracer, inner_model(trainer.model))
            for one in made.all()[1:]:
                watch_layers(tracer, one)
            watch = Watch(tracer, trainer, [request.micro_steps] * STEPS)
            phases = Phases(tracer, trainer, request)
            phases.install()
            stack.enter_context(tracer)
            trainer.train()
        del trainer
    work = {**phases.work, "update": watch.micro_work[-1], "optimizer": watch.optimizer_work}
    return RolloutTraceReply(
        events=tracer.finish(),
        layers=layers,
        work={name: [dataclasses.astuple(w) for w in works] for name, works in work.items()},
        policy=dict(tracer.policy),
    )


def as_trace(request: RolloutTraceRequest) -> TraceRequest:
    """What both kinds of trace have in common."""
    return TraceRequest(
        method=request.method,
        config=request.config,
        model_path=request.model_path,
        layers=request.layers,
        cuda=request.cuda,
        steps=[],
        accumulation=request.micro_steps,
        seed=request.seed,
    )


def free_rewards(rewards: list[Any]) -> list[Any]:
    """As many, the functions among them replaced by one that costs nothing."""
    return [one if isinstance(one, torch.nn.Module) else no_reward for one in rewards]


def no_reward(completions: list[Any], **_: Any) -> list[float]:
    """In place of the functions that reward completions."""
    return [float(index % 2) for index in range(len(completions))]


def asked_prompts(request: RolloutTraceRequest) -> Any:
    """A row for each prompt; their tokens are made up later."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": str(index)} for index in range(len(request.prompts))])


class Phases:
    """Tells the tracer when generation and scoring begin; makes completions whole."""

    def __init__(self, tracer: Tracer, trainer: Any, request: RolloutTraceRequest) -> None:
        self._tracer, self._trainer, self._request = tracer, trainer, request
        self.work: dict[str, list[record.Work]] = {}
        self._micro_step = 0
        self._whole = request.tokens >= request.config["max_completion_length"]
        self._decoded = 0
        special = {trainer._tokenizer.eos_token_id, trainer._tokenizer.pad_token_id}
        tracer.token = next(n for n in range(len(special) + 1) if n not in special)

    def install(self) -> None:
        """Watch the trainer's own entry points."""
        trainer, request = self._trainer, self._request
        group = trainer.num_generations
        rows = [{"prompt": str(n)} for n in range(len(request.prompts)) for _ in range(group)]
        rows = rows[: request.config["generation_batch_size"]]

        def loader() -> Any:
            micro_steps = STEPS * request.micro_steps
            return DataLoader([rows] * micro_steps, batch_size=None, collate_fn=lambda batch: batch)

        trainer.get_train_dataloader = loader
        trainer._tokenize_prompts = self._tokenized
        trainer._generate_single_turn = self._generation(trainer._generate_single_turn)
        trainer._generate_and_score_completions = self._scoring(
            trainer._generate_and_score_completions
        )
        trainer.training_step = self._step(trainer.training_step)

    def _tokenized(self, prompts: Any) -> Any:
        lengths = self._request.prompts
        return [[self._tracer.token] * lengths[int(prompt)] for prompt in prompts], None, {}

    @property
    def _opening(self) -> bool:
        """Whether this is the first step, which only makes the optimizer's state."""
        return self._micro_step < self._request.micro_steps

    def _note(self, name: str) -> None:
        """Work from here on belongs to `name`."""
        self.work[name] = self._tracer.works = []

    @property
    def _tokens(self) -> int:
        return 1 if self._opening and not self._whole else self._request.tokens

    def _generation(self, generate: Any) -> Any:
        model = self._trainer.model
        length, token = self._request.config["max_completion_length"], self._tracer.token

        def decoding(*_: Any, **__: Any) -> None:
            """Before each forward pass of a generation."""
            if self._decoded == 0 or self._whole or not self._opening:
                self._tracer.enter_phase(GENERATION if self._decoded == 0 else DECODE)
            if self._decoded == 0:
                self._note("prefill")
            elif self._decoded < self._request.tokens - 1 or self._decoded == 1:
                self.work["before"] = self.work.get("decode", [])
                self._note("decode")
            else:
                self._note("last")
            self._decoded += 1

        def generated(*args: Any, **kwargs: Any) -> Any:
            self._decoded = 0
            tokens = dict.fromkeys(("max_new_tokens", "min_new_tokens"), self._tokens)
            self._trainer.generation_kwargs |= tokens
            self._trainer.generation_config.update(**tokens)
            before = self._tracer.phase
            handle = inner_model(model).register_forward_pre_hook(decoding)
            made = generate(*args, **kwargs)
            handle.remove()
            self._tracer.enter_phase(before)
            self._note("scoring")
            # GRPO answers with log-probabilities beside them.
            pair = isinstance(made, tuple)
            whole = [[*ids, *[token] * (length - len(ids))] for ids in (made[0] if pair else made)]
            return (whole, *made[1:]) if pair else whole

        return generated

    def _scoring(self, score: Any) -> Any:
        args, config = self._trainer.args, self._request.config

        def scored(*given: Any, **kwargs: Any) -> Any:
            update = self._tracer.works
            self._tracer.enter_phase(SCORING)
            self._note("scoring")
            # It asks whether generation and optimizer steps begin together.
            real = config["gradient_accumulation_steps"]
            with replaced(args, "gradient_accumulation_steps", real):
                output = score(*given, **kwargs)
            self._tracer.enter_phase("micro-step")
            self._tracer.works = update
            return output

        return scored

    def _step(self, training_step: Any) -> Any:
        trainer, request = self._trainer, self._request

        def step(*args: Any, **kwargs: Any) -> Any:
            first = self._micro_step % request.micro_steps == 0
            again = request.again and (self._whole or not self._opening)
            trainer._step = 0 if first or again else 1
            loss = training_step(*args, **kwargs)
            self._micro_step += 1
            return loss

        return step
