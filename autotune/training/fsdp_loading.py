"""Models of random weights where FSDP divides them: made as a launch loads real ones."""

import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate import init_empty_weights


def whole_on_first_rank(make: Callable[[str], Any]) -> Any:
    """Return a model on the host, with weights on the first rank only; the others have room for
    them, of which nothing is touched, until FSDP gives each its part.

    That is what transformers does with `fsdp_cpu_ram_efficient_loading`.

    Args:
        make: makes the model on a device.
    """
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        return make("cpu")
    with init_empty_weights(include_buffers=False):
        model = make("cpu")
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                room = torch.empty_like(weight, device="cpu")
                module._parameters[name] = torch.nn.Parameter(room, weight.requires_grad)
    model.tie_weights()
    return model
