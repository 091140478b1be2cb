"""A candidate as a real `trl.SFTTrainer`.

The configuration goes through TRL's own parser, from the very YAML the bundle will hold, and the
trainer is put together as `trl/scripts/sft.py` does it; so what a probe trains is what the bundle
trains. The only differences are named in `PROBE_OVERRIDES`.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    SFTConfig,
    SFTTrainer,
    TrlParser,
    get_peft_config,
    get_quantization_config,
)

from autotune.facts.model import model_class
from autotune.probe.protocol import ProbeRequest
from autotune.training.batches import Batching

PROBE_OVERRIDES: dict[str, Any] = {
    # The rows come tokenized, truncated and packed, in the order in which they are to be timed.
    "dataset_kwargs": {"skip_prepare_dataset": True},
    "train_sampling_strategy": "sequential",
    "shuffle_dataset": False,
    "num_train_epochs": 1,
    # A probe leaves nothing behind and says nothing.
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "report_to": "none",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "resume_from_checkpoint": None,
}


def parse_config(config: dict[str, Any], scratch: Path) -> tuple[Any, SFTConfig, ModelConfig]:
    """(ScriptArguments, SFTConfig, ModelConfig) of a flat configuration, through TRL's parser.

    Raises:
        ValueError: TRL or transformers refuse a field or a combination.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / "sft_config.yaml"
    file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    script, training, model, _ = parser.parse_args_and_config(["--config", str(file)])
    return script, training, model


def batching_of(request: ProbeRequest, training: SFTConfig) -> Batching:
    """How the candidate makes micro-batches."""
    return Batching(
        micro_batch=training.per_device_train_batch_size,
        global_batch=request.global_batch,
        max_length=request.config.get("max_length"),
        padding_free=training.padding_free,
        packing=training.packing,
        packing_strategy=training.packing_strategy,
        keep_end=training.truncation_mode == "keep_end",
        grouped=request.config.get("train_sampling_strategy") == "group_by_length",
        pad_to_multiple_of=training.pad_to_multiple_of,
        seed=request.seed,
    )


def build_trainer(
    request: ProbeRequest,
    training: SFTConfig,
    model: ModelConfig,
    rows: Any,
    made: Any = None,
) -> SFTTrainer:
    """The trainer of a candidate on `rows`, its model on the device.

    Args:
        made: the model, where it has been made already (a trace has one without data).
    """
    revision = {} if Path(request.model_path).exists() else {"revision": model.model_revision}
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        request.model_path, trust_remote_code=training.trust_remote_code, **revision
    )
    source: Any = request.model_path
    if made is not None:
        source = made
    elif request.weights == "real":
        training.model_init_kwargs = model_kwargs(training, model)
    else:
        source = random_model(request, request.device_kind, **model_kwargs(training, model))
    return SFTTrainer(
        model=source,
        args=training,
        train_dataset=rows,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )


def model_kwargs(training: SFTConfig, model: ModelConfig) -> dict[str, Any]:
    """What TRL's script passes on to `from_pretrained`."""
    return {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }


def random_model(request: ProbeRequest, device: str, *, dtype: str, **kwargs: Any) -> Any:
    """The model of the same shape with random weights, made on `device` itself."""
    attention = kwargs.pop("attn_implementation")
    revision = {} if Path(request.model_path).exists() else {"revision": kwargs["revision"]}
    config = transformers.AutoConfig.from_pretrained(
        request.model_path, trust_remote_code=kwargs["trust_remote_code"], **revision
    )
    # As `from_pretrained` leaves it: what a Trainer asks the config for later.
    config.name_or_path = request.model_path
    kind = getattr(torch, dtype) if dtype != "auto" else (config.dtype or torch.float32)
    with torch.device(device):
        return model_class(config)._from_config(config, dtype=kind, attn_implementation=attention)


def rows_see_each_other(trainer: SFTTrainer) -> bool:
    """Whether, without padding, one row of a micro-batch changes what the model says of another.

    Flattened micro-batches of two rows differ in one token, first of the other row, then of the
    row itself; a row that is on its own answers to the second alone. A thousandth of its answer is
    let pass, for kernels whose rounding depends on the whole batch.
    """
    model = trainer.model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (1, 24), generator=generator).to(device)
    positions = torch.arange(12, device=device).repeat(2)[None]

    def answer(changed: int | None) -> torch.Tensor:
        """Logits of the second row, behind its first token."""
        tokens = ids.clone()
        if changed is not None:
            tokens[:, changed] = (tokens[:, changed] + 1) % vocabulary
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        return logits[:, 13:].double()

    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        as_is = answer(None)
        foreign, own = ((answer(changed) - as_is).abs().max() for changed in (11, 12))
    model.train(was_training)
    return bool(foreign > 1e-3 * own)
