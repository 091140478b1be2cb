"""Records of few layers continued to many, stretch by stretch; their steps and works."""

import pytest

from autotune.estimate.records.depths import (
    LiveLimits,
    at_depth,
    depths,
    highest_part,
    highest_peak,
    live_limits,
    peaks_at,
    peaks_of,
    with_one_sub_group,
    with_room_between_groups,
    work_at_depth,
)
from autotune.estimate.records.events import (
    ALLOCATE,
    FREE,
    MOVE,
    PHASE,
    Event,
    Work,
    layer,
    live_bytes,
)
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import lagrange
from autotune.estimate.records.steps import step_records
from autotune.space.sharding.sharding import Sharding


def program(layers: int, *, gathered: int = 0) -> list[Event]:
    """A step of so many layers: activations pile up, gradients take their place, and the optimizer
    makes half as much for each layer, and a lot for nothing.

    Args:
        gathered: bytes of weights fetched ahead for each layer, up to 100.
    """
    events: list[Event] = [(PHASE, "data", 0)]
    events += [(ALLOCATE, n, 100, "weights", "init", layer(n)) for n in range(layers)]
    events += [(PHASE, "micro-step", 0), (ALLOCATE, 1000, 7, "activations", "embedding", 0)]
    events += [(ALLOCATE, 2000 + n, 30, "activations", "mm", layer(n)) for n in range(layers)]
    ahead = min(gathered * layers, 100)
    events += [(ALLOCATE, 5000, ahead, "communication", "gather", layer(layers - 1))]
    events += [(ALLOCATE, 3000, 250, "logits", "mm", 0), (FREE, 3000, 0)]
    for n in reversed(range(layers)):
        events += [(ALLOCATE, 4000 + n, 20, "temporaries", "mm", layer(n))]
        events += [(MOVE, 4000 + n, "gradients", layer(n)), (FREE, 2000 + n, layer(n))]
    events += [(FREE, 1000, 0), (FREE, 5000, 0), (PHASE, "step", 0)]
    return [*events, (ALLOCATE, 6000, 50 * layers - 100, "temporaries", "div", 0)]


@pytest.mark.parametrize("layers", [9, 16, 40])
def test_two_depths_tell_the_peak_of_any_where_each_layer_adds_the_same(layers: int) -> None:
    traced = [peaks_of(program(6)), peaks_of(program(8))]
    peak, direct = (
        highest_peak(peaks_at(traced, lagrange([6, 8], layers))),
        live_bytes(program(layers)),
    )
    assert peak.peak_bytes == direct.peak_bytes
    assert peak.parts == direct.parts
    assert (peak.phase, peak.operator) == (direct.phase, direct.operator)
    assert peak.phases == direct.phases


def test_the_peak_may_be_elsewhere_than_in_any_trace() -> None:
    assert {live_bytes(program(n)).phase for n in (6, 8)} == {"micro-step"}
    traced = [peaks_of(program(6)), peaks_of(program(8))]
    assert highest_peak(peaks_at(traced, lagrange([6, 8], 40))).phase == "step"


def test_sizes_are_rounded_up_to_the_granule() -> None:
    peak, direct = highest_peak(peaks_of(program(6), 512)), live_bytes(program(6), 512)
    assert (peak.peak_bytes, peak.phases) == (direct.peak_bytes, direct.phases)


def test_weights_are_not_fetched_ahead_without_end() -> None:
    traced = [peaks_of(program(n, gathered=11)) for n in (6, 8)]  # 66 and 88 of at most 100
    weights = lagrange([6, 8], 20)
    assert highest_part(traced[1], "communication") == 88
    assert highest_part(peaks_at(traced, weights), "communication") == 220
    direct = peaks_of(program(20, gathered=11))
    limits = LiveLimits(gathered=100, stepped=10**6, widened=10**6)
    assert highest_part(peaks_at(traced, weights, limits), "communication") == 100
    assert highest_peak(peaks_at(traced, weights, limits)) == highest_peak(direct)


def test_a_step_of_stage_3_takes_no_more_than_for_one_group_of_weights() -> None:
    traced, weights = [peaks_of(program(n)) for n in (6, 8)], lagrange([6, 8], 40)
    all_at_once = LiveLimits(gathered=10**6, stepped=10**6, widened=2 * 10**6)
    in_groups = LiveLimits(gathered=10**6, stepped=200, widened=400)
    free = peaks_at(traced, weights, all_at_once)
    grouped = peaks_at(traced, weights, in_groups)
    # Beside the gradients of ten of the forty layers, of 20 each, it makes what ten layers make.
    step = highest_peak(free).phases["step"] - 30 * 50
    assert highest_peak(grouped).phases == {**highest_peak(free).phases, "step": step}
    assert with_room_between_groups(grouped, in_groups) == step + 400
    assert with_room_between_groups(free, all_at_once) == 0


def test_a_part_that_shrinks_is_never_less_than_nothing() -> None:
    def record_of(lasting: int, passing: int) -> list[Event]:
        last = (ALLOCATE, 2, passing, "gradients", "mm", 0)
        return [(PHASE, "micro-step", 0), (ALLOCATE, 1, lasting, "logits", "mm", 0), last]

    peak = highest_peak(
        peaks_at([peaks_of(record_of(50, 10)), peaks_of(record_of(20, 60))], lagrange([1, 2], 4))
    )
    assert (peak.peak_bytes, peak.parts) == (120, {"gradients": 120})


def test_traces_whose_highest_stretches_have_nothing_in_common_are_refused() -> None:
    other_record = [
        (PHASE, "micro-step", 0),
        (PHASE, "more", 0),
        (ALLOCATE, 1, 9999, "logits", "mm", 0),
    ]
    short_record = [(PHASE, "micro-step", 0), (ALLOCATE, 1, 9999, "logits", "mm", 0)]
    with pytest.raises(Irregular):
        peaks_at([peaks_of(short_record), peaks_of(other_record)], lagrange([6, 8], 20))


def test_gradients_that_are_parted_need_traces_as_far_apart_as_there_are_ranks() -> None:
    def zero(stage: int, ranks: int, **options: str) -> Sharding:
        kind = "DEEPSPEED"
        return Sharding(distributed_type=kind, num_processes=ranks, zero_stage=stage, **options)  # type: ignore[arg-type]

    assert depths(32, zero(2, 4), adapters=False) == (6, 10)
    assert depths(32, zero(1, 8), adapters=False) == (6, 14)
    assert depths(80, zero(1, 64), adapters=False) == (6, 14)
    for sharding in (zero(3, 8), zero(2, 8, offload_optimizer_device="cpu"), Sharding()):
        assert depths(32, sharding, adapters=False) == (6, 8)
    assert depths(32, zero(2, 8), adapters=True) == (6, 8)
    assert depths(14, Sharding(), adapters=True) == (14,)  # two traces would cost as much
    assert depths(0, Sharding(), adapters=True) == (0,)  # it cannot be told how many there are


def test_what_stage_3_has_at_once_follows_from_its_file() -> None:
    sizes = {"stage3_max_live_parameters": 1000, "sub_group_size": 300}
    zero = {"zero_optimization": {"stage": 3, **sizes}}
    assert live_limits(zero, {"bf16": True}) == LiveLimits(gathered=2000, stepped=600, widened=1200)
    assert live_limits(zero, {}) == LiveLimits(gathered=4000, stepped=1200, widened=1200)
    billions = LiveLimits(gathered=2 * 10**9, stepped=2 * 10**9, widened=4 * 10**9)
    assert live_limits({"zero_optimization": {"stage": 3}}, {"bf16": True}) == billions
    assert live_limits({"zero_optimization": {"stage": 2}}, {"bf16": True}) is None
    assert live_limits(None, {}) is None


def test_few_layers_of_stage_3_are_updated_in_one_group() -> None:
    file = {"gradient_clipping": 1.0, "zero_optimization": {"stage": 3, "sub_group_size": 300}}
    settings = with_one_sub_group(file)
    assert settings is not None and settings["gradient_clipping"] == 1.0
    assert settings["zero_optimization"]["sub_group_size"] > 10**12
    elsewhere = {"stage": 3, "sub_group_size": 300, "offload_optimizer": {"device": "cpu"}}
    for unchanged in (None, {"zero_optimization": {"stage": 2}}, {"zero_optimization": elsewhere}):
        assert with_one_sub_group(unchanged) == unchanged


def test_each_step_has_a_record_without_the_others() -> None:
    def step(first: int, size: int) -> list[Event]:
        activation = (ALLOCATE, first, size, "activations", "mm", 0)
        gradient = (ALLOCATE, first + 1, 5, "gradients", "mm", 0)
        let_go = (ALLOCATE, first + 2, 0, "temporaries", "empty", layer(0))  # as ZeRO-3 does
        batch = (ALLOCATE, first + 3, 0, "activations", "full", 0)
        start = [(PHASE, "data", 0), batch, (PHASE, "micro-step", 0)]
        return [*start, activation, gradient, let_go, (FREE, first, 0), (FREE, first - 8, layer(0))]

    end = (PHASE, "data", 0)
    weight: Event = (ALLOCATE, 1, 100, "weights", "init", 0)
    events = [weight, *step(10, 20), *step(20, 400), (FREE, 11, 0), *step(30, 60), end]
    second, third_record = step_records(events)
    assert live_bytes(second).peak_bytes == 100 + 5 + 400 + 5
    assert (
        live_bytes(third_record).peak_bytes == 100 + 5 + 60 + 5
    )  # what is kept of 11 is 21 by now
    assert live_bytes(third_record).phases["data"] == 100 + 5
    assert peaks_of(second).keys() == peaks_of(third_record).keys()


def test_work_is_done_once_more_for_each_layer_or_on_more() -> None:
    def work(operator: str, moved_bytes: int) -> Work:
        return Work(
            operator=operator,
            kind="memory",
            dtype="float32",
            dims=(),
            flops=2 * moved_bytes,
            moved_bytes=moved_bytes,
            region=0,
        )

    def trace(layers: int) -> list[Work]:
        return [work("embedding", 7), *[work("mm", 30)] * layers, work("adam", 100 * layers)]

    weights = at_depth((6, 8), 32)
    works = work_at_depth([trace(6), trace(8)], weights)
    assert works == {work("embedding", 7): 1, work("mm", 30): 32, work("adam", 3200): 1}
    assert work_at_depth([trace(6)], at_depth((6,), 6))[work("mm", 30)] == 6
