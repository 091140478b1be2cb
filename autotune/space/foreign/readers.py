"""What no table can place: which method a tool's file says, what is trained, and on what data.
Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.facts.known_models import known_model
from autotune.facts.stack import missing, training_fields
from autotune.job.methods import METHODS
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.foreign import datasets
from autotune.space.foreign.fields import LEARNING, MEMORY, NOTHING
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import (
    ALL_LINEAR,
    AXOLOTL,
    COMPONENT,
    LLAMA_FACTORY,
    TORCHTUNE,
    TRL,
    UNSLOTH,
    Tool,
)
from autotune.space.job_file.online import is_reward
from autotune.space.knobs import ACCUMULATION, MINI_BATCHES
from autotune.space.sharding.sharding import RESHARD

_FOUR, _EIGHT = _BITS = ("load_in_4bit", "load_in_8bit")
_SWITCHES = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16", "float16")}


def _read_model(reading: Reading, field: str, *, folder: bool = False) -> None:
    """Read the model; a folder that is not here by its last name, if that is well known."""
    given = reading.given(field)
    if not isinstance(given, str):
        return
    last = given.rstrip("/").rpartition("/")[2]
    known = known_model(last)
    folder = folder or given.startswith(("/", ".", "~"))
    if folder and not reading.exists(given) and known is not None:
        detail = f"model: {known.hub_id}, by its name"
        reading.carry(field, "model", known.hub_id, detail=detail)
        reading.assumed.append(f"model: {known.hub_id} (`{given}` is not here)")
    else:
        reading.carry(field, "model", given)


def _read_precision(reading: Reading, *, default: str) -> None:
    """Read mixed precision, of its switches.

    Args:
        default: what the tool does where none is given.
    """
    names = [name for both in _SWITCHES.values() for name in both]
    given = [name for name in names if reading.given(name) is not None]
    # Axolotl sets them to words, too.
    mixed = [n for n in given if reading.given(n) in ("auto", "full") or reading.is_on(n)]
    on = [kind for kind, both in _SWITCHES.items() if set(both) & set(mixed)]
    if len(on) == 2:
        reading.assumed.append("precision: bf16 (`fp16` is on, too: transformers refuses both)")
    if not given and default != "auto":
        reading.assume("precision", default, f"default of {reading.tool.name}")
    for name in given:
        reading.carry(name, "precision", on[0] if on else "fp32")
    if given:
        reading.ends(names, "precision")


def _set_half(reading: Reading, why: str) -> None:
    """Load the weights in the type of mixed precision."""
    half = "float16" if reading.job.get("precision") == "fp16" else "bfloat16"
    reading.assume("fixed.dtype", half, why)


def _set_tuning(reading: Reading, tuning: str, fields: tuple[str, ...], why: str) -> None:
    """Set what is trained: as one of the fields says, or as the tool does by default."""
    said = next((name for name in fields if reading.given(name) is not None), None)
    if said is not None:
        reading.carry(said, "tuning", tuning)
    elif why:
        reading.assume("tuning", tuning, why)
    if reading.is_on(_EIGHT) and tuning == "qlora":
        reading.carry(_EIGHT, f"fixed.{_EIGHT}", True)
    reading.ends((*fields, *_BITS), f"tuning: {tuning}")


def _read_length(reading: Reading, field: str, default: int) -> None:
    if reading.method.online:
        reading.longest = reading.counted(field, default)
    if reading.given(field) is not None:
        reading.apply(field)
    elif not reading.method.online:
        reading.assume("max_length", default, f"default of {reading.tool.name}")


# Axolotl


def _read_axolotl(reading: Reading) -> None:
    reading.ends(("rl", "reward_model"), f"method: {reading.method.name}")
    if reading.given("rl") == "ipo":
        reading.write("training.loss_type", ["ipo"])
    _read_model(reading, "base_model")
    _read_adapter(reading)
    _read_precision(reading, default="bf16")
    if reading.job["precision"] != "fp32":
        _set_half(reading, "Axolotl loads all weights in it")
    _read_length(reading, "sequence_len", 512)
    how = str(reading.given(CHECKPOINTING))
    if how in ("offload", "unsloth", "offload_disk"):
        reading.place(CHECKPOINTING, CHECKPOINTING, True)
        if reading.as_is and (place := reading.path_of("activation_offloading")):
            reading.assume(place, True, f"`gradient_checkpointing: {how}` keeps them off the GPU")
    section = reading.given("trl")
    if isinstance(section, Mapping):
        for name, value in section.items():
            reading.data[f"trl.{name}"] = value
            reading.place(f"trl.{name}", str(name), value)
        reading.ends(("trl",), "its fields follow")
    if reading.given("dp_shard_size") or reading.given("fsdp_version"):
        reading.shards = True
    datasets.read_axolotls(reading)


def _read_adapter(reading: Reading) -> None:
    adapter = reading.given("adapter")
    quantised = reading.is_on(_FOUR) or reading.is_on(_EIGHT)
    if adapter not in (None, "lora", "qlora"):
        what = f"autotune cannot tune this: `adapter: {adapter}`"
        reading.refuse("adapter", what, "`lora` and `qlora` can be tuned")
    bits = "qlora" if adapter == "qlora" or quantised else "lora"
    _set_tuning(reading, "full" if adapter is None else bits, ("adapter",), "no `adapter` is named")
    if adapter == "qlora" and not quantised:
        reading.assumed.append(
            "tuning: qlora (`load_in_4bit: true` is missing: Axolotl asks for it)"
        )
    if adapter is None and quantised:
        reading.assumed.append(
            "tuning: full (no `adapter` is named: a quantised base cannot train)"
        )
    if reading.is_on("lora_target_linear"):
        reading.carry("lora_target_linear", "fixed.lora_target_modules", ALL_LINEAR)
        reading.leave(
            "lora_target_modules", NOTHING, "`lora_target_linear` names all linear layers"
        )
    reading.ends(("lora_target_linear",), "off")


# LLaMA-Factory


def _read_llama_factory(reading: Reading) -> None:
    stage = str(reading.data.get("stage", "sft"))
    reading.ends(("stage",), f"method: {reading.method.name}")
    _read_model(reading, "model_name_or_path")
    _read_finetuning(reading)
    if reading.is_on("pure_bf16"):
        reading.carry("pure_bf16", "fixed.dtype", "bfloat16")
        reading.write("precision", "bf16")
        reading.ends(("bf16",), "precision")
    else:
        _read_precision(reading, default="fp32")
        if reading.job.get("tuning") in ("lora", "qlora"):
            _set_half(reading, "LLaMA-Factory keeps a frozen base in 16 bits")
    for name in ("packing", "neat_packing"):
        if reading.is_on(name) and reading.method.name == "sft":
            reading.carry(name, "fixed.packing", True)
    if stage == "pt" and reading.given("packing") is None:
        reading.assume("fixed.packing", True, "stage pt packs")
    if reading.is_on("use_dft_loss"):
        reading.carry("use_dft_loss", "fixed.loss_type", "dft")
    loss = str(reading.given("pref_loss"))
    if loss in ("orpo", "simpo"):
        what = f"autotune cannot train this: `pref_loss: {loss}`"
        reading.refuse("pref_loss", what, "autotune tunes `pref_loss: sigmoid`, hinge and ipo")
    _read_length(reading, "cutoff_len", 2048)
    datasets.read_registered(reading)


def _read_finetuning(reading: Reading) -> None:
    """Read what is trained, and on which base."""
    kind, bits = str(reading.given("finetuning_type") or "lora"), reading.given("quantization_bit")
    if kind not in ("lora", "full"):
        what = f"autotune cannot tune this: `finetuning_type: {kind}`"
        reading.refuse("finetuning_type", what, "`lora` and `full` can be tuned")
    tuning = "qlora" if kind == "lora" and bits is not None else kind
    _set_tuning(reading, tuning, ("finetuning_type",), "LLaMA-Factory trains LoRA by default")
    if tuning == "qlora" and str(bits) == "8":
        reading.write(f"fixed.{_EIGHT}", True)
    elif tuning == "qlora" and str(bits) != "4":
        reading.refuse("quantization_bit", f"`{bits}` bits: a base has 4 or 8")
    if tuning == "qlora":
        reading.ends(("quantization_bit",), "tuning")
    parts = ("quantization_method", "quantization_type", "double_quantization")
    reading.say_half("quantization_bit: 4", bits is not None, parts)
    if str(reading.given("quantization_method") or "bnb") in ("bnb", "bitsandbytes"):
        reading.ends(("quantization_method",), f"tuning: {tuning}")
    reading.leave("quantization_method", MEMORY, "a job quantises by bitsandbytes")
    if tuning in ("lora", "qlora") and reading.given("lora_alpha") is None:
        alpha = 2 * reading.counted("lora_rank", 8)
        reading.assume("training.lora_alpha", alpha, "LLaMA-Factory's default: 2 x the rank")


# torchtune

_ROWS = "torchtune's data set classes form rows as TRL does not"


def flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return torchtune's fields, the parts of a nested name joined; `${name}` as what it stands
    for."""
    fields: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else str(name))
        else:
            fields[path] = value

    walk(data, "")
    return {name: _resolved(value, data) for name, value in fields.items()}


def _resolved(value: Any, data: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    if whole := re.fullmatch(r"\$\{(\w+)\}", value):
        found = data.get(whole[1], value)
        return value if isinstance(found, Mapping | list) else found
    return re.sub(r"\$\{(\w+)\}", lambda name: str(data.get(name[1], name[0])), value)


def _read_torchtune(reading: Reading) -> None:
    reading.ends((f"loss.{COMPONENT}",), f"method: {reading.method.name}")
    _read_model(reading, "checkpointer.checkpoint_dir", folder=True)
    builder = str(reading.given(f"model.{COMPONENT}") or "").rpartition(".")[2]
    quantised = builder.startswith("qlora_") or reading.is_on("model.quantize_base")
    tuning = "qlora" if quantised else "lora" if builder.startswith("lora_") else "full"
    reading.carry(f"model.{COMPONENT}", "tuning", tuning)
    reading.ends(("model.quantize_base",), f"tuning: {tuning}")
    _read_modules(reading)
    reading.shards = True  # every distributed recipe of torchtune's does
    if reading.counted("data_parallel_replicate_dim", 1) > 1:
        reading.leave("data_parallel_replicate_dim", MEMORY, "FSDP divides among all devices")
    dtype = str(reading.given("dtype"))
    types = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    if dtype in types:
        reading.carry("dtype", "precision", dtype, detail="precision and fixed.dtype")
        reading.write("fixed.dtype", types[dtype])
    elif reading.given("dtype") is not None:
        reading.refuse("dtype", f"`{dtype}` is not bf16 or fp32")
    optimizer = str(reading.given(f"optimizer.{COMPONENT}") or "AdamW")
    if not optimizer.endswith("AdamW") or "Paged" in optimizer:
        reading.ends(("optimizer.fused",), "of another optimizer")
    if reading.method.online:
        reading.longest = reading.counted("tokenizer.max_seq_len", 1024)
        _read_generation(reading)
    elif reading.given("tokenizer.max_seq_len") is not None:
        reading.apply("tokenizer.max_seq_len")
    else:
        reading.assume("max_length", None, "no `tokenizer.max_seq_len`: torchtune never truncates")
        reading.ends(("tokenizer.max_seq_len",), "max_length: null")
    for name in [n for n in reading.data if n.startswith("dataset.") and n != "dataset.packed"]:
        reading.leave(name, LEARNING, _ROWS)
    datasets.set_lengths(reading, _ROWS)


def _read_modules(reading: Reading) -> None:
    """Read the modules that get an adapter, by transformers' names."""
    given = reading.given("model.lora_attn_modules")
    names = [str(name) for name in given] if isinstance(given, list) else []
    names = ["o_proj" if name == "output_proj" else name for name in names]
    mlp, output = "model.apply_lora_to_mlp", "model.apply_lora_to_output"
    names += ["gate_proj", "up_proj", "down_proj"] if reading.is_on(mlp) else []
    names += ["lm_head"] if reading.is_on(output) else []
    if names:
        reading.carry("model.lora_attn_modules", "fixed.lora_target_modules", names)
        reading.ends((mlp, output), "fixed.lora_target_modules")


def _read_generation(reading: Reading) -> None:
    """Read lengths and rows of a method that generates: they are counted in completions."""
    grpo = reading.method.name == "grpo"
    epochs = "num_iterations" if grpo else "num_ppo_epochs"
    for name, ours in (("max_generated_tokens", reading.method.completion), ("ppo_epochs", epochs)):
        if reading.given(name) is not None:
            reading.place(name, ours, reading.data[name])
    rows, steps = reading.counted("batch_size", 1), reading.counted(ACCUMULATION, 1)
    if grpo:
        group = "grpo_samples" if reading.given("grpo_samples") else "num_generations"
        reading.rows = rows * reading.counted(group, 1), steps
    elif reading.given("ppo_batch_size") is not None:
        mini = reading.counted("ppo_batch_size", rows)
        micro = max(mini // steps, 1)
        reading.rows = micro, max(rows // micro, 1)
        reading.carry("ppo_batch_size", f"fixed.{MINI_BATCHES}", max(rows // mini, 1))


# TRL, and transformers' trainer in a script of one's own


def _trls_method(data: Mapping[str, Any]) -> str | None:
    """Return the method whose fields alone explain the file; None: several do."""
    counts = {name: len(_own_fields(name) & data.keys()) for name in _told_by_fields()}
    best = max(counts.values())
    most = [name for name, count in counts.items() if count == best]
    return most[0] if best and len(most) == 1 else None


def _own_fields(method: str) -> frozenset[str]:
    """Return fields of a method that not every other has."""
    shared = frozenset.intersection(*map(training_fields, _told_by_fields()))
    return training_fields(method) - shared


def _told_by_fields() -> list[str]:
    """Return the methods whose fields the installed TRL has; PPO's are of an older one."""
    return [name for name in METHODS if name != "ppo" and missing(name) is None]


def _read_trl(reading: Reading) -> None:
    _read_model(reading, "model_name_or_path")
    dumped = "logging_nan_inf_filter" in reading.data and len(reading.data) > 60
    _read_peft(reading)
    _read_precision(reading, default="fp32" if dumped else "auto")
    for name in ("max_length", "max_seq_length", "model_max_length"):
        if reading.has("max_length"):
            reading.leave(name, NOTHING, "another field of the length goes before it")
        elif reading.given(name) is not None:
            reading.place(name, "max_length", reading.given(name))
    _read_trls_dtype(reading)
    datasets.read_trls(reading)
    given = reading.given("reward_funcs")
    if given is not None and not all(map(is_reward, given if isinstance(given, list) else [given])):
        for name in ("reward_funcs", "reward_weights"):
            reading.leave(name, LEARNING, "the script knows these rewards; a run asks for its own")
    policy = reading.given("sft_model_path")
    if isinstance(policy, str) and reading.method.name == "ppo":
        if policy != reading.given("model_name_or_path"):
            reading.assumed.append(f"model: {policy} (the policy begins as `sft_model_path`)")
        reading.carry("sft_model_path", "model", policy, detail="model: the policy begins as it")


def _read_trls_dtype(reading: Reading) -> None:
    names = ("dtype", "torch_dtype")
    adapters = reading.job.get("tuning") in ("lora", "qlora")
    if "auto" in map(reading.given, names):
        if adapters:
            reading.ends(names, "the default of a base that is not trained")
            return
        for name in names:
            reading.carry(name, "fixed.dtype", "bfloat16")
        reading.assumed.append("fixed.dtype: bfloat16 (`auto`: nearly all models are stored so)")
    elif adapters and reading.as_is and not any(map(reading.given, names)):
        reading.assume("fixed.dtype", "float32", "TRL's default")


def _read_peft(reading: Reading) -> None:
    quantised = reading.is_on(_FOUR) or reading.is_on(_EIGHT)
    adapters = ("lora_r", "lora_target_modules")
    said = [name for name in adapters if reading.given(name) is not None]
    guess = bool(said) and reading.given("use_peft") is None and not reading.own_program
    lora = reading.is_on("use_peft") or guess
    tuning = "full" if not lora else "qlora" if quantised else "lora"
    reading.say_half(_FOUR, quantised, ("bnb_4bit_quant_type", "use_bnb_nested_quant"))
    if guess:
        reading.assume("tuning", tuning, f"`{said[0]}` is an adapter's")
        reading.ends(("use_peft",), f"tuning: {tuning}")
    if any(name in reading.data for name in ("use_peft", *_BITS)):
        reading.write("tuning", tuning)
        _set_tuning(reading, tuning, ("use_peft", _FOUR), "")


# Unsloth


def _read_unsloth(reading: Reading) -> None:
    _read_model(reading, "model_name")
    full, bits = reading.is_on("full_finetuning"), any(map(reading.is_on, _BITS))
    tuning = "full" if full else "qlora" if bits else "lora"
    why = "Unsloth trains an adapter unless `full_finetuning` is on"
    _set_tuning(reading, tuning, ("full_finetuning", _FOUR), why)
    if reading.given("bf16") is None and reading.given("fp16") is None:
        reading.assumed.append("precision: auto (Unsloth takes bf16 where the GPU can)")
    else:
        _read_precision(reading, default="auto")
    dtype = str(reading.given("dtype") or "bfloat16").removeprefix("torch.")
    if reading.given("dtype") is None:
        reading.assume("fixed.dtype", dtype, "Unsloth loads the base in 16 bits")
        reading.ends(("dtype",), f"fixed.dtype: {dtype}, of itself")
    else:
        reading.carry("dtype", "fixed.dtype", dtype)
    _read_length(reading, "max_seq_length", 2048)
    why = "Unsloth's script joins three columns into a text of its own"
    reading.leave("dataset", LEARNING, why)
    datasets.set_lengths(reading, why)


_READERS: Mapping[str, Callable[[Reading], None]] = {
    AXOLOTL: _read_axolotl,
    LLAMA_FACTORY: _read_llama_factory,
    UNSLOTH: _read_unsloth,
    TORCHTUNE: _read_torchtune,
    TRL: _read_trl,
}


def fields_of(tool: Tool, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's fields as the tool's table names them."""
    fields = flat(data) if tool.file == TORCHTUNE else dict(data)
    if tool.file == TORCHTUNE and fields.get(RESHARD) is not None:  # as the trainer has it
        fields["fsdp_config"] = {RESHARD: str(fields.pop(RESHARD))}
    return fields


def method_of(tool: Tool, data: Mapping[str, Any]) -> str | None:
    """Return the training method that a configuration says; None: it does not say it."""
    if tool.file == AXOLOTL and (data.get("process_reward_model") or data.get("reward_model")):
        return None if data.get("process_reward_model") else "reward"
    if tool.file == TRL:
        return _trls_method(data)
    value = data.get(tool.says_method)
    said = "sft" if value is None else tool.methods.value(str(value))
    return next((kind for name, kind in tool.not_built.items() if data.get(name)), said)


def read(reading: Reading) -> None:
    """Give the fields that no table can (what is trained, on what data) their places."""
    _READERS[reading.tool.file](reading)
