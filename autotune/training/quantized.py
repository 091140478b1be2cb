"""Models of random weights on a quantised base, as transformers leaves one that it loaded.

transformers' own quantiser decides which linear modules bitsandbytes takes over, and packs them.
Weights are made and packed module by module, so that the whole model is never there unpacked.
Runs in a child only, where bitsandbytes is installed.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers.integrations.deepspeed as hf_deepspeed
from transformers.quantizers import AutoHfQuantizer
from trl import ModelConfig, get_quantization_config

from autotune.training.patching import replaced


def is_quantized(model: ModelConfig) -> bool:
    """True if the model is loaded with a quantised base."""
    return bool(model.load_in_4bit or model.load_in_8bit)


@contextlib.contextmanager
def built_whole() -> Iterator[None]:
    """Make models whole; DeepSpeed's stage 3 divides them afterwards."""
    with replaced(hf_deepspeed, "_hf_deepspeed_config_weak_ref", None):
        yield


def quantization_of(model: ModelConfig) -> Any:
    """Return how transformers is to load the model; None: as it is.

    Raises:
        ImportError: bitsandbytes is not installed.
    """
    try:
        return get_quantization_config(model)
    except ImportError as error:  # of the metadata: the message names no package to install
        bits = 4 if model.load_in_4bit else 8
        raise ImportError(
            f"a base in {bits} bits needs bitsandbytes, which is not installed"
        ) from error


def quantize_empty(bare: Any, model: ModelConfig, device: str) -> Any:
    """Give a model of the meta device random weights on `device`, its base quantised.

    Raises:
        ImportError: bitsandbytes is not installed.
        NotImplementedError: it has no kernels for this device.
    """
    quantizer = AutoHfQuantizer.from_config(quantization_of(model))
    try:
        quantizer.validate_environment()
    except RuntimeError as error:
        raise NotImplementedError(f"bitsandbytes cannot run here: {error}") from error
    kind = next(bare.parameters()).dtype
    quantizer.preprocess_model(bare, device_map={"": device})
    for name, module in list(bare.named_modules()):
        if hasattr(module, "source_cls"):  # transformers' mark of those that it replaced
            _fill(name, module, bare, quantizer, kind, device)
        else:
            module.to_empty(device=device, recurse=False)
    bare.tie_weights()
    bare.initialize_weights()
    bare.eval()  # as it is after loading
    bare.hf_quantizer = quantizer
    return quantizer.postprocess_model(bare)


def keep_trainable(model: Any) -> None:
    """Keep bitsandbytes from packing 4-bit weights anew where our own checks only look at outputs.

    It does so on CPUs with AVX512-BF16, for inference, and trains wrongly on such weights
    (0.50.2: gradients a twentieth of what they were, and no word).
    """
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = False


def _fill(name: str, module: Any, model: Any, quantizer: Any, kind: Any, device: str) -> None:
    shape = (module.out_features, module.in_features)
    weight = torch.empty(shape, dtype=kind, device=device).normal_(std=0.02)
    if module.source_cls is not torch.nn.Linear:  # transformers' Conv1D: packed the other way round
        weight = weight.T.contiguous()
    path = f"{name}.weight"
    packed = quantizer.get_quantize_ops().convert({path: weight}, full_layer_name=path, model=model)
    module.weight = packed[path]
    module.weight._is_hf_initialized = True
    if module.bias is not None:
        module.bias = torch.nn.Parameter(
            torch.zeros(module.out_features, dtype=kind, device=device), requires_grad=False
        )
    module._is_hf_initialized = True
