"""The same of PPOTrainer, whose `train` is one function.

It keeps the scores of every token that it generates until it has stacked them: those of tokens that
are not decoded here are made before that. Runs in a child only.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from trl.experimental.ppo import ppo_trainer

from autotune.estimate.rollout_phases import GENERATION, SCORING, Phases
from autotune.estimate.stand_ins import replaced
from autotune.estimate.trace import inner_model


class PpoPhases(Phases):
    """Generation, scoring, micro-steps and the optimizer's steps of updates."""

    def install(self) -> None:
        """Watch the trainer's own entry points."""
        trainer, accelerator = self._trainer, self._trainer.accelerator
        self._scores: list[torch.Tensor] = []
        self._rows = 0
        # A batch is all completions of an update, whatever part of them is trained on here.
        trainer.dataloader = DataLoader(
            [{"input_ids": [self._tracer.token] * n} for n in self._request.prompts],
            batch_size=len(self._request.prompts),
            collate_fn=trainer.data_collator,
        )
        trainer.policy_model.generate = self._generation(trainer.policy_model.generate)
        trainer.optimizer.step = self._optimizer(trainer.optimizer.step)
        accelerator.accumulate = self._accumulated(accelerator.accumulate)
        trainer.train = self._train(trainer.train)

    def _train(self, train: Any) -> Any:
        generate = ppo_trainer.batch_generation

        def generated(*args: Any, **kwargs: Any) -> Any:
            self._tracer.enter_phase(GENERATION)
            made = generate(*args, **kwargs)
            self._tracer.enter_phase(SCORING)
            return made

        def trained() -> None:
            with replaced(ppo_trainer, "batch_generation", generated):
                train()

        return trained

    def _generation(self, generate: Any) -> Any:
        def generated(generation_config: Any, **kwargs: Any) -> Any:
            self._rows = len(kwargs["input_ids"])
            few = copy.deepcopy(generation_config)
            few.max_new_tokens = few.min_new_tokens = self._tokens
            with self._decoding(self._trainer.policy_model):
                made = generate(generation_config=few, **kwargs)
            self._tracer.enter_phase(GENERATION)
            self._note("scoring")
            missing = self._length - self._tokens
            if missing:
                if self._tokens == 1:
                    self._make_up()
                made.scores += tuple(self._scores)
                self._scores = []
                shape = (len(made.sequences), missing)
                rest = torch.full(shape, self._tracer.token, dtype=made.sequences.dtype)
                made.sequences = torch.cat([made.sequences, rest], 1)
            return made

        return generated

    def _make_up(self) -> None:
        """The scores of the tokens that are not decoded."""
        model = inner_model(self._trainer.policy_model)
        shape = (self._rows, model.config.get_text_config().vocab_size)
        missing = range(self._length - self._tokens)
        self._scores = [torch.empty(shape, dtype=torch.float32) for _ in missing]

    def _accumulated(self, accumulate: Any) -> Any:
        @contextlib.contextmanager
        def accumulated(*models: Any) -> Iterator[None]:
            self._watch.begin()
            with accumulate(*models):
                yield
            self._watch.end("metrics")
            self._micro_step += 1

        return accumulated

    def _optimizer(self, step: Any) -> Any:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            if not self._trainer.accelerator.sync_gradients:
                return step(*args, **kwargs)
            update, self._tracer.works = self._tracer.works, []
            self._watch.on_pre_optimizer_step()
            result = step(*args, **kwargs)
            self._watch.on_optimizer_step()
            self._tracer.enter_phase("micro-step")  # what it logs is part of it
            self._tracer.works = update
            return result

        return stepped
