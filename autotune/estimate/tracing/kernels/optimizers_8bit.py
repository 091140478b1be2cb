"""bitsandbytes' optimizers on tensors without data: the state that they keep, and no more.

Source: bitsandbytes 0.50, optim/optimizer.py: moments of a byte each with a float32 maximum for
every 256 of them; in float32 for parameters of fewer than 4096 numbers, and for embeddings, which
transformers' Trainer asks for. Paged ones keep moments of more than 10^5 numbers in memory that the
driver moves between host and GPU: outside the allocator, and not counted. On a GPU its step makes
nothing; on a CPU (backends/cpu/ops.py) it computes on copies in float32, which are made here for
Adam. The library itself is not asked, so that it need not be there.
Runs in a child only.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from autotune.training.patching import replaced

BLOCK, SMALLEST, PAGED = 256, 4096, 10**5
MOMENTS = {"adam": 2, "lion": 1, "rmsprop": 1}
"""Moments that an optimizer keeps, by a word in its name."""


def moments_of(optim: str) -> int | None:
    """Return how many moments an optimizer of bitsandbytes keeps; None of those that are not its
    own."""
    eight = "8bit" in optim and optim != "adamw_torch_8bit"
    if not (eight or "paged" in optim or "bnb" in optim) or "ademamix" in optim:
        return None
    return next((count for word, count in MOMENTS.items() if word in optim), None)


@contextlib.contextmanager
def bitsandbytes_optimizers(*, on_cuda: bool) -> Iterator[None]:
    """Trainers get the stand-in where they ask for one of bitsandbytes' optimizers."""
    original = transformers.Trainer.get_optimizer_cls_and_kwargs

    def optimizer_class(args: Any, model: Any = None) -> Any:
        optim = getattr(args.optim, "value", args.optim)
        moments = moments_of(str(optim))
        if moments is None:
            return original(args, model)
        embeddings = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        return StandIn, {
            "lr": args.learning_rate,
            "moments": moments,
            "eight_bit": "8bit" in optim,
            "paged": on_cuda and "paged" in optim,
            "copies": not on_cuda,
            "wide": frozenset(id(embedding.weight) for embedding in embeddings),
        }

    with replaced(
        transformers.Trainer, "get_optimizer_cls_and_kwargs", staticmethod(optimizer_class)
    ):
        yield


class StandIn(torch.optim.Optimizer):
    """Keeps what such an optimizer keeps, and reads and writes it."""

    def __init__(
        self,
        params: Any,
        lr: float,
        moments: int,
        eight_bit: bool,
        paged: bool,
        copies: bool,
        wide: frozenset[int],
    ) -> None:
        super().__init__(params, {"lr": lr})
        self._moments, self._eight_bit, self._paged, self._wide = moments, eight_bit, paged, wide
        self._copies = copies

    def step(self, closure: Any = None) -> None:
        """Moments of every parameter that has a gradient."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter)

    def _update(self, parameter: Any) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._new_state(parameter))
        for moment in state.values():
            moment.add_(1)
        if self._copies:
            _compute_on_copies(parameter, [m for name, m in state.items() if "moment" in name])
        parameter.mul_(1)
        parameter.grad.mul_(1)

    def _new_state(self, parameter: Any) -> dict[str, Any]:
        narrow = self._eight_bit and id(parameter) not in self._wide
        narrow = narrow and parameter.numel() >= SMALLEST
        kind = torch.uint8 if narrow else torch.float32
        state: dict[str, Any] = {}
        for n in range(self._moments):
            if not (self._paged and parameter.numel() >= PAGED):
                state[f"moment {n}"] = torch.zeros_like(parameter, dtype=kind)
            if narrow:
                blocks = -(-parameter.numel() // BLOCK)
                state[f"maxima {n}"] = torch.zeros(blocks, device=parameter.device)
        return state


def _compute_on_copies(parameter: Any, moments: list[Any]) -> None:
    """What the step of Adam makes on a CPU."""
    wide_moments = [
        m if m.dtype is torch.float32 else torch.empty_like(m, dtype=torch.float32) for m in moments
    ]
    gradient = parameter.grad.float() * 1.0
    copy = parameter.detach().float()
    if moments[0].dtype is torch.float32:
        update = wide_moments[0] / (wide_moments[-1].sqrt() + 1.0)
    else:
        update = wide_moments[-1].sqrt() / 1.0
    del gradient, copy, update
