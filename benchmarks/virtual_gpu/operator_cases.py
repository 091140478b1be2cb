"""The operators that a transformer's training uses, each with inputs of its own making."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

BF16, F32 = torch.bfloat16, torch.float32
Made = tuple[Callable[[], Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """One operator with its inputs; `make(device)` gives its forward pass and the leaves."""

    name: str
    make: Callable[[str], Made]
    autocast: bool = False


def leaf(device: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """An input that wants a gradient."""
    return torch.empty(*shape, device=device, dtype=dtype, requires_grad=True)


def on_leaves(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: torch.dtype, device: str
) -> Made:
    """`function` of new leaves."""
    # Results, not leaves: what is behind an operator frees its gradient.
    leaves = [leaf(device, dtype, *shape) for shape in shapes]
    return lambda: function(*leaves), leaves


def elementwise() -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """Functions of floating-point inputs alone, with the shapes of these."""
    x, w = (4, 96, 256), (256,)
    return {
        "dropout": (lambda a: F.dropout(a, 0.1), [x]),
        "dropout p=1": (lambda a: F.dropout(a, 1.0), [x]),
        "dropout inplace": (lambda a: F.dropout(a * 2, 0.1, inplace=True), [x]),
        "dropout eval": (lambda a: F.dropout(a, 0.1, training=False), [x]),
        "alpha dropout": (lambda a: F.alpha_dropout(a, 0.1, training=True), [x]),
        "layer_norm": (lambda a, b, c: F.layer_norm(a, (256,), b, c), [x, w, w]),
        "layer_norm module": (lambda a, b, c: torch.layer_norm(a, (256,), b, c), [x, w, w]),
        "rms_norm": (lambda a, b: F.rms_norm(a, (256,), b), [x, w]),
        "rms_norm eager": (rms_norm, [x, w]),
        "group_norm": (lambda a: F.group_norm(a.transpose(1, 2), 8), [x]),
        "gelu": (F.gelu, [x]),
        "gelu tanh": (lambda a: F.gelu(a, approximate="tanh"), [x]),
        "silu times": (lambda a, b: F.silu(a) * b, [x, x]),
        "relu squared": (lambda a: torch.square(F.relu(a)), [x]),
        "tanh softcap": (lambda a: torch.tanh(a / 30) * 30, [x]),
        "softplus": (F.softplus, [x]),
        "sigmoid": (torch.sigmoid, [x]),
        "logsigmoid": (F.logsigmoid, [x]),
        "softmax": (lambda a: torch.softmax(a, -1), [x]),
        "softmax F": (lambda a: F.softmax(a, -1), [x]),
        "softmax to float32": (lambda a: F.softmax(a, dim=-1, dtype=F32).to(a.dtype), [x]),
        "log_softmax": (lambda a: a.log_softmax(-1), [x]),
        "logsumexp": (lambda a: torch.logsumexp(a, -1), [x]),
        "logsumexp float32": (lambda a: torch.logsumexp(a.float(), -1), [x]),
        "mean": (lambda a: a.mean(-1), [x]),
        "sum": (lambda a: a.sum(), [x]),
        "pow": (lambda a: a.pow(2), [x]),
        "exp": (torch.exp, [x]),
        "rsqrt": (torch.rsqrt, [x]),
        "norm": (lambda a: a.norm(dim=-1), [x]),
        "cumsum": (lambda a: a.cumsum(1), [x]),
        "sort": (lambda a: a.sort(-1), [x]),
        "argsort": (lambda a: a.argsort(-1), [x]),
        "topk": (lambda a: a.topk(8, -1), [x]),
        "max": (lambda a: a.max(-1), [x]),
        "split": (lambda a: torch.cat(a.split(64, -1)[::-1], -1), [x]),
        "chunk": (lambda a: a.chunk(3, 1)[0] * a.chunk(3, 1)[1], [x]),
        "stack": (lambda a, b: torch.stack((a, b)), [x, x]),
        "rotate half": (rotated, [x]),
        "where": (lambda a: torch.where(a > 0, a, 0.0), [x]),
        "masked_fill": (lambda a: a.masked_fill(a > 0, -1.0), [x]),
        "repeat_kv": (lambda a: repeated(a, 3), [(2, 2, 96, 64)]),
        "add broadcast": (lambda a, b: a + b, [x, w]),
        "mul broadcast": (lambda a, b: a * b, [x, w]),
        "linear": (F.linear, [x, (512, 256)]),
        "linear bias": (F.linear, [x, (512, 256), (512,)]),
        "linear odd bias": (F.linear, [(4, 95, 250), (514, 250), (514,)]),
        "conv1d gpt2": (conv1d_gpt2, [x, (256, 768), (768,)]),
        "matmul 4d": (torch.matmul, [(2, 4, 96, 64), (2, 4, 64, 96)]),
        "baddbmm": (
            lambda a, b, c: torch.baddbmm(a, b, c),
            [(8, 96, 96), (8, 96, 64), (8, 64, 96)],
        ),
        "bmm": (torch.bmm, [(8, 96, 64), (8, 64, 96)]),
        "einsum": (lambda a, b: torch.einsum("bsh,oh->bso", a, b), [x, (512, 256)]),
        "conv1d depthwise": (
            lambda a, b: F.conv1d(a.transpose(1, 2), b, padding=3, groups=256)[..., :96],
            [x, (256, 1, 4)],
        ),
        "lora": (lora, [x, (256, 256), (16, 256), (256, 16)]),
        "mse": (lambda a, b: F.mse_loss(a, b), [x, x]),
        "float and back": (lambda a: (a.float() * 2).to(BF16), [x]),
        "contiguous": (lambda a: a.transpose(0, 1).contiguous(), [x]),
    }


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As transformers write it."""
    wide = hidden.to(F32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(hidden.dtype)


def rotated(states: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    half = states.shape[-1] // 2
    angle = torch.ones(states.shape[-2:], device=states.device, dtype=states.dtype)
    turned = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * angle + turned * angle


def repeated(states: torch.Tensor, times: int) -> torch.Tensor:
    """Key or value heads for every query head."""
    batch, heads, length, size = states.shape
    wide = states[:, :, None].expand(batch, heads, times, length, size)
    return wide.reshape(batch, heads * times, length, size)


def conv1d_gpt2(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GPT-2's projection."""
    return torch.addmm(bias, states.view(-1, states.shape[-1]), weight).view(*states.shape[:2], -1)


def lora(x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """An adapter on a frozen weight, with dropout."""
    return F.linear(x, weight.detach()) + F.linear(F.linear(F.dropout(x, 0.05), a), b) * 2.0


def indexed(name: str, dtype: torch.dtype, device: str) -> Made:
    """Functions with integer inputs."""
    width, rows = 256, 1000
    ids = torch.ones(4, 96, dtype=torch.long, device=device)
    flat = ids.view(-1)
    x, table = leaf(device, dtype, 4, 96, rows), leaf(device, dtype, rows, width)
    logits = leaf(device, dtype, 384, rows)
    functions: dict[str, tuple[Callable[[], Any], list[torch.Tensor]]] = {
        "embedding": (lambda: F.embedding(ids, table), [table]),
        "embedding padding": (lambda: F.embedding(ids, table, padding_idx=0), [table]),
        "embedding 5000 ids": (
            lambda: F.embedding(flat.repeat(14), table, padding_idx=0),
            [table],
        ),
        "embedding few": (lambda: F.embedding(ids[:1], table), [table]),
        "cross_entropy": (lambda: F.cross_entropy(logits, flat), [logits]),
        "cross_entropy none": (lambda: F.cross_entropy(logits, flat, reduction="none"), [logits]),
        "cross_entropy sum float": (
            lambda: F.cross_entropy(logits.float(), flat, reduction="sum", ignore_index=-100),
            [logits],
        ),
        "cross_entropy smooth": (
            lambda: F.cross_entropy(logits, flat, label_smoothing=0.1),
            [logits],
        ),
        "gather": (lambda: x.gather(-1, ids[..., None]), [x]),
        "selective": (lambda: x.log_softmax(-1).gather(-1, ids[..., None]), [x]),
        "index rows": (lambda: table[ids], [table]),
        "index mask": (lambda: logits[flat > 0], [logits]),
        "index_select": (lambda: table.index_select(0, flat), [table]),
        "index_add": (
            lambda: (
                torch.zeros_like(table).index_add(0, flat[:96], logits.new_ones(96, width)) * table
            ),
            [table],
        ),
        "scatter": (lambda: torch.zeros_like(x).scatter(-1, ids[..., None], x[..., :1]), [x]),
        "scatter_add": (lambda: torch.zeros_like(x).scatter_add(-1, ids[..., None], x), [x]),
        "index_put": (lambda: torch.zeros_like(table).index_put((flat[:96],), table[:96]), [table]),
        "index_put accumulate": (
            lambda: torch.zeros_like(table).index_put((flat[:96],), table[:96], accumulate=True),
            [table],
        ),
        "one_hot": (lambda: F.one_hot(ids, 8).sum() * table.sum(), [table]),
        "cumsum ids": (lambda: ids.cumsum(-1), []),
        "argsort ids": (lambda: flat.argsort(), []),
        "sort ids": (lambda: flat.sort(), []),
        "bincount": (lambda: torch.bincount(flat, minlength=8), []),
        "histc": (lambda: torch.histc(flat.float(), bins=8, min=0, max=7), []),
        "multinomial": (lambda: torch.multinomial(logits.detach().float(), 1), []),
        "all": (lambda: (ids > 0).all(), []),
        "entropy": (
            lambda: -(torch.exp(x.log_softmax(-1)) * x.log_softmax(-1)).sum(-1),
            [x],
        ),
    }
    return functions[name]


INDEXED = (
    *("embedding", "embedding padding", "embedding 5000 ids", "embedding few", "cross_entropy"),
    *("cross_entropy none", "cross_entropy sum float", "cross_entropy smooth", "gather"),
    *("selective", "index rows", "index mask", "index_select", "index_add", "scatter"),
    *("scatter_add", "index_put", "index_put accumulate", "one_hot", "cumsum ids", "argsort ids"),
    *("sort ids", "bincount", "histc", "multinomial", "all", "entropy"),
)


def attention(
    dtype: torch.dtype, device: str, *, size: int, keys: int, mask: str, dropout: float
) -> Made:
    """Scaled dot product attention as transformers call it: `causal`, a mask, or nothing."""
    shape = (2, 4, 100, size)
    query = leaf(device, dtype, *shape)
    key, value = (leaf(device, dtype, 2, keys, 100, size) for _ in range(2))
    given = None
    if mask in {"bool", "bool row"}:
        given = torch.ones(2 if mask == "bool" else 1, 1, 100, 100, device=device, dtype=torch.bool)
    elif mask == "float":
        given = torch.zeros(2, 1, 100, 100, device=device, dtype=dtype)

    def run() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, given, dropout, mask == "causal", enable_gqa=keys != shape[1]
        )

    return run, [query, key, value]


def eager_attention(dtype: torch.dtype, device: str, *, dropout: float) -> Made:
    """Attention as transformers write it."""
    leaves = [leaf(device, dtype, 2, 4, 100, 64) for _ in range(3)]
    mask = torch.zeros(2, 1, 100, 100, device=device, dtype=dtype)

    def run() -> torch.Tensor:
        query, key, value = leaves
        scores = torch.matmul(query, key.transpose(2, 3)) * 0.125 + mask
        weights = F.softmax(scores, dim=-1, dtype=F32).to(query.dtype)
        return torch.matmul(F.dropout(weights, dropout), value).transpose(1, 2).contiguous()

    return run, leaves


def optimizer(name: str, dtype: torch.dtype, device: str) -> Made:
    """A step with gradients that are there; the second of two has its states."""
    weights = [leaf(device, dtype, 256, 256), leaf(device, dtype, 256), leaf(device, dtype, 77, 99)]
    gradients = [torch.empty_like(weight) for weight in weights]
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw foreach": lambda: torch.optim.AdamW(weights, foreach=True),
        "adamw": lambda: torch.optim.AdamW(weights),
        "adamw fused": lambda: torch.optim.AdamW(weights, fused=True),
        "adamw amsgrad": lambda: torch.optim.AdamW(weights, amsgrad=True),
        "sgd momentum": lambda: torch.optim.SGD(weights, momentum=0.9),
        "adagrad": lambda: torch.optim.Adagrad(weights),
        "rmsprop": lambda: torch.optim.RMSprop(weights),
        "clip": lambda: torch.optim.SGD(weights),
    }
    made = kinds[name]()

    def run() -> Any:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        if name == "clip":
            return torch.nn.utils.clip_grad_norm_(weights, 1.0)
        return made.step()

    return run, []


OPTIMIZERS = (
    *("adamw foreach", "adamw", "adamw fused", "adamw amsgrad", "sgd momentum", "adagrad"),
    *("rmsprop", "clip"),
)


def cases() -> Iterator[Case]:
    """Every case, in bf16, in float32 and under autocast."""
    kinds = {"bf16": (BF16, False), "float32": (F32, False), "autocast": (F32, True)}
    kinds["autocast of bf16"] = (BF16, True)
    for kind, (dtype, autocast) in kinds.items():
        for name, (function, shapes) in elementwise().items():
            make = partial(on_leaves, function, shapes, dtype)
            yield Case(f"{name}, {kind}", make, autocast)
        for name in INDEXED:
            yield Case(f"{name}, {kind}", partial(indexed, name, dtype), autocast)
        for size in (64, 80, 66, 63, 128, 256, 288):
            for keys in (4, 2, 1):
                for mask in ("causal", "none", "bool", "bool row", "float"):
                    for dropout in (0.0, 0.1):
                        make = partial(
                            attention, dtype, size=size, keys=keys, mask=mask, dropout=dropout
                        )
                        name = f"sdpa {size} keys {keys} mask {mask} dropout {dropout}, {kind}"
                        yield Case(name, make, autocast)
        for dropout in (0.0, 0.1):
            make = partial(eager_attention, dtype, dropout=dropout)
            yield Case(f"eager attention dropout {dropout}, {kind}", make, autocast)
        if not autocast:
            for name in OPTIMIZERS:
                yield Case(f"{name}, {kind}", partial(optimizer, name, dtype))
