"""Whether a method trains models of an architecture, and why not. Runs in a child only."""

from typing import Any

from autotune.errors import user_error
from autotune.job.methods import METHODS

_TRAINED = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
"""What transformers lists the architectures for that go on with a text."""
_OTHERS = {
    "MASKED_LM": ("it fills in words that are masked, and does not go on with a text", ""),
    "SEQUENCE_CLASSIFICATION": ("it labels texts, and writes none", "; `method: reward` trains it"),
}
"""What else they are for: why they are not trained, and what trains them."""
_NO_HEAD = "it has no layer that gives the next word"


def check_architecture(config: Any, method: str, name: str) -> None:
    """Hold a model's configuration against what the method's trainer takes.

    Args:
        config: of transformers.
        name: what the user called the model.

    Raises:
        UserError: the trainer does not train such a model.
    """
    found = _why_not(config, METHODS[method].classifier)
    if found is None:
        return
    reason, trained_by = found
    architecture = (config.architectures or [config.model_type])[0]
    raise user_error(
        f"`method: {method}` does not train `{architecture}`, which {name} is: {reason}",
        hint=f"take a model whose config.json names an architecture ...ForCausalLM{trained_by}",
    )


def _why_not(config: Any, classifier: bool) -> tuple[str, str] | None:
    """(Why a model is not trained, what trains it); None: it is."""
    import transformers
    from transformers.models.auto import modeling_auto

    if config.is_encoder_decoder:
        reason = "it reads one text and writes another, and the trainer gives it one"
        return reason, "; transformers' Seq2SeqTrainer trains this one"
    if classifier:
        return None  # made of what the type has
    name = (config.architectures or [""])[0]
    if not hasattr(transformers, name):
        if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            return None
        return f"transformers has no language model of the type `{config.model_type}`", ""

    def listed_for(task: str) -> bool:
        # By name: the classes of a mapping are imported one by one, which takes seconds.
        return name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values()

    if any(map(listed_for, _TRAINED)):
        return None
    return next((why for task, why in _OTHERS.items() if listed_for(task)), (_NO_HEAD, ""))
