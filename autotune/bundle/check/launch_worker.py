"""CHILD: builds what a launch makes of its files, up to where it would load a model, and tells what
refuses them.

Each part is built by the function that a launch calls: accelerate's launcher, TRL's parser and the
class of the arguments, the part of transformers' Trainer that makes its accelerator, DeepSpeed's
configuration. What these ask of a machine (a GPU that computes in bf16, a free port, processes that
answer) is answered as the machine of the launch would; nothing that a file names is imported,
started or read.
"""

import contextlib
import io
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import accelerate.utils.dataclasses
import accelerate.utils.launch
import pydantic
import torch
import transformers.trainer
import transformers.training_args
from accelerate.commands import launch
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin, patch_environment
from torch.distributed import run as elastic
from trl import DatasetMixtureConfig, ModelConfig, TrlParser

from autotune.bundle.check.asking import LaunchReply, LaunchRequest, Refusal
from autotune.bundle.check.files import AUTO, shown, value_at
from autotune.bundle.planned import KEY
from autotune.errors import nearest
from autotune.plain_data import from_plain, to_plain
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.training.family import Family
from autotune.training.registry import family

Files = dict[str, dict[str, Any]]
HIDDEN_SIZE, STEPS = 1024, 1000
"""Of a model, and of a training whose files do not say it: values that depend on them are not
held against the files."""
MOST = 20
"""Refusals of one launch that are asked for."""
SWITCHES = ("distributed_type", "deepspeed", "deepspeed_config", "deepspeed_config_file", "fsdp")
"""Fields without which an engine, and whatever is wrong with it, is gone."""
READ_BY_NAME = ("fsdp_config", "accelerator_config")
"""Fields of the trainer that may name a file of their own, which is not read."""
_MISMATCH = re.compile(r"- ds (?P<path>\S+?)=(?P<value>.*) vs hf (?P<field>.*?)=(?P<wanted>.*)")


class _Wrong(Exception):
    """Refusals whose places are known; of values that the trainer has, too, where `differs`."""

    def __init__(self, *refusals: Refusal, differs: bool = False) -> None:
        super().__init__(refusals)
        self.refusals, self.differs = refusals, differs


def ask(path: Path) -> None:
    """Answer `request.json` with a `LaunchReply`."""
    folder = ChildFolder(path=path)
    request = from_plain(LaunchRequest, read_json(folder.request))
    _answer_for_the_machine()
    reply: LaunchReply | None = None
    for processes in request.processes:
        found = Launch(request, processes, path).reply()
        if not found.refusals:
            reply = found
            break
        reply = reply or found
    write_json(folder.reply, to_plain(reply))


def _answer_for_the_machine() -> None:
    """Answer what the libraries ask of this machine as the one of the launch would."""
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    transformers.training_args.is_torch_tf32_available = lambda: True
    transformers.training_args.enable_tf32 = lambda _: None
    accelerate.utils.launch.is_port_in_use = lambda _: False
    accelerate.utils.launch.is_fp8_available = lambda: True
    accelerate.utils.dataclasses.is_cuda_available = lambda: True
    torch.cuda.current_device = lambda: 0
    transformers.trainer.Accelerator = _accelerator


def _accelerator(**given: Any) -> Any:
    """Return the plugins that `Accelerator` would make, without its processes."""
    deepspeed, fsdp = given["deepspeed_plugin"], given.get("fsdp_plugin")
    if deepspeed is not None:
        deepspeed.set_mixed_precision(given["mixed_precision"])
    elif fsdp is None and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        fsdp = FullyShardedDataParallelPlugin()
    state = types.SimpleNamespace(deepspeed_plugin=deepspeed, fsdp_plugin=fsdp)
    return types.SimpleNamespace(state=state, gather_for_metrics=lambda use_gather_object: None)


class Launch:
    """The launch of some files on a number of processes."""

    def __init__(self, request: LaunchRequest, processes: int, scratch: Path) -> None:
        self._request, self._processes, self._scratch = request, processes, scratch
        self._files: Files = {
            name: json.loads(text)
            for name in ("accelerate", "trainer", "deepspeed")
            if (text := getattr(request, name)) is not None
        }
        self._kind: Family = family(request.method)
        self._at = (0, "", "")
        self._names: set[str] = set()

    def reply(self) -> LaunchReply:
        """Return what refuses the files. After each, its field is left to the others, and all is
        asked again; names that nobody reads come last."""
        found: dict[tuple[str, str], Refusal] = {}
        unasked = ""
        while len(found) < MOST and (error := self._try(self._files)) is not None:
            if isinstance(error, ImportError):
                unasked = f"{self._at[2]} needs what is not installed here: {error}"
                break
            gone = {field.split(".")[-1] for _, field in found}
            if gone & set(re.findall(r"\w+", str(error))):
                break  # it misses what was taken out
            new = [r for r in self._told(error) if (r.file, r.field) not in found]
            found |= {(refusal.file, refusal.field): refusal for refusal in new}
            if not new or not all(refusal.field for refusal in new):
                break
            differs = isinstance(error, _Wrong) and error.differs
            for one in new:
                self._files = _without(self._files, one.file, one.field, auto=differs)
        refusals = (*found.values(), *self._unread())
        return LaunchReply(refusals=refusals, processes=self._processes, unasked=unasked)

    def _try(self, files: Files) -> Exception | None:
        """Build all that a launch does, and return what ends it."""
        before = dict(os.environ)
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                self._build(json.loads(json.dumps(files)))
        except Exception as error:
            return error
        finally:
            os.environ.clear()
            os.environ.update(before)
        return None

    def _build(self, files: Files) -> None:
        self._at = (1, "accelerate", "accelerate launch")
        environment = self._launched(files) if "accelerate" in files else {}
        with patch_environment(**environment):
            self._at = (2, "trainer", self._kind.training_arguments().__name__)
            arguments = self._arguments(files)
            self._at = (3, "trainer", "transformers' Trainer")
            plugin = self._accelerated(arguments)
            if plugin is not None:
                self._at = (4, "deepspeed", "DeepSpeed")
                _compare(files, plugin, arguments)
                self._configure(plugin)

    def _launched(self, files: Files) -> dict[str, str]:
        """Return the environment that `accelerate launch` makes of its file."""
        settings = files["accelerate"]
        _check_types("accelerate", settings, ClusterConfig)
        own = settings.get("deepspeed_config") or {}
        if own.pop("deepspeed_config_file", None) is not None and "deepspeed" in files:
            own["deepspeed_config_file"] = str(self._scratch / "deepspeed.json")
            Path(own["deepspeed_config_file"]).write_text(json.dumps(files["deepspeed"]))
        file = self._scratch / "accelerate.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        words = ["--config_file", str(file)]
        if self._request.count_is_given:
            words += ["--num_processes", str(self._processes)]
        given = launch.launch_command_parser().parse_args([*words, "train.py"])
        given, defaults, precision = launch._validate_launch_command(given)
        given.mpirun_hostfile = None  # it would start `mpirun`
        if given.tpu or not isinstance(defaults, ClusterConfig):
            return {}  # TPUs and SageMaker are launched by others
        if given.use_deepspeed:
            names = [*defaults.deepspeed_config, *(["mixed_precision"] if precision else [])]
            given.deepspeed_fields_from_accelerate_config = ",".join(names)
            made: dict[str, str] = launch.prepare_deepspeed_cmd_env(given)[1]
        elif given.use_fsdp or given.use_megatron_lm or given.multi_gpu:
            made = launch.prepare_multi_gpu_env(given)
        else:
            return dict(launch.prepare_simple_launcher_cmd_env(given)[1])
        if given.num_machines == 1:
            elastic.determine_local_world_size(given.nproc_per_node)
        return made

    def _arguments(self, files: Files) -> Any:
        """Return the trainer's arguments, as TRL's parser makes them of its file."""
        settings = dict(files["trainer"])
        settings.pop("env", None)  # variables of the launch, which are none of this process
        if isinstance(settings.get("deepspeed"), str):
            settings.pop("deepspeed")
            if "deepspeed" in files:
                settings["deepspeed"] = files["deepspeed"]
        for name in READ_BY_NAME:
            if isinstance(settings.get(name), str) and not settings[name].startswith("{"):
                del settings[name]
        answers: dict[str, Any] = {
            "world_size": property(lambda _: self._processes),
            "distributed_state": None,
            "_setup_devices": torch.device("cpu"),
            "_n_gpu": 1,
        }
        base = self._kind.training_arguments()
        if "world_size" in base.__dataclass_fields__:
            del answers["world_size"]  # PPO's loop counts later
        kind = type(base.__name__, (base,), {**answers, "__module__": base.__module__})
        kinds = (self._kind.script_arguments, kind, ModelConfig)
        _check_types("trainer", settings, *kinds)
        parser = TrlParser((*kinds, DatasetMixtureConfig))
        parser.error = _refuse
        rest = parser.set_defaults_with_config(**settings)
        if rest and self._request.names_are_trls:
            names = [action.dest for action in parser._actions]
            name = rest[0].removeprefix("--")
            raise _Wrong(Refusal("trainer", name, "TRL has no such field", nearest(name, names)))
        return parser.parse_args_into_dataclasses(args=[])[1]

    def _accelerated(self, arguments: Any) -> DeepSpeedPlugin | None:
        """Return DeepSpeed's plugin of the accelerator that transformers' Trainer would make."""
        trainer: Any = types.SimpleNamespace(args=arguments, model=None)
        kind = transformers.trainer.Trainer
        trainer._build_accelerator_args = types.MethodType(kind._build_accelerator_args, trainer)
        kind.create_accelerator_and_postprocess(trainer)
        return typing.cast(DeepSpeedPlugin | None, trainer.accelerator.state.deepspeed_plugin)

    def _configure(self, plugin: DeepSpeedPlugin) -> None:
        """Build DeepSpeed's own configuration, and note the names that it looks for."""
        from deepspeed.runtime import config as deepspeed

        gathers = {"zero_optimization.stage3_gather_16bit_weights_on_model_save": False}
        plugin.deepspeed_config_process(must_match=False, **gathers)
        count = self._processes
        deepspeed.dist = types.SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda *_: count)
        read = _Read(plugin.deepspeed_config)
        deepspeed.DeepSpeedConfig(read)
        self._names = read.names

    def _unread(self) -> Iterator[Refusal]:
        """Yield names at the top of DeepSpeed's file that it passes over without a word."""
        for name in self._files.get("deepspeed", {}) if self._names else ():
            if name not in self._names and name != KEY:
                hint = nearest(name, self._names) or "take it out"
                yield Refusal("deepspeed", name, "DeepSpeed reads no such field", hint)

    def _told(self, error: Exception) -> Sequence[Refusal]:
        """Return a refusal in words, with its file and field."""
        _, file, reader = self._at
        if isinstance(error, _Wrong):
            return error.refusals
        if isinstance(error, pydantic.ValidationError) and file in self._files:
            return [_of_value(file, one, self._files[file]) for one in error.errors()]
        text = " ".join(str(error).replace(f"{self._scratch}/", "").split())
        if not isinstance(error, ValueError | AssertionError):
            text = f"{type(error).__name__}: {text}"
        if names := re.findall(r"'(\w+)'", text.partition("will be ignored:")[2]):
            # Fields that accelerate refuses beside DeepSpeed's file: it names all that there are.
            own = self._files["accelerate"]
            paths = ["mixed_precision", *(f"deepspeed_config.{name}" for name in names)]
            what = "accelerate refuses it beside deepspeed_config_file"
            hint: str | None = "take it out here; DeepSpeed's file and the trainer say it"
            told = [path for path in paths if value_at(own, path) is not None]
            return [Refusal("accelerate", path, what, hint) for path in told]
        file, field = self._place(error, file)
        hint, names = (
            "correct it, or take it out" if field else None,
            list(ClusterConfig.__dataclass_fields__),
        )
        if file == "accelerate" and field and field.partition(".")[0] not in names:
            hint = nearest(field, names)
        return [Refusal(file, field, f"{reader} refuses it: {text}", hint)]

    def _place(self, error: Exception, file: str) -> tuple[str, str]:
        """Return the field that is refused: the one without which the launch comes further.

        Fields that the message names are tried first, then those whose value it names.
        """
        (stage, *_), text = self._at, str(error)
        words = set(re.findall(r"\w+", text.lower()))
        order = [file, *(name for name in self._files if name != file)]
        ranked: list[tuple[int, str, str]] = []
        for name in order:
            for path in _paths(self._files.get(name, {})):
                last = path.split(".")[-1].lower()
                by_value = str(value_at(self._files[name], path)).lower() in words
                rank = 0 if last.removeprefix("fsdp_") in words else 2 - by_value
                if last not in SWITCHES:
                    ranked.append((rank, name, path))
        for rank, name, path in sorted(ranked, key=lambda one: one[0]):
            after = self._try(_without(self._files, name, path))
            at_once = rank == 0 and self._at[0] == stage and str(after) != text
            if after is None or self._at[0] > stage or at_once:
                return name, path
        return "deepspeed" if "deepspeed" in text.lower() and stage > 1 else file, ""


def _compare(files: Files, plugin: DeepSpeedPlugin, arguments: Any) -> None:
    """Hold DeepSpeed's configuration against the trainer's, as the Trainer does.

    Raises:
        _Wrong: they differ.
    """
    config = plugin.hf_ds_config
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=HIDDEN_SIZE))
    steps = arguments.max_steps if arguments.max_steps > 0 else STEPS
    try:
        config.trainer_config_finalize(arguments, model, steps)
    except ValueError:
        if not config.mismatches:
            raise
    unknown = ["total_num_steps"] if arguments.max_steps <= 0 else []
    if unknown and arguments.warmup_steps < 1:
        unknown.append("warmup_num_steps")  # a share of them
    wrong = []
    for match in filter(None, map(_MISMATCH.match, config.mismatches)):
        if match["path"].split(".")[-1] in unknown:
            continue
        file, field = _written(files, match["path"])
        value, given = match["value"].lower(), value_at(files.get(file, {}), field)
        says = f"is `{value}`"
        if given is None:
            says = f"is missing, which means `{value}`"
        elif file == "accelerate" and str(given).lower() != value:
            says = f"is {shown(given)}, so that DeepSpeed has {match['path']}: `{value}`"
        name = match["field"].partition("|")[0].replace("calculated", "of all processes")
        default = " (its default)" if name.isidentifier() and name not in files["trainer"] else ""
        what = f"{says}, but the trainer has {name}: `{match['wanted'].lower()}`{default}"
        auto = f" (`{AUTO}`)" if file == "deepspeed" else ""
        wrong.append(
            Refusal(file, field, what, f"make them equal, or leave it to the trainer{auto}")
        )
    if wrong:
        raise _Wrong(*wrong, differs=True)


def _written(files: Files, path: str) -> tuple[str, str]:
    """Return the file and field from which a value of DeepSpeed's configuration came."""
    own = files.get("accelerate", {}).get("deepspeed_config") or {}
    name = path.split(".")[-1]
    if path not in _paths(files.get("deepspeed", {})):
        if name in own:
            return "accelerate", f"deepspeed_config.{name}"
        if name == "enabled" and files.get("accelerate", {}).get("mixed_precision") is not None:
            return "accelerate", "mixed_precision"
    return "deepspeed", path


class _Read(dict[str, Any]):
    """A mapping that notes the names which are looked up in it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name."""
        self.names.add(name)
        return super().get(name, default)


def _check_types(file: str, settings: Mapping[str, Any], *kinds: Any) -> None:
    """Hold values against the types that classes declare; texts are left to their parser.

    Raises:
        _Wrong: some do not fit.
    """
    hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}
    wrong = []
    for name, value in settings.items():
        if name not in hints or isinstance(value, str) or (value is None and file == "accelerate"):
            continue
        try:
            adapter = pydantic.TypeAdapter(hints[name], config={"arbitrary_types_allowed": True})
            made = adapter.validate_python(value)
        except pydantic.ValidationError as error:
            told = " or ".join(dict.fromkeys(_lower(one["msg"]) for one in error.errors()))
        except pydantic.PydanticUserError:
            continue
        else:
            if not isinstance(value, bool | float) or type(made) is type(value):
                continue
            told = f"has to be {type(made).__name__}"
        hint = (
            "YAML reads an unquoted `no` as false: write 'no', quoted" if value is False else None
        )
        wrong.append(Refusal(file, name, f"is {shown(value)}: {told}", hint))
    if wrong:
        raise _Wrong(*wrong)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _refuse(message: str) -> typing.NoReturn:
    raise ValueError(message)


def _of_value(file: str, error: Any, settings: Mapping[str, Any]) -> Refusal:
    """Return what a class of DeepSpeed's says of a value, at its place in the file."""
    place, value = ".".join(map(str, error["loc"])), error["input"]
    paths = [path for path in _paths(settings) if f".{path}".endswith(f".{place}")]
    path = next((path for path in paths if value_at(settings, path) == value), "")
    if error["type"] == "extra_forbidden":
        from deepspeed.runtime.config_utils import DeepSpeedConfigModel

        kinds = DeepSpeedConfigModel.__subclasses__()
        fields = [field for kind in kinds for field in kind.model_fields.items()]
        names = {known for name, field in fields for known in (name, field.alias) if known}
        hint = nearest(str(error["loc"][-1]), names) or "take it out"
        return Refusal(file, path, "DeepSpeed has no such field", hint)
    return Refusal(file, path, f"is {shown(value)}: {_lower(error['msg'])}")


def _paths(data: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the places of all fields, with dots where one is in a section; sections come last."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{before}{name}.")
        yield f"{before}{name}"


def _without(files: Files, file: str, path: str, *, auto: bool = False) -> Files:
    """Return files without a field; DeepSpeed's is left to the trainer where `auto` is set."""
    files = json.loads(json.dumps(files))
    *parents, last = path.split(".")
    inside: Any = files[file]
    for name in parents:
        inside = inside.setdefault(name, {})
    inside.pop(last, None)
    if auto and file == "deepspeed":
        inside[last] = AUTO
    return files
