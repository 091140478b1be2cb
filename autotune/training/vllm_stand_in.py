"""An online trainer that takes vLLM's path, with transformers' generation in vLLM's place.

What the trainer does besides generating is TRL's own: it puts adapters and weights together for
vLLM, scores the completions once more for vLLM's importance sampling, and trains. vLLM itself is
not run. The completions come from the path that the trainer has without vLLM; what that holds is
given back before the training goes on.
"""

import gc
import math
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from autotune.process.out_of_memory import is_out_of_memory
from autotune.training.distributed import in_unison
from autotune.training.patching import replaced, require
from autotune.training.spec import Unsupported

Ids = list[list[int]]
TOO_LARGE = (
    "transformers' generation, which takes vLLM's place in a probe, does not fit on ranks that "
    "generate in step: what the training takes beside vLLM was not measured"
)


class StandIn(VLLMGeneration):
    """What an online trainer asks of vLLM."""

    def __init__(self, trainer: Any) -> None:
        require(VLLMGeneration, "_iter_named_params")
        require(type(trainer), "_generate_single_turn")
        self.model, self.accelerator = trainer.model, trainer.accelerator
        self._dist = getattr(trainer, "_dist", None)
        self._trainer = trainer
        self.parts = 1
        """Into how many a generation had to be divided, at most."""
        self._calls = 0

    def sync_weights(self) -> None:
        """Go over the weights as they would be given to vLLM, adapters merged."""
        for _ in self._iter_named_params():
            pass

    def generate(
        self, prompts: Ids, images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[Ids, Ids, Any, Any]:
        """Return completions with, for each token, a log-probability that is as good as any."""
        self._calls = 0
        completions = self._halved(prompts)
        self.parts = max(self.parts, self._calls)
        torch.cuda.empty_cache()
        even_logp = -math.log(self.model.config.get_text_config().vocab_size)
        return prompts, completions, [[[even_logp]] * len(ids) for ids in completions], None

    def _halved(self, prompts: Ids) -> Ids:
        """Return all at once; where that does not fit, half of them after the other half.

        Raises:
            Unsupported: it does not fit on a rank whose peers wait for it at every token.
        """
        try:
            ids = self._by_transformers(prompts)
            self._calls += 1
            return ids
        except (RuntimeError, MemoryError) as error:
            if len(prompts) == 1 or not is_out_of_memory(error):
                raise
            if in_unison(self._trainer):
                raise Unsupported(TOO_LARGE) from error
        gc.collect()
        torch.cuda.empty_cache()
        half = len(prompts) // 2
        return self._halved(prompts[:half]) + self._halved(prompts[half:])

    def _by_transformers(self, prompts: Ids) -> Ids:
        trainer = self._trainer
        with replaced(trainer, "use_vllm", False):
            output = type(trainer)._generate_single_turn(trainer, prompts, None, {})
        ids: Ids = output[0] if isinstance(output, tuple) else output
        return ids


def on_vllms_path(trainer: Any) -> Any:
    """Return the trainer, made for transformers' generation, as it would be with vLLM."""
    trainer.vllm_generation = StandIn(trainer)
    trainer.use_vllm = trainer.args.use_vllm = True
    trainer._last_loaded_step = -1
    return trainer
