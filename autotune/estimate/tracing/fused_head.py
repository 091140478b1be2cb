"""TRL's fused LM head (from 1.15 on): its chunks of tokens, and its kernels as CUDA has them.

The head scores tokens in chunks, each against one slice of the vocabulary after the other, so that
no more than one tile of logits is ever held. On CUDA each tile is folded by a Triton kernel that
allocates nothing; elsewhere by torch's operators, of which a trace on the CPU would see too much.
Runs in a child only.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from autotune.estimate.records import events
from autotune.estimate.records.events import Work
from autotune.estimate.tracing.tracer import Tracer
from autotune.facts.stack import fused_head
from autotune.training.patching import replaced, require

KERNELS, UTILS = "trl.kernels.chunked_logprob", "trl.trainer.utils"
DIVERGENCE = "trl.kernels.chunked_divergence"
DISTILLATION = "trl.trainer.distillation_trainer"
_HOOKS = ("TOKEN_CHUNK_SIZE", "_forward_tile", "_backward_tile", "_addmm_fp32", "_use_triton")
_HALF = (torch.float16, torch.bfloat16)


def kernels() -> ModuleType:
    """Return the module of the head's kernels.

    Raises:
        MissingHook: it is not the one this was written for.
    """
    module = importlib.import_module(KERNELS)
    require(module, *_HOOKS)
    return module


def tokens_per_chunk() -> int:
    """Return tokens that the head scores at once."""
    size: int = kernels().TOKEN_CHUNK_SIZE
    return size


@contextlib.contextmanager
def token_chunks_watched(tracer: Tracer) -> Iterator[None]:
    """Mark what happens in each chunk of tokens, forward and backward: each is one turn of a
    `range` of that step. Its tiles are logits."""
    owner = kernels()
    wide = importlib.import_module(UTILS)
    require(wide, "_CHUNKED_LOGPROB_CHUNK_SIZE")
    tracer.tiles = tiles(tracer.vocabulary, wide._CHUNKED_LOGPROB_CHUNK_SIZE)

    def turns(*bounds: int) -> Any:
        every = range(*bounds)
        return _marked(tracer, every) if bounds[2:] == (owner.TOKEN_CHUNK_SIZE,) else every

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(owner, "range", turns, absent_too=True))
        for name in ("_forward_tile", "_backward_tile"):
            stack.enter_context(replaced(owner, name, _as_logits(tracer, getattr(owner, name))))
        yield


def tiles(vocabulary: int | None, slice_width: int) -> frozenset[int]:
    """Return how wide the slices of a vocabulary are."""
    return frozenset({slice_width, (vocabulary or 0) % slice_width} - {0})


def _as_logits(tracer: Tracer, fold: Callable[..., None]) -> Callable[..., None]:
    def fold_and_count(tile: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        tracer.count_as(tile, events.LOGITS)
        fold(tile, *args, **kwargs)

    return fold_and_count


def _marked(tracer: Tracer, starts: range) -> Iterator[int]:
    for index, start in enumerate(starts):
        tracer.region = events.chunk(index)
        yield start
    tracer.region = events.NOWHERE


@contextlib.contextmanager
def fused_head_as_on_cuda(tracer: Tracer) -> Iterator[None]:
    """Only labelled tokens are scored, and tiles are folded in place; nothing where this TRL has no
    fused head."""
    if not fused_head():
        yield
        return
    owner, utils = kernels(), importlib.import_module(UTILS)
    require(utils, "_use_triton")

    def yes(_: Any) -> bool:
        return True

    with contextlib.ExitStack() as stack:
        stack.enter_context(_divergence_as_on_cuda(tracer, yes))
        for name, value in {
            "_use_triton": yes,
            "_forward_kernel": _Launched(tracer, passes=1),
            "_backward_kernel": _Launched(tracer, passes=2),
            "_addmm_fp32": float32_adder(tracer),
            "triton": SimpleNamespace(cdiv=lambda total, part: -(-total // part)),
        }.items():
            stack.enter_context(replaced(owner, name, value, absent_too=True))
        stack.enter_context(replaced(utils, "_use_triton", yes))
        yield


@contextlib.contextmanager
def _divergence_as_on_cuda(tracer: Tracer, yes: Callable[[Any], bool]) -> Iterator[None]:
    """Do the same for the loss that holds a student's tiles against a teacher's, where that
    trains."""
    trainer = sys.modules.get(DISTILLATION)
    if trainer is None:
        yield
        return
    owner, add = importlib.import_module(DIVERGENCE), float32_adder(tracer)
    require(owner, "_stats_tile", "_jsd_tile", "_backward_tile", "_project", "_addmm_fp32")

    def project(tile: Any, hidden: Any, weight: Any, bias: Any, *part: Any) -> None:
        start, end, dtype = part
        add(tile, hidden, weight[start:end].to(dtype).t())
        if bias is not None:
            tile.add_(bias[start:end].float())

    with contextlib.ExitStack() as stack:
        for name, value in {
            "_use_triton": yes,
            "_stats_kernel": _Launched(tracer, passes=1),
            "_jsd_kernel": _Launched(tracer, passes=1),
            "_backward_kernel": _Launched(tracer, passes=2),
            "_project": project,
            "_addmm_fp32": add,
            "triton": SimpleNamespace(cdiv=lambda total, part: -(-total // part)),
        }.items():
            stack.enter_context(replaced(owner, name, value, absent_too=True))
        stack.enter_context(replaced(trainer, "_use_triton", yes))
        yield


class _Launched:
    """A Triton kernel that reads (and writes) tiles."""

    def __init__(self, tracer: Tracer, passes: int) -> None:
        self._tracer, self._passes = tracer, passes

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def _launch(self, tile: torch.Tensor, *args: Any, **_: Any) -> None:
        moved_bytes = 0
        for one in (tile, *args):
            if isinstance(one, torch.Tensor) and one.shape == tile.shape:
                self._tracer.count_as(one, events.LOGITS)
                moved_bytes += self._passes * one.numel() * one.element_size()
        note(self._tracer, "trl::fold", "memory", tile, (), 0, moved_bytes)


def float32_adder(tracer: Tracer) -> Callable[..., None]:
    """Return `acc += a @ b` as CUDA does it: halves into a float32 sum without a copy of either."""

    def add(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        if a.dtype not in _HALF:
            acc.addmm_(a.float(), b.float())
            return
        (rows, depth), columns = a.shape, b.shape[1]
        moved_bytes = sum(t.numel() * t.element_size() for t in (a, b, acc, acc))
        dims, flops = (1, rows, depth, columns), 2 * rows * depth * columns
        note(
            tracer,
            "aten::addmm.dtype_out",
            "matmul",
            a,
            dims,
            flops,
            moved_bytes,
        )

    return add


def note(
    tracer: Tracer,
    operator: str,
    kind: str,
    of: torch.Tensor,
    dims: tuple[int, ...],
    flops: int,
    moved_bytes: int,
) -> None:
    """Tell the tracer of work that no operator does."""
    if tracer.works is not None:
        tracer.works.append(
            Work(
                operator=operator,
                kind=kind,
                dtype=str(of.dtype).removeprefix("torch."),
                dims=dims,
                flops=flops,
                moved_bytes=moved_bytes,
                region=tracer.region,
            )
        )
