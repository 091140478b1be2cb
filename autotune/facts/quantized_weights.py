"""Which weights of a model bitsandbytes quantises: those of plain linear layers, less what
transformers' own rule keeps (the output head, what is tied, a classifier's last layer).

What is no linear layer stays as it is loaded; transformers 5 has the experts of a mixture as
parameters of three dimensions. Runs in a child only.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any


def quantised_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, layer) of each that is quantised."""
    import torch
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    excluded_names = HfQuantizer.get_modules_to_not_convert(
        model, None, model._keep_in_fp32_modules
    )
    for name, module in list(model.named_modules()):
        plain = type(module) is torch.nn.Linear or isinstance(module, Conv1D)
        if plain and should_convert_module(name, excluded_names):
            yield name, module


def unquantised_weights(model: Any) -> dict[str, int]:
    """Return how many weights stay as they are, by the last two parts of their names, most
    first."""
    packed = {id(layer.weight) for _, layer in quantised_layers(model)}
    sizes: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if id(parameter) not in packed:
            sizes[".".join(name.split(".")[-2:]).removesuffix(".weight")] += parameter.numel()
    return dict(sizes.most_common())
