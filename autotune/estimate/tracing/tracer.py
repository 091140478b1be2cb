"""The tracer: every storage a fake training run makes, and its death, in program order.

A dispatch mode inside FakeTensorMode: no data exist and no kernel runs. What differs between fake
and real tensors is put right here or in `patches.py`:

- autograd adds a second gradient into the first one's storage where it holds the last reference to
  it (torch/csrc/autograd/input_buffer.cpp); for tensor subclasses, fake ones too, it makes a new
  one. Such additions are marked ("i", new, old); where the old storage dies right afterwards, the
  engine did hold the last reference, and the two are merged again (`finish`);
- values that decide what the program does are carried along (`values.py`);
- scratch that kernels allocate inside C++ is put in (`kernels/cuda.py`, `kernels/cpu.py`).
"""

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from autotune.estimate.records import events
from autotune.estimate.tracing.fake_dispatch import result_of
from autotune.estimate.tracing.kernels import cpu
from autotune.estimate.tracing.kernels.cuda import CudaRules
from autotune.estimate.tracing.operator_work import work_of
from autotune.estimate.tracing.values import UnknownValues, tensors_in

aten = torch.ops.aten
_WRITES_IN_PLACE_FOR_REAL = {
    # Backward formulas that write into their own fresh zeros, but not for tensor subclasses
    # (areAnyTensorSubclassLike in FunctionsManual.cpp).
    *(aten.scatter_add.default, aten.scatter.src, aten.index_put.default, aten.index_add.default),
}
_ZEROS = {"aten::new_zeros", "aten::zeros", "aten::zeros_like"}
_FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE
_BETWEEN = (__file__, "_dynamo", "_compile.py", "_python_dispatch")
"""Files of the frames between an operator and whoever called it: ours, and torch's wrappers."""
_PASSING = (events.ACTIVATIONS, events.TEMPORARIES)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a tensor that is sharded over several."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class Tracer(TorchDispatchMode):
    """Records the storages of everything dispatched while it is active."""

    def __init__(self, vocabulary: int | None, cuda: CudaRules | None) -> None:
        """Begin with no events; `cuda`: whose hidden allocations to put in; None: the CPU as it
        is."""
        super().__init__()
        self.events: list[tuple[Any, ...]] = []
        self.works: list[events.Work] | None = None
        """The list that work of operators is added to; None: none is noted."""
        self.unknown_values = unknown = UnknownValues()
        self.policy, self.known_values = unknown.policy, unknown.known_values
        self.token: int | None = None
        """The token that a model draws when it generates; None: not known."""
        self.tiles: frozenset[int] = frozenset()
        """Widths that only logits have inside a chunk of the loss."""
        self.phase, self.recomputing, self.paused = events.INIT, False, False
        """`paused`: whether what is done now would not be done with real tensors."""
        self.region = events.NOWHERE
        self._regions: dict[int, int] = {}
        self.vocabulary, self._cuda = vocabulary, cuda
        self._fake: Any = None
        self._storages: Any = WeakIdKeyDictionary()
        self._part: dict[int, str] = {}
        self._made_by: dict[int, str] = {}
        self._workspaces: set[str] = set()
        self._streams = [torch.cpu.current_stream()]
        self._cpu_scratch = cpu.CpuScratch()
        self._next, self._aside = 0, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True: nothing is compiled here; torch would wrap each of a million calls against it."""
        return False

    # -- marks of the trainer

    def enter_phase(self, name: str) -> None:
        """Begin a phase of the trainer."""
        self.phase, self.region = name, events.NOWHERE
        self.events.append((events.PHASE, name, 0))

    def empty_cache(self) -> None:
        """Note that the program gives the allocator's cache back."""
        self.events.append((events.FREE, -1 - len(self.events), events.NOWHERE))

    def count_as(self, tensor: torch.Tensor, part: str) -> None:
        """Count the tensor's storage in this part from now on."""
        key = self._key(tensor)
        if key is not None and self._part[key] != part:
            self._part[key] = part
            self.events.append((events.MOVE, key, part, self._regions.get(key, 0)))

    def belongs_to(self, tensor: torch.Tensor, region: int) -> None:
        """Put the tensor into this layer, wherever it is made or freed."""
        key = self._key(tensor)
        if key is not None:
            self._regions[key] = region

    def belongs_with(self, tensor: torch.Tensor, neighbour: torch.Tensor) -> None:
        """Put the tensor into the layer of the other one."""
        key = self._key(neighbour)
        if key in self._regions:
            self.belongs_to(tensor, self._regions[key])

    def finish(self) -> list[events.Event]:
        """Return the events, with autograd's in-place accumulation as it is for real tensors."""
        return [self._with_region(event) for event in merge_accumulation(self.events)]

    def _with_region(self, event: events.Event) -> events.Event:
        """Return the event with its layer: that of a weight is known only after it was made."""
        if event[0] == events.PHASE or event[-1] != events.NOWHERE:
            return event
        return (*event[:-1], self._regions.get(event[1], events.NOWHERE))

    # -- storages

    def _key(self, tensor: torch.Tensor) -> int | None:
        entry = self._storages.get(local(tensor).untyped_storage())
        return None if entry is None else int(entry[0])

    def allocate(self, nbytes: int, part: str, operator: str, region: int) -> int:
        """Note a storage that comes to life; return its id."""
        key = self._next + events.STREAM * self._stream()
        self._next += 1
        self._part[key], self._made_by[key] = part, operator
        if region:
            self._regions[key] = region
        self.events.append((events.ALLOCATE, key, nbytes, part, operator, region))
        return key

    def _stream(self) -> int:
        """Return the number of the stream that the program is on; all are the CPU's."""
        now = torch.cpu.current_stream()
        if now not in self._streams:
            self._streams.append(now)
        return self._streams.index(now)

    def free(self, key: int) -> None:
        """Note that a storage dies."""
        self.events.append((events.FREE, key, self.region or self._regions.get(key, 0)))

    def follow(self, tensor: torch.Tensor, part: str, operator: str, region: int) -> int | None:
        """Note the tensor's storage if it is new; return its id then."""
        tensor = local(tensor)
        storage = tensor.untyped_storage()
        if storage in self._storages or tensor.device.type == "meta":
            return None
        key = self.allocate(storage.nbytes(), part, operator, region)
        self._storages[storage] = (key, weakref.ref(storage, lambda _: self.free(key)))
        return key

    def note_resize(self, tensor: torch.Tensor) -> None:
        """Note that the tensor's storage was resized or emptied, without an operator."""
        storage = local(tensor).untyped_storage()
        entry = self._storages.pop(storage, None)
        if entry is None:
            return
        self.free(entry[0])
        if storage.nbytes():
            self.follow(tensor, self._part[entry[0]], "resize_", self.region)

    def _inside(self, func: Any, args: Any, kwargs: Any, out: Any) -> Iterable[int]:
        """Return the sizes of what a kernel allocates and frees inside."""
        if self._cuda is not None:
            return self._cuda.scratch_bytes(func, args, out)
        scratch = self._cpu_scratch.bytes(func, args, kwargs, out)
        return cpu.scratch_bytes(func, args, out) if scratch is None else [scratch]

    def _scratch(self, sizes: Iterable[int], operator: str) -> None:
        keys = [self.allocate(n, events.TEMPORARIES, operator, self.region) for n in sizes]
        for key in keys:
            self.free(key)

    def _holds_logits(self, width: int) -> bool:
        return width == self.vocabulary or (self.region < 0 and width in self.tiles)

    def _part_of(self, tensor: torch.Tensor, backward: bool) -> str:
        if self.phase == events.INIT:
            return events.WEIGHTS if isinstance(tensor, torch.nn.Parameter) else events.TEMPORARIES
        if tensor.ndim > 1 and self._holds_logits(tensor.shape[-1]):
            return events.LOGITS
        if self.phase in {"step", "clip"} or (backward and not self.recomputing):
            return events.TEMPORARIES
        return events.ACTIVATIONS

    def _region_of(self, index: int, count: int, args: Any) -> int:
        """Return the layer of an output; an operator over lists makes one storage for each
        input."""
        if self.region or not args:
            return self.region
        first = args[0]
        if isinstance(first, list | tuple):
            if len(first) != count:
                return events.NOWHERE
            first = first[index]
        elif self.phase not in {events.INIT, "clip", "step"}:
            return events.NOWHERE
        key = self._key(first) if isinstance(first, torch.Tensor) else None
        return events.NOWHERE if key is None else self._regions.get(key, 0)

    # -- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return self._on_local_tensors(func, args, kwargs)
        if self.paused:
            return func(*args, **kwargs)
        fake_mode = torch._C._get_dispatch_mode(_FAKE_MODE)
        self._fake = self._fake or fake_mode
        if fake_mode is not self._fake:
            return func(*args, **kwargs)  # DTensor propagates shapes in a nested fake mode
        is_known, answer = self.unknown_values.answer(func, args)
        if is_known:
            return answer
        original_func, original_args = func, args
        func, args, kwargs = self.unknown_values.without_unknown_shapes(func, args, kwargs)
        backward = torch._C._current_autograd_node() is not None
        self._put_in_workspace(func, backward)
        out = result_of(self._fake, func, args, kwargs)
        if self._cuda is not None:
            out = self._cuda.result(func, out)
        self._note(func, args, kwargs, out, backward)
        self.known_values.follow(func, args, kwargs, out)
        if func is aten.multinomial.default and self.token is not None:
            with unset_fake_temporarily():
                tokens = torch.full(tuple(out.shape), self.token, dtype=out.dtype)
                self.known_values.set(out, tokens)
        if original_func is aten.nonzero.default:
            self.known_values.set_nonzero(out, original_args[0])
        return out

    def _on_local_tensors(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator of a DTensor, which calls operators on what it holds, so that they are
        traced.

        A mode is off while it handles a call. So this one is entered twice, and the upper one steps
        aside.
        """
        if self._aside:
            self._aside = False
            return NotImplemented
        with self, self:
            self._aside = True
            return func(*args, **kwargs)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any, backward: bool) -> None:
        name = func.name()
        outs = tensors_in(out)
        if name.startswith("aten::any"):
            for tensor in outs:
                self.unknown_values.harmless[tensor] = True
        new_key = None
        for index, tensor in enumerate(outs):
            region = self._region_of(index, len(outs), args)
            part = self._part_of(tensor, backward)
            if func is aten._to_copy.default and part == events.ACTIVATIONS:
                key = self._key(args[0])
                part = events.CASTS if key and self._part[key] == events.WEIGHTS else part
            new_key = self.follow(tensor, part, name, region)
        self._scratch(self._inside(func, args, kwargs, out), name + events.SCRATCH)
        if backward and new_key is not None:  # last: what is merged dies right after the mark
            self._note_in_place(func, args, new_key)
        if name.startswith("c10d::"):
            self._note_exchange(tensors_in(args))
        if self.works is not None and not name.startswith("prim::"):
            self.works.append(work_of(func, name, args, kwargs, outs, self.region))

    def _note_exchange(self, tensors: list[torch.Tensor]) -> None:
        """Count as communication what a collective reads or writes and no other part has."""
        for tensor in tensors:
            key = self._key(tensor)
            if key is not None and self._part[key] in _PASSING:
                self.count_as(tensor, events.COMMUNICATION)

    def _note_in_place(self, func: Any, args: Any, new_key: int) -> None:
        old = self._key(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        if old is None:
            return
        accumulated = func is aten.add.Tensor and called_by_engine() and not args[0]._is_view()
        into_zeros = func in _WRITES_IN_PLACE_FOR_REAL and self._made_by[old] in _ZEROS
        if accumulated or into_zeros:
            self.events.append(("i", new_key, old))

    def _put_in_workspace(self, func: Any, backward: bool) -> None:
        """Make cuBLAS's workspace, one a handle; the autograd thread has a handle of its own."""
        handle = "backward" if backward else "forward"
        if self._cuda is None or not self._cuda.uses_cublas(func) or handle in self._workspaces:
            return
        self._workspaces.add(handle)
        self.allocate(self._cuda.workspace_bytes, events.WORKSPACES, "cublas", 0)


def merge_accumulation(record: list[events.Event]) -> list[events.Event]:
    """Return the events without the marks, merged storages under the id of the first."""
    alias: dict[int, int] = {}
    dropped: set[int] = set()
    for index, event in enumerate(record):
        if event[0] != "i":
            continue
        _, new, old = event
        for later in range(index + 1, len(record)):
            kind = record[later][0]
            if kind not in (events.FREE, events.MOVE):
                break
            if kind == events.FREE and record[later][1] == old:
                alias[new] = old
                dropped.add(later)
                break

    def root(key: int) -> int:
        while key in alias:
            key = alias[key]
        return key

    out: list[events.Event] = []
    for index, event in enumerate(record):
        kind = event[0]
        if kind == "i" or index in dropped or (kind == events.ALLOCATE and event[1] in alias):
            continue
        out.append(event if kind == events.PHASE else (kind, root(event[1]), *event[2:]))
    return out


def called_by_engine() -> bool:
    """True if the running `add` is autograd's own accumulation, not one of a Python function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        if not any(name in frame.f_code.co_filename for name in _BETWEEN):
            return False
        frame = frame.f_back
    return False
