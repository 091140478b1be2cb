"""Tells the tracer what PPOTrainer is doing, whose `train` is one function.

It keeps the scores of every token that it generates until it has stacked them: those of tokens that
are not decoded here are made before that. Runs in a child only.
"""

import contextlib
import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader
from trl.experimental.ppo import ppo_trainer

from autotune.estimate.records.decoding import GENERATION
from autotune.estimate.records.events import MICRO_STEP
from autotune.estimate.tracing.rollout_phases import SCORING, Phases
from autotune.estimate.tracing.trace import inner_model
from autotune.training.patching import replaced


class PpoPhases(Phases):
    """Generation, scoring, micro-steps and the optimizer's steps of updates."""

    def install(self) -> None:
        """Watch the trainer's own entry points."""
        trainer, accelerator = self._trainer, self._trainer.accelerator
        model = inner_model(trainer.policy_model)
        self._vocabulary = model.config.get_text_config().vocab_size
        self._scores: list[torch.Tensor] = []
        self._rows = self._parts = self._part = 0
        self._logits, self._score = (torch.bfloat16, self._vocabulary), torch.bfloat16
        # A batch is all completions of an update, whatever part of them is trained on here; what
        # the first update leaves behind is there during the second.
        rows = [{"input_ids": [self._tracer.token] * n} for n in self._request.prompts]
        trainer.dataloader = DataLoader(
            rows, batch_size=len(rows), collate_fn=trainer.data_collator
        )
        trainer.policy_model.generate = self._generation(trainer.policy_model.generate)
        trainer.optimizer.step = self._optimizer(trainer.optimizer.step)
        accelerator.accumulate = self._accumulated(accelerator.accumulate)
        trainer.train = self._train(trainer.train)

    def _train(self, train: Any) -> Any:
        batches, part = ppo_trainer.batch_generation, ppo_trainer.generate

        def generate_in_phases(model: Any, queries: Any, size: int, *args: Any) -> Any:
            self._parts, self._part = -(-len(queries) // size), -1
            self._tracer.enter_phase(GENERATION)
            completions = batches(model, queries, size, *args)
            self._tracer.enter_phase(SCORING)
            self._part = -1
            return completions

        def of_a_part(model: Any, queries: Any, *args: Any) -> Any:
            self._part += 1
            if not self._left_out:
                return part(model, queries, *args)
            logits = torch.empty((len(queries), self._length, self._vocabulary))
            return torch.cat([queries, self._tokens_of(queries, self._length)], 1), logits

        def train_in_phases() -> None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(replaced(ppo_trainer, "batch_generation", generate_in_phases))
                stack.enter_context(replaced(ppo_trainer, "generate", of_a_part))
                stack.enter_context(replaced(ppo_trainer, "forward", self._reference()))
                stack.enter_context(replaced(ppo_trainer, "get_reward", self._judges()))
                train()

        return train_in_phases

    @property
    def _left_out(self) -> bool:
        """True if this part of the completions takes no more than the last one, beside which all
        others are kept: only that is generated and scored."""
        return not self._all_tokens and self._part < self._parts - 1

    def _reference(self) -> Any:
        forward = ppo_trainer.forward

        def refer_in_phase(model: Any, responses: Any, *args: Any) -> Any:
            if self._tracer.phase != SCORING:
                return forward(model, responses, *args)
            self._part += 1
            if self._left_out:
                kind, words = self._logits
                return SimpleNamespace(logits=torch.empty((*responses.shape, words), dtype=kind))
            self.work["judging"] = []
            with self._judging():
                output = forward(model, responses, *args)
            self._logits = output.logits.dtype, output.logits.shape[-1]
            return output

        return refer_in_phase

    def _judges(self) -> Any:
        get_reward = ppo_trainer.get_reward

        def judge_in_phase(model: Any, responses: Any, *args: Any) -> Any:
            if self._left_out:
                per_token, per_row = (*responses.shape, 1), (len(responses),)
                return *(
                    torch.empty(size, dtype=self._score) for size in (per_token, per_row)
                ), None
            with self._judging():
                scores = get_reward(model, responses, *args)
            self._score = scores[0].dtype
            return scores

        return judge_in_phase

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Count the work done here as done for each part."""
        outer_works, self._tracer.works = self._tracer.works, self.work["judging"]
        yield
        self._tracer.works = outer_works

    def _generation(self, generate: Any) -> Any:
        def generate_in_phases(generation_config: Any, **kwargs: Any) -> Any:
            self._rows = len(kwargs["input_ids"])
            few_tokens_config = copy.deepcopy(generation_config)
            few_tokens_config.max_new_tokens = few_tokens_config.min_new_tokens = self._tokens
            with self._decode_in_phases(self._trainer.policy_model):
                completions = generate(generation_config=few_tokens_config, **kwargs)
            self._tracer.enter_phase(GENERATION)
            self._note("scoring")
            missing = self._length - self._tokens
            if missing:
                if self._tokens == 1:
                    self._make_up()
                completions.scores += tuple(self._scores)
                self._scores = []
                missing_tokens = self._tokens_of(completions.sequences, missing)
                completions.sequences = torch.cat([completions.sequences, missing_tokens], 1)
            return completions

        return generate_in_phases

    def _tokens_of(self, rows: Any, count: int) -> Any:
        return torch.full((len(rows), count), self._tracer.token, dtype=rows.dtype)

    def _make_up(self) -> None:
        """Make the scores of the tokens that are not decoded."""
        shape = (self._rows, self._vocabulary)
        missing = range(self._length - self._tokens)
        self._scores = [torch.empty(shape, dtype=torch.float32) for _ in missing]

    def _accumulated(self, accumulate: Any) -> Any:
        @contextlib.contextmanager
        def accumulate_in_phase(*models: Any) -> Iterator[None]:
            self._step_phases.begin()
            with accumulate(*models):
                yield
            self._step_phases.end("metrics")
            self._micro_step += 1

        return accumulate_in_phase

    def _optimizer(self, step: Any) -> Any:
        def step_in_phase(*args: Any, **kwargs: Any) -> Any:
            if not self._trainer.accelerator.sync_gradients:
                return step(*args, **kwargs)
            update, self._tracer.works = self._tracer.works, []
            self._step_phases.on_pre_optimizer_step()
            result = step(*args, **kwargs)
            self._step_phases.on_optimizer_step()
            self._tracer.enter_phase(MICRO_STEP)  # what it logs is part of it
            self._tracer.works = update
            return result

        return step_in_phase
