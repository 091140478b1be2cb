"""Children of the CPU tests: they use the product's own code on the real trainer."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.job.methods import METHODS
from autotune.probe.protocol import ProbeRequest
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.proc import process_status


def one_step(path: Path) -> None:
    """One optimizer step of a candidate on its first rows; what it did to the weights."""
    import torch

    from autotune.training.batch_plan import Rows, as_dataset, raw_rows
    from autotune.training.registry import family

    folder = ChildFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request))
    os.environ.update(request.environment)
    torch.set_num_threads(1)
    trains = family(request.method)
    overrides = {**trains.overrides, "output_dir": str(folder.scratch), "max_steps": 1}
    _, training, model = trains.parse({**request.config, **overrides}, folder.scratch)
    if METHODS[request.method].online:
        groups = getattr(training, "num_generations", 1)
        dataset = raw_rows(request.rows).select(range(request.global_batch // groups))
    else:
        rows = Rows(request.rows, request.method)
        dataset = as_dataset([[_told_apart(rows[n]) for n in range(request.global_batch)]])
    torch.manual_seed(0)
    trainer = trains.trainer(request, training, model, dataset)
    if METHODS[request.method].reference and trainer.ref_model is not None:
        # Both are of one checkpoint.
        pairs = zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True)
        for reference, weight in pairs:  # what is compiled has other names
            reference.data.copy_(weight.data)
    if hasattr(trainer, "reward_funcs"):  # completions of one length would be rewarded alike
        trainer.reward_funcs[:] = [_by_tokens]
    gradients: list[float] = []
    trainer.add_callback(_noting(gradients))
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    after = [p.detach() for p in trainer.model.parameters() if p.requires_grad]
    moved = [float((b - a).double().norm()) for a, b in zip(after, before, strict=True)]
    loss = trainer.state.log_history[-1]["train_loss"]
    write_json(folder.reply, {"loss": loss, "gradients": gradients, "moved": moved})


def _noting(norms: list[float]) -> Any:
    """A callback that notes the norms of the gradients of a step."""
    from transformers import TrainerCallback

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            trained = [p for p in given["model"].parameters() if p.requires_grad]
            norms[:] = [0.0 if p.grad is None else float(p.grad.norm()) for p in trained]

    return Gradients()


def _told_apart(row: Any) -> dict[str, Any]:
    """A pair with other words in its worse text: of two alike nothing is learned."""
    worse = [3 + (7 * token) % 500 for token in row.get("rejected_ids", ())]
    return {**row, **({"rejected_ids": worse} if worse else {})}


def _by_tokens(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


def brief(path: Path) -> None:
    """The probe, which has measured enough after a second."""
    from autotune.probe import ranks_worker, step_meter

    step_meter.ENOUGH_SECONDS = 1.0
    ranks_worker.probe(path)


ENGINE_SETTINGS = "engine.json"
"""What `zero_as_it_is` leaves in the folder of each rank."""


def zero_as_it_is(path: Path) -> None:
    """A probe of several ranks; each tells what DeepSpeed's optimizer really is at its end."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    from autotune.probe import ranks_worker
    from autotune.training.ranks import Ranks

    check, make = Ranks.checked_engine, DeepSpeedZeroOptimizer.setup_buckets
    made: list[int] = []

    def setup_buckets(self: Any) -> None:
        make(self)  # it lets go of them after each backward pass
        made[:] = [one.numel() for bucket in self.ipg_buckets.values() for one in bucket.buffer]

    def checked_engine(self: Any, trainer: Any) -> str | None:
        optimizer = trainer.accelerator.deepspeed_engine_wrapped.engine.optimizer
        told = {
            "overlap_comm": getattr(optimizer, "overlap_comm", None),
            "reduce_bucket_size": optimizer.reduce_bucket_size,
            "buffers": made or [one.buffer.numel() for one in optimizer.ipg_buckets.values()],
            "prefetched": getattr(optimizer, "prefetch_elements", None),
            "whole": [p.ds_numel for p in getattr(optimizer, "persistent_parameters", ())],
        }
        write_json(path / f"{os.environ['RANK']}-{ENGINE_SETTINGS}", told)
        return check(self, trainer)

    Ranks.checked_engine = checked_engine  # type: ignore[method-assign]
    DeepSpeedZeroOptimizer.setup_buckets = setup_buckets
    ranks_worker.probe(path)


def zero_told_otherwise(path: Path) -> None:
    """A probe of several ranks, of which one takes another bucket than it was told."""
    from autotune.probe import ranks_worker
    from autotune.training.ranks import Ranks

    check = Ranks.checked_engine

    def checked_engine(self: Any, trainer: Any) -> str | None:
        if os.environ["RANK"] == "1":
            trainer.accelerator.deepspeed_engine_wrapped.engine.optimizer.reduce_bucket_size = 7
        return check(self, trainer)

    Ranks.checked_engine = checked_engine  # type: ignore[method-assign]
    ranks_worker.probe(path)


RANK_FAULTS = {
    "rank_1_out_of_memory": (1, "oom", "can't allocate memory"),
    "rank_0_killed": (0, "interrupted", "another process ended it by SIGKILL"),
    "rank_1_hangs": (1, "timeout", "behind the others"),
    "rank_1_hangs_near_its_limit": (1, "oom", "hung while holding"),
    "rank_1_raises": (1, "crash", "a fault of its own"),
}
"""Worker: (the rank to be named, the outcome, what is said of it)."""


def rank_1_out_of_memory(path: Path) -> None:
    """Rank 1 alone asks its allocator for more than its limit."""

    def fault() -> None:
        import torch

        torch.zeros(8 * 2**30, dtype=torch.uint8)

    _with_fault(path, 1, fault)


def rank_0_killed(path: Path) -> None:
    """Rank 0 is killed from outside."""
    _with_fault(path, 0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def rank_1_hangs(path: Path) -> None:
    """Rank 1 never comes to the next collective."""
    _with_fault(path, 1, lambda: time.sleep(600))


def rank_1_hangs_near_its_limit(path: Path) -> None:
    """Rank 1 holds nearly all that it may, and goes no further: a refused thread looks so."""
    limit = (read_json(path / "request.json") or {})["memory_limit_bytes"]

    def fault() -> None:
        import torch

        data = torch.ones(int(0.9 * limit) - process_status("VmRSS"), dtype=torch.uint8)
        time.sleep(600)
        del data

    _with_fault(path, 1, fault)


def rank_1_raises(path: Path) -> None:
    """Rank 1 alone runs into an error; what the other then says of its connection is no cause."""

    def fault() -> None:
        raise RuntimeError("a fault of its own")

    _with_fault(path, 1, fault)


def with_a_taken_port(path: Path) -> None:
    """Two ranks where the rendezvous port that the surroundings name is somebody else's."""
    from autotune.probe import ranks_worker

    with socket.create_server(("127.0.0.1", 0)) as somebody:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(somebody.getsockname()[1])}
        ranks_worker.probe(path)


def _with_fault(path: Path, rank: int, fault: Callable[[], None]) -> None:
    """A probe of several ranks; in one of them something happens in its second optimizer step."""
    from autotune.probe import ranks_worker
    from autotune.probe.step_meter import StepMeter

    begin = StepMeter.on_step_begin

    def on_step_begin(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1 and int(os.environ["RANK"]) == rank:
            fault()
        begin(self, args, state, control, **kwargs)

    StepMeter.on_step_begin = on_step_begin  # type: ignore[method-assign]
    ranks_worker.probe(path)


class Stepped(Exception):
    """The first optimizer step is done."""


def notes_growth(path: Path) -> None:
    """Each rank writes down by how much its memory grew at most until the model was there, until
    the engine was, and after a first optimizer step; it goes no further."""
    from autotune.probe import ranks_worker
    from autotune.probe.step_meter import StepMeter
    from autotune.training.family import Family

    make, begin = Family.trainer, StepMeter.on_train_begin
    before, grown = [0], {}

    def note(when: str) -> None:
        grown[when] = process_status("VmHWM") - before[0]

    def trainer(self: Any, *args: Any, **kwargs: Any) -> Any:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
        before[0] = process_status("VmHWM")
        made = make(self, *args, **kwargs)
        note("model")
        return made

    def on_train_begin(*args: Any, **kwargs: Any) -> None:
        note("engine")
        begin(*args, **kwargs)

    def on_step_end(*_: Any, **__: Any) -> None:
        note("step")
        write_json(path / f"growth-{os.environ['RANK']}.json", grown)
        raise Stepped

    Family.trainer = trainer  # type: ignore[method-assign]
    StepMeter.on_train_begin = on_train_begin  # type: ignore[method-assign]
    StepMeter.on_step_end = on_step_end  # type: ignore[method-assign]
    ranks_worker.probe(path)


def _no_room(*_: Any) -> None:
    """An allocation that really fails."""
    import torch

    torch.empty(2**60, dtype=torch.uint8)


def no_room_in_the_forward_pass(path: Path) -> None:
    """A probe whose model's forward pass finds no memory, once it has trained a step."""
    _after_a_step(path, lambda trainer: trainer.model.register_forward_pre_hook(_no_room))


def no_room_in_the_backward_pass(path: Path) -> None:
    """The same of the backward pass."""

    def fault(trainer: Any) -> None:
        layer = trainer.model.model.layers[0].mlp
        layer.register_forward_hook(lambda _, __, output: output.register_hook(_no_room) and None)

    _after_a_step(path, fault)


def no_room_in_the_optimizer_step(path: Path) -> None:
    """The same of the optimizer."""
    _after_a_step(
        path, lambda trainer: trainer.optimizer.optimizer.register_step_pre_hook(_no_room)
    )


def a_data_worker_ends(path: Path) -> None:
    """A probe in which a process that loads data ends by itself, with no word."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    from autotune.probe import ranks_worker

    trainer = os.getpid()
    collate = DataCollatorForLanguageModeling.torch_call

    def torch_call(self: Any, rows: Any) -> Any:
        if os.getpid() != trainer:
            os._exit(3)
        return collate(self, rows)

    DataCollatorForLanguageModeling.torch_call = torch_call  # type: ignore[method-assign]
    ranks_worker.probe(path)


def _after_a_step(path: Path, fault: Callable[[Any], Any]) -> None:
    """A probe with a fault that is put in after its first optimizer step."""
    from autotune.probe import ranks_worker
    from autotune.probe.step_meter import StepMeter

    attach, end = StepMeter.attach, StepMeter.on_step_end
    trainers: list[Any] = []

    def attach_and_keep(self: Any, trainer: Any) -> None:
        trainers.append(trainer)
        attach(self, trainer)

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            fault(trainers[0])
        end(self, args, state, control, **kwargs)

    StepMeter.attach = attach_and_keep  # type: ignore[method-assign]
    StepMeter.on_step_end = on_step_end  # type: ignore[method-assign]
    ranks_worker.probe(path)
