#!/usr/bin/env python
"""Trains with TRL's PPOTrainer as a YAML file says; TRL itself has no `trl ppo`.

    accelerate launch --config_file accelerate.yaml train_ppo.py --config ppo_config.yaml

The file holds fields of TRL's PPOConfig, ModelConfig and ScriptArguments. Needs TRL up to 1.12, the
last that has PPO. What PPOTrainer passes over is done here: checkpointing, mixed precision,
`max_steps` (its steps are updates: one generation, trained on `num_ppo_epochs` times), the order
of the rows, adapters on a base in 4 bits, saving from several processes.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from accelerate import PartialState
from datasets import load_dataset
from peft import get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trl import (
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_peft_config,
    get_quantization_config,
)

try:
    from trl.experimental.ppo import PPOConfig, PPOTrainer
except ModuleNotFoundError:
    reason = "TRL has PPO up to 1.12: `pip install trl==1.12.0`, in an environment of its own"
    raise SystemExit(f"train_ppo.py: {reason}") from None

UNUSED = ("<|finetune_right_pad_id|>", "<|reserved_special_token_0|>")
"""Tokens that are in vocabularies for such purposes."""


@dataclass
class PPOScriptArguments(ScriptArguments):
    """Fields that neither PPOConfig nor ModelConfig has."""

    copy_reference: bool = field(
        default=False,
        metadata={"help": "With adapters: a reference of its own, not the policy without them."},
    )
    full_responses: bool = field(
        default=False,
        metadata={"help": "Look for no stop token: every response has its full length."},
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Whether code that comes with models is run."},
    )


class SavingTrainer(PPOTrainer):
    """Saves among several processes, too: PPOTrainer takes what DDP has wrapped for its models, and
    lacks what transformers' Trainer asks of itself there."""

    model: Any
    is_distributed_loading_by_transformers = False

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the policy."""
        with self._unwrapped():
            super().save_model(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._unwrapped():
            super()._save_checkpoint(*args, **kwargs)

    @contextlib.contextmanager
    def _unwrapped(self) -> Iterator[None]:
        wrapped, self.model = self.model, self.accelerator.unwrap_model(self.model)
        try:
            yield
        finally:
            self.model = wrapped


def main() -> None:
    """Train, and save the policy."""
    parser = TrlParser((PPOScriptArguments, PPOConfig, ModelConfig))
    script, training, model = parser.parse_args_and_config()
    if script.full_responses:
        training.stop_token = training.stop_token_id = None
    rows = load_dataset(script.dataset_name, name=script.dataset_config)
    tokenizer = load_tokenizer(script, model)
    samples = rows[script.dataset_test_split] if training.eval_strategy != "no" else None
    trainer = make_trainer(
        training,
        model,
        tokenizer,
        load_models(script, training, model),
        tokenized(rows[script.dataset_train_split], tokenizer),
        None if samples is None else tokenized(samples, tokenizer),
    )
    trainer.train()
    trainer.save_model(training.output_dir)
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)


def load_tokenizer(script: Any, model: Any) -> Any:
    """Return the policy's; PPOTrainer wants the padding on the left."""
    return prepared_tokenizer(
        AutoTokenizer.from_pretrained(
            model.model_name_or_path,
            revision=model.model_revision,
            trust_remote_code=script.trust_remote_code,
        )
    )


def prepared_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer with padding on the left, and a token for it that the model knows, if
    any."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        vocabulary, unused = tokenizer.get_vocab(), [*UNUSED, tokenizer.unk_token]
        tokenizer.pad_token = next((token for token in unused if token in vocabulary), "[PAD]")
    return tokenizer


def tokenized(rows: Any, tokenizer: Any) -> Any:
    """Token ids of the prompts: text, or conversations in the model's own template."""

    def ids(batch: Any) -> Any:
        prompts = batch["prompt"]
        if isinstance(prompts[0], str):
            return {"input_ids": tokenizer(text=prompts)["input_ids"]}
        turns = tokenizer.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return {"input_ids": turns["input_ids"]}

    return rows.map(ids, batched=True, remove_columns=rows.column_names)


def load_models(script: Any, training: Any, model: Any) -> dict[str, Any]:
    """Policy, reference, reward and value model. The reference of adapters is the policy without
    them; the value model begins as the reward model.

    Only the policy, and a reference of its own, have a quantised base: the value model is trained
    whole, and a reward model judges as it was trained to.

    Raises:
        ImportError: bitsandbytes, which quantises, is not installed.
    """
    kinds = {
        "trust_remote_code": script.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    policy_kinds: dict[str, Any] = {**kinds, "revision": model.model_revision}
    quantization = get_quantization_config(model)
    if quantization is not None:
        policy_kinds["quantization_config"] = quantization

    def policy() -> Any:
        return AutoModelForCausalLM.from_pretrained(model.model_name_or_path, **policy_kinds)

    def judge() -> Any:
        path = training.reward_model_path
        return AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, **kinds)

    needs_copy = script.copy_reference or not model.use_peft
    return {
        "model": policy(),
        "ref_model": policy() if needs_copy else None,
        "reward_model": judge(),
        "value_model": judge(),
    }


def make_trainer(
    training: Any, model: Any, tokenizer: Any, models: dict[str, Any], rows: Any, samples: Any
) -> Any:
    """Return the trainer, on tokenized rows; `samples` are shown with their responses now and then.

    Raises:
        ValueError: the models do not know all tokens that they will see.
    """
    check_vocabularies(tokenizer, models)
    # It makes an Accelerator of its own, which looks nowhere else for these.
    precision = "bf16" if training.bf16 else "fp16" if training.fp16 else "no"
    os.environ["ACCELERATE_MIXED_PRECISION"] = precision
    if training.max_steps > 0:
        rows_of_a_step = training.per_device_train_batch_size * training.gradient_accumulation_steps
        training.total_episodes = training.max_steps * rows_of_a_step * PartialState().num_processes
    if _checkpointing(training, ""):
        for trained_model in (models["model"], models["value_model"]):
            trained_model.gradient_checkpointing_enable(_checkpointing(training, "_kwargs"))
    for name in ("ref_model", "reward_model"):
        if models[name] is not None:
            models[name].eval()
    if models["ref_model"] is not None:
        compute_as_in_training(models["ref_model"])
    adapters = get_peft_config(model)
    if adapters is not None:
        # PPOTrainer would cast norms and head of a 4-bit policy apart, and could not generate then.
        models = {**models, "model": get_peft_model(models["model"], adapters)}
    trainer = SavingTrainer(
        args=training,
        processing_class=tokenizer,
        train_dataset=rows,
        eval_dataset=samples,
        **models,
    )
    # Else it would step in each micro-step of the last batch of the data.
    trainer.accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False
    if training.train_sampling_strategy == "sequential":
        batches = torch.utils.data.DataLoader(
            rows,
            batch_size=training.local_batch_size,
            collate_fn=trainer.data_collator,
            drop_last=True,
        )
        trainer.dataloader = trainer.accelerator.prepare(batches)
    return trainer


def compute_as_in_training(reference: Any) -> None:
    """PPOTrainer keeps the policy in `train()`; on CPUs bitsandbytes' layers compute otherwise in
    `eval()`: 8 bits by other kernels, 4 bits packed anew, which not all shapes can be."""
    for module in reference.modules():
        if type(module).__module__.startswith("bitsandbytes."):
            module.train()


def check_vocabularies(tokenizer: Any, models: dict[str, Any]) -> None:
    """PPOTrainer shows the policy's tokens to all models.

    Raises:
        ValueError: one of them does not know them all, or the token of the padding.
    """
    words = {name: _words(m) for name, m in models.items() if m is not None}
    for name in ("reward_model", "value_model"):
        if words[name] < words["model"]:
            raise ValueError(
                f"the {name} knows {words[name]} tokens, the policy {words['model']}: PPO wants a "
                "reward model with the policy's tokenizer"
            )
    if tokenizer.pad_token_id >= words["model"]:
        raise ValueError("the tokenizer has no token for padding; give it one that the model knows")


def _words(model: Any) -> int:
    count: int = model.config.get_text_config().vocab_size
    return count


def _checkpointing(training: Any, part: str) -> Any:
    """Return the setting of checkpointing, by the field's older or newer name."""
    newer = getattr(training, f"activation_checkpointing{part}", None)
    return getattr(training, f"gradient_checkpointing{part}", None) if newer is None else newer


if __name__ == "__main__":
    main()
