"""Which models a method trains, and what is said of the others."""

import pytest
import transformers

from autotune.errors import UserError
from autotune.facts.model import check_architecture


def refused(config: transformers.PretrainedConfig, method: str = "sft") -> str:
    with pytest.raises(UserError) as error:
        check_architecture(config, method, "my-model")
    return str(error.value)


@pytest.mark.parametrize(
    "method", ["sft", "reward", "dpo", "kto", "grpo", "rloo", "distillation", "ppo"]
)
def test_no_method_trains_an_encoder_decoder(method: str) -> None:
    message = refused(transformers.T5Config(architectures=["T5ForConditionalGeneration"]), method)
    assert f"`method: {method}` does not train `T5ForConditionalGeneration`, which my-model is" in (
        message
    )
    assert "it reads one text and writes another, and the trainer gives it one" in message
    assert "transformers' Seq2SeqTrainer trains this one" in message


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.BertConfig(architectures=["BertForMaskedLM"]), "it fills in words"),
        (
            transformers.LlamaConfig(architectures=["LlamaForSequenceClassification"]),
            "it labels texts, and writes none",
        ),
        (transformers.Qwen2Config(architectures=["Qwen2Model"]), "it has no layer that gives"),
        (transformers.ViTConfig(), "transformers has no language model of the type `vit`"),
    ],
)
def test_what_does_not_go_on_with_a_text_is_refused_with_the_reason(
    config: transformers.PretrainedConfig, reason: str
) -> None:
    message = refused(config)
    assert reason in message
    assert "names an architecture ...ForCausalLM" in message


def test_a_classifier_is_trained_by_reward() -> None:
    config = transformers.LlamaConfig(architectures=["LlamaForSequenceClassification"])
    assert refused(config, "dpo").endswith("; `method: reward` trains it")
    check_architecture(config, "reward", "my-model")


@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(architectures=["LlamaForCausalLM"]),
        transformers.LlamaConfig(),
        transformers.GPT2Config(architectures=["GPT2LMHeadModel"]),
        transformers.Gemma3Config(architectures=["Gemma3ForConditionalGeneration"]),
        transformers.LlamaConfig(architectures=["SomebodysOwnForCausalLM"]),
    ],
)
def test_what_goes_on_with_a_text_is_trained(config: transformers.PretrainedConfig) -> None:
    check_architecture(config, "sft", "my-model")
