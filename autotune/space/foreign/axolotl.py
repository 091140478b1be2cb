"""Axolotl's YAML (`utils/schemas/*.py` of 0.19). Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.axolotl_fields import HIDDEN, RULES
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import (
    ALL_LINEAR,
    Tool,
    is_mixed,
    read_model,
    read_precision,
    refuse,
    set_lengths,
)

_METHODS = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "grpo": "grpo"}
_KERNELS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""Switches of a kernel each."""
_LOADERS = (None, "json", "csv", "parquet", "text")
"""Names of `datasets` for files that lie anywhere."""


def _method(data: Mapping[str, Any]) -> str | None:
    if data.get("process_reward_model") is True:
        return None
    if data.get("reward_model") is True:
        return "reward"
    rl = data.get("rl")
    return "sft" if rl in (None, False) else _METHODS.get(str(rl))


def _read(reading: Reading) -> None:
    for name in ("rl", "reward_model"):
        reading.end(name, "carried", f"method: {reading.method.name}")
    if reading.given("rl") == "ipo":
        reading.write("training.loss_type", ["ipo"])
    read_model(reading, "base_model")
    _read_tuning(reading)
    _read_precision(reading)
    _read_kernels(reading)
    if reading.given("sequence_len") is not None:
        reading.place("sequence_len", "max_length", reading.given("sequence_len"))
    elif not reading.method.online:
        reading.assume("max_length", 512, "Axolotl's default")
    _read_trl(reading)
    if reading.given("dp_shard_size") or reading.given("fsdp_version"):
        reading.shards = True
    _read_data(reading)


def _read_tuning(reading: Reading) -> None:
    adapter = reading.given("adapter")
    four, eight = reading.is_on("load_in_4bit"), reading.is_on("load_in_8bit")
    if adapter not in (None, "lora", "qlora"):
        what = f"autotune cannot tune this: `adapter: {adapter}`"
        refuse(reading, "adapter", what, "`lora` and `qlora` can be tuned")
    quantised = adapter == "qlora" or (adapter == "lora" and (four or eight))
    tuning = "full" if adapter is None else "qlora" if quantised else "lora"
    if adapter == "qlora" and not (four or eight):
        reading.assumed.append(
            "tuning: qlora (`load_in_4bit: true` is missing: Axolotl asks for it)"
        )
    if adapter is None and (four or eight):
        reading.assumed.append(
            "tuning: full (no `adapter` is named: a quantised base cannot train)"
        )
    if adapter is None:
        reading.assume("tuning", "full", "no `adapter` is named")
    else:
        reading.carry("adapter", "tuning", tuning)
    reading.end("load_in_4bit", "carried", f"tuning: {tuning}")
    if eight and tuning == "qlora":
        reading.carry("load_in_8bit", "fixed.load_in_8bit", True)
    reading.end("load_in_8bit", "carried", f"tuning: {tuning}")
    if reading.is_on("lora_target_linear"):
        reading.carry("lora_target_linear", "fixed.lora_target_modules", ALL_LINEAR)
        reading.leave("lora_target_modules", "`lora_target_linear` names all linear layers")
    reading.end("lora_target_linear", "carried", "off")


def _read_precision(reading: Reading) -> None:
    """Mixed precision; Axolotl loads the weights in the same type, trained ones too."""
    theirs = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16", "float16")}
    given = {k: any(is_mixed(reading, n) for n in names) for k, names in theirs.items()}
    silent = all(reading.given(name) is None for names in theirs.values() for name in names)
    if silent:
        reading.assume("precision", "bf16", "Axolotl's default where the GPU can")
    else:
        read_precision(reading, default="fp32")
    for kind, (_, old) in theirs.items():
        if reading.given(old) is not None:
            reading.carry(old, "precision", kind if given[kind] else "fp32")
    precision = reading.job.get("precision")
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(str(precision))
    if dtype is not None:
        reading.assume("fixed.dtype", dtype, "Axolotl loads all weights in it")


def _read_kernels(reading: Reading) -> None:
    for name, kernel in _KERNELS.items():
        if reading.is_on(name):
            reading.place(name, "attn_implementation", kernel)
        reading.end(name, "carried", "off")


def _read_trl(reading: Reading) -> None:
    """Read the section of fields that TRL's own trainers take."""
    section = reading.given("trl")
    if not isinstance(section, Mapping):
        return
    lost = []
    for name, value in section.items():
        key = f"trl.{name}"
        reading.add(key, value)
        reading.place(key, str(name), value)
        if reading.fates[key].kind != "carried":
            lost.append(str(name))
    detail = "its fields follow" + (f", without {', '.join(lost)}" if lost else "")
    reading.end("trl", "carried", detail)


def _read_data(reading: Reading) -> None:
    sets = reading.given("datasets")
    entries = sets if isinstance(sets, list) else []
    entry = entries[0] if len(entries) == 1 and isinstance(entries[0], Mapping) else None
    if entry is None:
        why = f"{len(entries)} data sets mixed" if entries else "no data set is named"
        for name in ("datasets", "pretraining_dataset"):
            reading.leave(name, f"{why}: a job has one")
        set_lengths(reading, why)
        return
    columns = _columns(entry, reading.method.name)
    place = _place(entry)
    if columns is not None and place is None:
        why = "its `data_files` lie in a repository"
        reading.leave("datasets", f"{why}: a job has all rows of one, or a local file")
        set_lengths(reading, why)
        return
    if columns is None or not isinstance(place, str):
        why = f"`type: {entry.get('type')}` forms rows as TRL does not"
        reading.leave("datasets", why)
        set_lengths(reading, why)
        return
    reading.carry("datasets", "dataset", place)
    if columns:
        reading.write("columns", columns)
    for theirs, ours in (("name", "dataset_config"), ("split", "dataset_train_split")):
        if isinstance(entry.get(theirs), str):
            reading.write(ours, entry[theirs])


def _place(entry: Mapping[str, Any]) -> Any:
    """Return where the rows lie; None: in some files of a repository."""
    path, files = entry.get("path"), entry.get("data_files")
    files = files[0] if isinstance(files, list) and len(files) == 1 else files
    if not files or not isinstance(files, str):
        return None if files else path
    if path in _LOADERS:
        return files
    if isinstance(path, str) and path.startswith(("/", ".", "~")):
        return files if files.startswith(("/", "~")) else f"{path.rstrip('/')}/{files}"
    return None


def _columns(entry: Mapping[str, Any], method: str) -> dict[str, str] | None:
    """Return what TRL's columns are called in the data; None: TRL cannot read them."""
    kind = entry.get("type")
    if method != "sft" or not isinstance(kind, str):
        return None
    if kind == "completion":
        field = entry.get("field") or "text"
        return {} if field == "text" else {"text": str(field)}
    if kind == "chat_template":
        properties = entry.get("message_property_mappings") or {}
        roles = entry.get("message_field_role"), entry.get("message_field_content")
        same = isinstance(properties, Mapping) and all(k == v for k, v in properties.items())
        if not same or roles not in ((None, None), ("role", "content")):
            return None
        field = entry.get("field_messages") or "messages"
        return {} if field == "messages" else {"messages": str(field)}
    return None


TOOL = Tool(
    name="Axolotl",
    marks=frozenset(
        {"base_model", "datasets", "adapter", "sequence_len", "micro_batch_size", "sample_packing"}
    ),
    rules=RULES,
    method=_method,
    read=_read,
    micro="micro_batch_size",
    rows=1,
    defaults={
        "num_train_epochs": 1.0,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "lora_dropout": 0.0,
    },
    as_is={"loss_type": "nll", "gradient_checkpointing": False},
    hidden=HIDDEN,
    says_method="rl",
)
