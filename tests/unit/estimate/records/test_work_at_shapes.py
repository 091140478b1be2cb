"""The work of a toy micro-step, scaled to any size, chunk count and depth."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.records.events import NOWHERE, Work, chunk, layer
from autotune.estimate.records.shapes import Irregular, Shape, ShapeFamily

LAYERS = 5


def work(operator, region, *dims):
    flops = 2
    for dim in dims:
        flops *= dim
    return Work(
        operator=operator,
        kind="matmul",
        dtype="float32",
        dims=dims,
        flops=flops,
        moved_bytes=4 * sum(dims),
        region=region,
    )


def works(size, chunks, layers):
    """The work of a micro-step; all chunks but the last are of 8 rows, the last of what is left."""
    rows = [min(8, size - 8 * index) for index in range(chunks)]
    forward = [work("mm", layer(index), size, 32, 32) for index in range(layers)]
    losses = [
        piece
        for index, n in enumerate(rows)
        for piece in (work("head", chunk(index), n, 32, 99), work("head", chunk(index), n, 99, 1))
    ]
    last = [work("div", chunk(chunks - 1), 1)] if chunks else [work("head", NOWHERE, size, 99)]
    end = [work("other", NOWHERE, size, 7)]
    backward = [
        work(name, chunk(index), n, 99, 32)
        for index, n in reversed(list(enumerate(rows)))
        for name in ("head", *(["add"] if index < chunks - 1 else []), "softmax")
    ]
    backward_works = [work("mm", layer(index), size, 32, 64) for index in reversed(range(layers))]
    return [*forward, *losses, *last, *end, *backward, *backward_works]


def shape_of(size, chunks):
    return Shape(size=size, chunks=chunks, events=[], work=works(size, chunks, LAYERS))


def work_counts(works):
    return Counter(replace(piece, region=NOWHERE) for piece in works)


@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=2, unique=True),
    st.integers(1, 200),
    st.integers(5, 40),
)
def test_the_work_follows_size_and_depth(traced, wanted_size, layers):
    family = ShapeFamily(shapes=tuple(shape_of(size, 0) for size in traced))
    resized = family.work(wanted_size, 0, LAYERS, layers)
    assert resized == work_counts(works(wanted_size, 0, layers))


@given(
    st.lists(st.integers(33, 120), min_size=2, max_size=2, unique=True),
    st.integers(5, 40),
    st.integers(5, 40),
)
def test_the_work_of_a_chunked_loss_is_that_of_whole_chunks(traced, chunks, layers):
    family = ShapeFamily(shapes=tuple(shape_of(size, -(-size // 8)) for size in traced))
    resized = family.work(8 * chunks, chunks, LAYERS, layers)
    assert resized == work_counts(works(8 * chunks, chunks, layers))


@given(st.integers(1, 60), st.integers(5, 12), st.integers(5, 40))
def test_the_work_of_one_shape_follows_the_depth(size, traced_layers, layers):
    shape = Shape(size=size, chunks=0, events=[], work=works(size, 0, traced_layers))
    resized = ShapeFamily(shapes=(shape,)).work(size, 0, traced_layers, layers)
    assert resized == work_counts(works(size, 0, layers))


def test_shapes_with_other_operators_are_irregular():
    first, second = shape_of(4, 0), shape_of(8, 0)
    for changed in ({"operator": "bmm"}, {"kind": "memory"}, {"dtype": "int8"}, {"region": 9}):
        unlike = [replace(second.work[0], **changed), *second.work[1:]]
        family = ShapeFamily(shapes=(first, replace(second, work=unlike)))
        with pytest.raises(Irregular, match="different operators"):
            family.work(16, 0, LAYERS, LAYERS)
    fewer = ShapeFamily(shapes=(first, replace(second, work=second.work[1:])))
    with pytest.raises(Irregular, match="different numbers of operators"):
        fewer.work(16, 0, LAYERS, LAYERS)
    with pytest.raises(Irregular, match="too few"):
        ShapeFamily(shapes=(shape_of(20, 3), shape_of(40, 5))).work(80, 10, LAYERS, LAYERS)


@given(st.integers(41, 120), st.integers(6, 40), st.integers(5, 40))
def test_a_shape_alone_has_the_chunks_that_are_asked_for(size, chunks, layers):
    traced = shape_of(size, -(-size // 8))
    resized = ShapeFamily(shapes=(traced,)).work(size, chunks, LAYERS, layers)
    assert sum(n for piece, n in resized.items() if piece.operator == "softmax") == chunks
    outside = {
        piece: n for piece, n in resized.items() if piece.operator not in ("head", "softmax", "add")
    }
    assert outside == {
        piece: n
        for piece, n in work_counts(works(size, -(-size // 8), layers)).items()
        if piece.operator not in ("head", "softmax", "add")
    }


def test_a_loss_in_too_few_chunks_stays_as_it_was_traced():
    traced = shape_of(20, 3)
    resized = ShapeFamily(shapes=(traced,)).work(20, 9, LAYERS, LAYERS)
    assert resized == work_counts(traced.work)
