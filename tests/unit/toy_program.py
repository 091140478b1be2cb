"""A toy training run as a record of allocations, at any depth, chunk count and micro-batch.

It does what a trace of the real trainer does: weights of each layer; a hidden state handed on from
layer to layer; activations kept for a backward in descending order; a loss in chunks; gradients,
clipped and zeroed by operators over the lists of all layers; an optimizer's state. So a record that
was scaled must be the record of the program itself at that size.
"""

import random
from dataclasses import dataclass, field

from autotune.estimate.records.events import (
    ACTIVATIONS,
    ALLOCATE,
    FREE,
    GRADIENTS,
    LOGITS,
    MOVE,
    OPTIMIZER,
    PHASE,
    TEMPORARIES,
    WEIGHTS,
    WORKSPACES,
    chunk,
    layer,
)

WIDTH, VOCABULARY, WEIGHT = 24, 70, 4096


@dataclass(kw_only=True)
class Toy:
    """What the program is like; `record` runs it.

    Attributes:
        rows_per_chunk: of the loss; 0: it is not chunked.
        whole_chunks: the last chunk takes as much as the others.
        mask: whether an attention mask of size x size is made.
        lag: a hidden state is let go of so many layers later.
        between: that is when this layer has been left.
        cached: each layer's forward makes a copy of its weight; all die after the loss, in an order
            that this number decides.
        special_ends: the first two layers and the last one are larger than the others.
        passing: bytes that an optimizer step makes for each weight and lets go of, in their order.
        workspace: bytes that the first forward and the first backward pass make for good.
    """

    layers: int
    rows_per_chunk: int = 0
    whole_chunks: bool = False
    accumulation: int = 1
    mask: bool = False
    special_ends: bool = False
    recomputes: bool = False
    lag: int = 1
    between: bool = False
    cached: int | None = None
    passing: tuple[int, ...] = (4096,)
    workspace: int = 0
    events: list = field(default_factory=list)

    def record(self, sizes):
        """The events of an optimizer step for each micro-batch size."""
        self._next, self._made_in = 0, {}
        self._gradients, self._states, self._left, self._workspaces = {}, [], [], {}
        self._weights = [
            self._make(self._weight(index), WEIGHTS, "init", layer(index))
            for index in range(self.layers)
        ]
        self._make(VOCABULARY * WIDTH, WEIGHTS, "init")
        for size in sizes:
            self._step(size)
        self._phase("data")
        return self.events

    def chunks(self, size):
        """Chunks of the loss of a micro-batch."""
        return -(-size // self.rows_per_chunk) if self.rows_per_chunk else 0

    # -- what the program is made of

    def _step(self, size):
        self._phase("data")
        rows = [self._make(9, ACTIVATIONS, "row") for _ in range(size)]
        batches = [self._make(8 * size, ACTIVATIONS, "collate") for _ in range(self.accumulation)]
        self._free_all(rows + self._left)
        loss = None
        for _ in range(self.accumulation):
            self._phase("micro-step")
            previous, loss = loss, self._micro_step(size)
            self._phase("clip")
            self._free_all([previous] if previous is not None else [])
            if self.rows_per_chunk:  # told by where the loss was made
                region = chunk(self.chunks(size) - 1)
                self._free(self._make(1, TEMPORARIES, "isnan", region), region)
        self._over_layers("norm", 512)
        self._phase("step")
        self._optimizer()
        self._phase("zero_grad")
        for index in range(self.layers):
            self._free(self._gradients.pop(index), layer(index))
        self._left = [*batches, loss]

    def _micro_step(self, size):
        handed_on, kept = [self._make(size * WIDTH, ACTIVATIONS, "embedding")], []
        outputs, copies = [], []
        mask = self._make(size * size, ACTIVATIONS, "mask") if self.mask else None
        self._work_in("forward")
        for index in range(self.layers):
            region = layer(index)
            if self.cached is not None:
                copies.append(self._make(WEIGHT // 2, ACTIVATIONS, "cast", region))
            kept.append(self._make(size * WIDTH * 3, ACTIVATIONS, "attention", region))
            inner = self._make(size * WIDTH * 4, ACTIVATIONS, "mlp", region)
            handed_on.append(self._make(size * WIDTH, ACTIVATIONS, "add", region))
            outputs.append(self._make(size, ACTIVATIONS, "norm", region))
            self._free(inner, region)
            self._free_all(handed_on[: -self.lag], 0 if self.between else region)
            handed_on = handed_on[-self.lag :]
        self._free_all(outputs, region)
        loss, gradient = self._loss(size)
        self._work_in("backward")
        random.Random(self.cached).shuffle(copies)
        self._free_all(copies)
        self._free_all(handed_on)
        for index in reversed(range(self.layers)):
            gradient = self._backward(index, size, gradient, kept[index])
        self._free_all([gradient] if mask is None else [gradient, mask])
        return loss

    def _work_in(self, thread):
        if self.workspace and thread not in self._workspaces:
            self._workspaces[thread] = self._make(self.workspace, WORKSPACES, "cublas")

    def _backward(self, index, size, gradient, kept):
        region = layer(index)
        if self.recomputes:
            self._free(self._make(size * WIDTH * 5, ACTIVATIONS, "mlp", region), region)
        out = self._make(size * WIDTH, TEMPORARIES, "mm", region)
        self._free_all([gradient, kept], region)
        made = self._make(self._weight(index), TEMPORARIES, "mm", region)
        if index in self._gradients:
            self._free(made, region)
        else:
            self._gradients[index] = made
            self.events.append((MOVE, made, GRADIENTS, region))
        return out

    def _loss(self, size):
        loss = self._make(4, ACTIVATIONS, "loss")
        gradient = self._make(size * WIDTH, TEMPORARIES, "zeros")
        if not self.rows_per_chunk:
            logits = self._make(size * VOCABULARY, LOGITS, "head")
            self._free(logits)
            return loss, gradient
        self._chunked_loss(size)
        return loss, gradient

    def _chunked_loss(self, size):
        """As TRL's: its list of chunks dies in the last one, which ends with the loss."""
        entropies, saved, total = [], [], None
        for index in range(self.chunks(size)):
            region, rows = chunk(index), self._rows_of_chunk(index, size)
            self._free(self._make(rows * VOCABULARY, LOGITS, "head", region), region)
            saved.append(self._make(rows * 2, ACTIVATIONS, "slice", region))
            entropies.append(self._make(rows * 4, ACTIVATIONS, "entropy", region))
            previous, total = total, self._make(8, ACTIVATIONS, "add", region)
            self._free_all([previous] if previous is not None else [], region)
        self._free_all(entropies, region)
        mean = self._make(8, ACTIVATIONS, "div", region)
        cat = self._make(4 * size, ACTIVATIONS, "cat")
        self._free_all([total, cat])
        for index in reversed(range(self.chunks(size))):
            region, rows = chunk(index), self._rows_of_chunk(index, size)
            logits = self._make(rows * VOCABULARY, LOGITS, "head", region)
            other = self._make(rows * VOCABULARY, TEMPORARIES, "softmax", region)
            if index < self.chunks(size) - 1:
                self._free(self._make(VOCABULARY * WIDTH, TEMPORARIES, "add", region), region)
            self._free_all([logits, other, saved[index]], region)
        self._free(mean, chunk(self.chunks(size) - 1))

    def _rows_of_chunk(self, index, size):
        full = self.rows_per_chunk
        return full if self.whole_chunks else min(full, size - index * full)

    def _optimizer(self):
        states = []
        if not self._states:
            states = [
                self._make(2 * self._weight(index), TEMPORARIES, "zeros", layer(index))
                for index in range(self.layers)
            ]
            self._states = states
        for nbytes in self.passing:
            self._over_layers("foreach", nbytes)
        for index, state in enumerate(states):
            self.events.append((MOVE, state, OPTIMIZER, layer(index)))

    def _over_layers(self, operator, nbytes):
        made = [
            self._make(nbytes, TEMPORARIES, operator, layer(index)) for index in range(self.layers)
        ]
        for index, key in enumerate(made):
            self._free(key, layer(index))

    def _weight(self, index):
        larger = {self.layers - 1: 1, 1: 2, 0: 3} if self.special_ends else {}
        return WEIGHT + 640 * larger.get(index, 0)

    # -- events

    def _phase(self, name):
        self.events.append((PHASE, name, 0))

    def _make(self, nbytes, part, operator, region=0):
        self._next += 1
        self._made_in[self._next] = region
        self.events.append((ALLOCATE, self._next, nbytes, part, operator, region))
        return self._next

    def _free(self, key, region=0):
        # As the tracer tells it: outside all stretches, by where it was made.
        self.events.append((FREE, key, region or self._made_in[key]))

    def _free_all(self, keys, region=0):
        for key in keys:
            self._free(key, region)


def canonical(events):
    """The events with storages numbered as they first appear: equal for equal programs.

    Where a storage was freed is left out: between two stretches it can be told in two ways.
    """
    number, found = {}, []
    for event in events:
        kind, key, *rest = event
        if kind != PHASE:
            key = number.setdefault(key, len(number))
        found.append((kind, key, *(rest if kind != FREE else ())))
    return found


def allocations(events):
    """(id, bytes) of each allocation and (id, -1) of each free."""
    for event in events:
        if event[0] == ALLOCATE:
            yield event[1], event[2]
        elif event[0] == FREE:
            yield event[1], -1


def curve(events):
    """The live bytes after each allocation and free."""
    sizes, live, found = {}, 0, []
    for key, nbytes in allocations(events):
        if nbytes < 0:
            live -= sizes.pop(key)
        else:
            sizes[key] = nbytes
            live += nbytes
        found.append(live)
    return found
