"""The speed of the candidates of one variant, from its traced shapes."""

import pytest

from autotune.estimate.protocol import EstimateReply, ShapeWork
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.estimate.speed.variants import VariantSpeed
from autotune.facts.device_kinds import find_kind

H200 = ceilings_of_kind(find_kind("h200"))


def shape(rows: int, length: int, *, masked: bool) -> ShapeWork:
    tokens = rows * length
    flops = 2 * tokens * 4096 * 4096
    matmul = ["aten::mm", "matmul", "bfloat16", [1, tokens, 4096, 4096], flops, 0, 0, 40]
    return ShapeWork(rows=rows, length=length, masked=masked, flat=False, work=[matmul])


def variant(*shapes: ShapeWork) -> VariantSpeed:
    reply = EstimateReply(
        points=[],
        shapes=list(shapes),
        optimizer_work={"": []},
        process_bytes=0,
    )
    return VariantSpeed(reply, H200)


PADDED = (
    shape(2, 512, masked=True),
    shape(2, 2048, masked=True),
    shape(4, 2048, masked=True),
)


def test_one_even_shape_follows_the_curves_of_the_padded_ones() -> None:
    single = variant(*PADDED, shape(1, 2048, masked=False))
    all_shapes = variant(*PADDED, *(shape(1, n, masked=False) for n in (512, 1024, 2048)))
    for length in (700, 1000, 1500):
        seconds = single.at(1, length, False).total
        assert seconds == pytest.approx(all_shapes.at(1, length, False).total, rel=0.1)
    assert single.at(1, 2048, False) == all_shapes.at(1, 2048, False)


def test_twice_the_rows_take_twice_as_long_where_the_device_is_busy() -> None:
    padded = variant(*PADDED)
    assert padded.at(8, 2048, True).total == pytest.approx(
        2 * padded.at(4, 2048, True).total, rel=0.02
    )


def test_an_engine_follows_the_curve_of_copies_through_its_own_shapes() -> None:
    """Its few shapes tell how much more it takes, not how that grows with the length."""
    copies = variant(*PADDED)
    shapes_of_engine = [shape(1, 512, masked=False), shape(4, 2048, masked=True)]
    reply = EstimateReply(
        points=[],
        shapes=[_doubled(shape_work) for shape_work in shapes_of_engine],
        copied_shapes=list(PADDED),
        optimizer_work={"": []},
        process_bytes=0,
    )
    engine = VariantSpeed(reply, H200)
    assert engine.at(4, 2048, True).total == pytest.approx(2 * copies.at(4, 2048, True).total)
    for rows, length in ((2, 700), (4, 1000), (2, 1500)):
        seconds = engine.at(rows, length, True).total
        assert seconds == pytest.approx(2 * copies.at(rows, length, True).total, rel=0.02)


def _doubled(shape_work: ShapeWork) -> ShapeWork:
    return ShapeWork(
        rows=shape_work.rows,
        length=shape_work.length,
        masked=shape_work.masked,
        flat=shape_work.flat,
        work=shape_work.work * 2,
    )
