"""The job: what the user wants to fine-tune, on what data, under which limits.

The docstring under each field is its documentation: `docs/job.md` is generated from here. The
file is strict: unknown keys are refused, and all problems are reported at once with their line.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from autotune.job.fields import (
    MOST_DATA_ROWS,
    MOST_DEVICES,
    MOST_LENGTH,
    MOST_LISTED,
    MOST_MINUTES,
    MOST_NODES,
    MOST_PROBES,
    Strict,
    as_batch,
    as_bytes,
    as_duration,
)
from autotune.job.methods import METHODS
from autotune.units import parse_seconds

Scalar = bool | int | float | str | None
"""A value as YAML and JSON both have it."""

KnobValue = Scalar | list[str]
"""A value of a knob: a scalar, or a list of names (LoRA target modules)."""


class Lengths(Strict):
    """Token lengths in place of data, where there is none yet."""

    max: int = Field(gt=0, le=MOST_LENGTH)
    """Longest row, in tokens."""
    p50: int | None = Field(default=None, gt=0, le=MOST_LENGTH)
    """Median row, in tokens. Without it every row is taken to be as long as `max`."""
    p99: int | None = Field(default=None, gt=0, le=MOST_LENGTH)
    """99th percentile, in tokens. Without it, halfway (geometrically) between `p50` and `max`."""
    rows: int = Field(default=10_000, gt=0, le=MOST_DATA_ROWS)
    """How many rows one epoch has."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        values = [value for value in (self.p50, self.p99, self.max) if value is not None]
        if values != sorted(values):
            raise ValueError(
                f"`p50 <= p99 <= max` must hold, but got (p50={self.p50}, p99={self.p99}, "
                f"max={self.max})"
            )
        if self.p99 is not None and self.p50 is None:
            raise ValueError("`p99` needs `p50` beside it")
        return self


class NoData(Strict):
    """A data set that is known by its lengths alone."""

    lengths: Lengths
    """What the rows will be like."""


class Devices(Strict):
    """The devices to tune for."""

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda`, `cpu`, or `auto`: CUDA where an NVIDIA GPU is present, else the CPU."""
    count: int = Field(default=1, ge=1, le=MOST_DEVICES)
    """Number of devices, one process for each: as many GPUs, or ranks on the CPU. How the training
    is spread over them (DDP, ZeRO, FSDP2, offloading) is searched, by request over how many of them
    (`num_processes`) too: `search_spaces/sharding.yaml`. With one device offloading is tried by
    request: `fixed: {distributed_type: DEEPSPEED, zero_stage: 2, offload_optimizer_device: cpu}`.
    """
    nodes: int = Field(default=1, ge=1, le=MOST_NODES)
    """Number of machines with `count` devices each: planned, or probed by `run --engine ray`."""
    index: int = Field(default=0, ge=0, lt=MOST_DEVICES)
    """Which GPU (of several the first), as `nvidia-smi` counts them; where CUDA_VISIBLE_DEVICES is
    set, which of those that it lists."""
    memory: Annotated[int | None, BeforeValidator(as_bytes)] = None
    """Memory a candidate may use per device, such as `20GiB`. It is enforced in every probe (a
    real allocation failure past it; a probe that ends above it is `oom` too). Default: what is free
    at the start."""

    host_memory: Annotated[int | None, BeforeValidator(as_bytes)] = None
    """Memory of the host that all processes may use together, such as `512GiB`: offloading moves
    optimizer states and weights there. A probe that takes more is ended (`host_oom`). Default: what
    is free at the start, less a twentieth; on a CPU, where it is the devices' own memory, and of
    machines that are only planned for: no limit but this."""

    @property
    def total(self) -> int:
        """Devices of all machines."""
        return self.nodes * self.count


class Budget(Strict):
    """The limits at which the search ends."""

    minutes: float = Field(default=30.0, gt=0, le=MOST_MINUTES)
    """Wall-clock minutes for all probes together; the rest of a run comes on top."""
    probes: int = Field(default=40, gt=0, le=MOST_PROBES)
    """Number of probes."""
    probe_minutes: float = Field(default=5.0, gt=0, le=MOST_MINUTES)
    """Wall-clock minutes after which one probe is killed (outcome `timeout`)."""
    total: Annotated[float | None, BeforeValidator(as_duration)] = None
    """Time for everything together, such as `30m`: the survey, the estimates, all probes and the
    verification. It counts from the start of the command, of `--resume` anew. Time is kept for the
    verification; what there is no time for is left out, and told. Default: no limit but those
    above."""

    @field_serializer("total")
    def _total_as_written(self, total_s: float | None) -> str | None:
        return None if total_s is None else f"{total_s:.10g}s"


def as_budget(value: object) -> object:
    """Read a budget: `5m` means minutes, `12` means probes."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    if isinstance(value, int):
        return {"probes": value}
    return {"minutes": parse_seconds(value) / 60.0}


def _dataset_form(value: object) -> str:
    return "no_data" if isinstance(value, dict | NoData) else "name"


class Job(Strict):
    """A model to fine-tune, its data, and the limits."""

    model: str = Field(min_length=1)
    """Hub id, local model folder, or a bare `config.json` (then weights are random, and a tokenizer
    is optional). Of the models below the last part of the id is enough (`qwen2.5-7b`), and a plan
    needs no hub: their shapes are built in."""
    method: Literal["sft", "reward", "dpo", "kto", "grpo", "rloo", "distillation", "ppo"] = "sft"
    """Training method: which of TRL's trainers, by the name of its command (`ppo`, which has none,
    needs TRL up to 1.12; `distillation` needs 1.16)."""
    dataset: Annotated[
        Annotated[str, Field(min_length=1), Tag("name")] | Annotated[NoData, Tag("no_data")],
        Discriminator(_dataset_form),
    ]
    """Hub id, local folder or JSONL file, in any form TRL takes: `text`, `prompt`/`completion`,
    `messages` or already tokenized for `sft`; `chosen`/`rejected`, with or without a `prompt`, for
    `reward` and `dpo`; these, or `prompt`/`completion`/`label`, for `kto`; `prompt` for `grpo`,
    `rloo`, `distillation` and `ppo`. Where there is no data yet: `{lengths: {max: 2048, p50: 300,
    p99: 1500}}` (of prompts for these four), of which only `max` is required."""
    columns: dict[str, str] = {}
    """What TRL calls a column, and what your data do: `{prompt: instruction, completion: output}`.
    TRL's commands rename nothing, so a run keeps a copy of the data set with these names in its
    folder, and its bundle trains on that."""
    dataset_config: str | None = None
    """Configuration name of a hub dataset."""
    dataset_train_split: str = "train"
    """Split to train on."""
    dataset_test_split: str = "test"
    """Split to evaluate on, where the dataset has it."""
    tuning: Literal["full", "lora", "qlora"] = "full"
    """Train all weights, a LoRA adapter (`lora`), or one on a base that bitsandbytes quantises
    (`qlora`): to 4 bits (nf4, its constants quantised too), with `fixed: {load_in_8bit: true}` to
    8. That package must be installed to train, not to plan. Of `ppo`
    it is the policy's base: the value model is trained whole, the reward model stays as it is.
    Beside an adapter a base is held in its checkpoint's own type where the device computes in 16
    bits; all else in float32 (the knob `dtype`)."""
    global_batch_size: int | str = Field(default=16)
    """Rows (of pairs: pairs; where completions are generated: completions; of `ppo`: those of an
    update) per optimizer step over all devices: a hard equality, never rounded.
    `"65536 tokens"` means that many tokens at full `max_length`, and must divide exactly."""
    max_length: int | None = Field(default=1024, gt=0, le=MOST_LENGTH)
    """Rows are truncated to this many tokens (`null`: never). Not for `grpo`, `rloo`,
    `distillation` and `ppo`, whose prompts TRL does not truncate: `max_completion_length` (of
    `ppo`: `response_length`) is a knob there."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Mixed precision of the training step. `auto`: bf16 on GPUs that have it, fp16 on older ones,
    fp32 on the CPU."""
    weights: Literal["auto", "real", "random"] = "auto"
    """Weights a probe trains. Speed and memory do not depend on them. `auto`: the real ones where
    they are already local, else random ones of the same shape. Pickles (`pytorch_model.bin` without
    safetensors) are loaded only with `real`, and as tensors alone."""
    reward_funcs: list[str] = []
    """What rewards completions of `grpo` and `rloo`: TRL's own functions by name, or import paths
    (`my_rewards.by_length`, found from the folder in which the command is run; only what trains
    imports them). A plan needs none."""
    reward_model_path: str | None = None
    """A reward model for them: a hub id or a local folder. The value model of `ppo` begins as it;
    where `ppo` has none, both are taken to be of the policy's shape, and the launch asks for it."""
    teacher_model_name_or_path: str | None = None
    """The teacher of `distillation`, which needs one: named as `model` is, of the same vocabulary.
    It is held in its checkpoint's own type where the device computes in 16 bits, else in float32
    (`training: {teacher_model_init_kwargs: {dtype: float32}}` says another)."""
    devices: Devices = Devices()
    """The devices to tune for."""
    objective: Literal["tokens_per_s"] = "tokens_per_s"
    """What to maximise: real (non-padding) tokens per second, end to end."""
    learning_rate_scaling: Literal["none", "by_batch"] = "none"
    """Where the global batch moves (`recipe: {global_batch_size: [16, 64]}`): `none` leaves
    `training: {learning_rate}` alone and only says what it would be; `by_batch` scales it by the
    square-root rule (the linear one for SGD)."""
    headroom: float = Field(default=0.1, ge=0.0, lt=0.9)
    """Share of the device memory that a recommended candidate leaves free at its peak."""
    budget: Annotated[Budget, BeforeValidator(as_budget)] = Budget()
    """When the search has to end; also `5m` or a number of probes."""
    recipe: dict[str, list[KnobValue]] = {}
    """Recipe knobs you are willing to vary, each with its values: what is learned changes."""
    training: dict[str, Any] = {}
    """Any other field of the method's arguments in TRL (SFTConfig, RewardConfig, ...), of its
    ModelConfig or of TrainingArguments, passed through to the probes and to the emitted files
    untouched."""
    fixed: dict[str, KnobValue] = {}
    """Knobs to pin."""

    @field_validator("global_batch_size", mode="before")
    @classmethod
    def _batch(cls, value: object) -> int | str:
        return as_batch(value)

    @field_validator("columns")
    @classmethod
    def _columns(cls, columns: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        names = list(columns.values())
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name in the data")
        if columns and isinstance(info.data.get("dataset"), NoData):
            raise ValueError("lengths have no columns; leave it out until there are data")
        return columns

    @field_validator("recipe")
    @classmethod
    def _values(cls, recipe: dict[str, list[KnobValue]]) -> dict[str, list[KnobValue]]:
        if "global_batch_size" in recipe:
            batches: list[KnobValue] = [as_batch(batch) for batch in recipe["global_batch_size"]]
            recipe = {**recipe, "global_batch_size": batches}
        for name, values in recipe.items():
            if not values:
                raise ValueError(f"`{name}` lists no value")
            if len(values) > MOST_LISTED:
                raise ValueError(
                    f"`{name}` lists {len(values)} values, but at most {MOST_LISTED} can be"
                )
            if any(value in values[:index] for index, value in enumerate(values)):
                raise ValueError(f"`{name}` lists a value twice")
        return recipe

    def with_batch(self, batch: object) -> Self:
        """Return the job with another global batch."""
        return self.model_copy(update={"global_batch_size": batch})

    @property
    def batches(self) -> list[KnobValue]:
        """The global batches that may be chosen."""
        return list(self.recipe.get("global_batch_size", [self.global_batch_size]))

    def batch_sequences(self, max_length: int | None) -> int | None:
        """Return the sequences of an optimizer step; None where the token count is not a multiple
        of the length."""
        if isinstance(self.global_batch_size, int):
            return self.global_batch_size
        tokens = int(self.global_batch_size.split()[0])
        if max_length is None or tokens % max_length:
            return None
        return tokens // max_length

    @property
    def seed(self) -> int:
        """The seed of the training, of the sampler and of all random draws."""
        seed = self.training.get("seed", 42)
        return seed if isinstance(seed, int) else 42

    @property
    def second_model(self) -> str | None:
        """The model beside the one that is trained, which rewards or teaches; None: none is
        named."""
        return self.teacher_model_name_or_path or self.reward_model_path

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions that no probe measures, as sentences."""
        if METHODS[self.method].value_model and self.reward_model_path is None:
            return ("reward and value model are taken to be of the policy's shape",)
        if self.fixed.get("use_vllm"):
            memory_note = "; its memory is what its settings give it"
            server_note = (
                memory_note if self.fixed.get("vllm_mode", "colocate") == "colocate" else ""
            )
            return (
                f"probes do not run vLLM, times are with transformers' generation{server_note}",
            )
        return ()

    def plain(self) -> dict[str, Any]:
        """Return the job as plain YAML/JSON data, every field present."""
        return self.model_dump(mode="json")
