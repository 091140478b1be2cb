"""A record in two: the device's and the host's part; and without what comes before the training."""

from autotune.estimate.records.events import ALLOCATE, FREE, MOVE, PHASE, live_bytes
from autotune.estimate.records.steps import since_training, split_by_place

RECORD = [
    (ALLOCATE, 1, 100, "weights", "init", 0),  # the whole model, before an engine divides it
    (ALLOCATE, 2, 50, "temporaries", "cat", 0),
    (FREE, 1, 0),
    (MOVE, 2, "weights", 0),
    (ALLOCATE, 3, 40, "temporaries", "clone", 0),
    (PHASE, "data", 0),
    (PHASE, "micro-step", 0),
    (ALLOCATE, 4, 30, "activations", "mm", 0),
    (FREE, 4, 0),
    (PHASE, "step", 0),
    (MOVE, 3, "host", 0),  # only now it is known where it lies
    (ALLOCATE, 5, 20, "host", "zeros", 0),
]


def test_what_came_and_went_before_the_training_is_left_out():
    full_use, since = live_bytes(RECORD), live_bytes(since_training(RECORD))
    assert (full_use.peak_bytes, since.peak_bytes) == (150, 120)
    assert since.parts == {"weights": 50, "temporaries": 40, "activations": 30}


def test_a_record_that_has_no_training_stays_whole():
    assert since_training(RECORD[:5]) == RECORD[:5]


def test_what_is_on_the_host_at_last_always_was():
    device, host = split_by_place(since_training(RECORD))
    assert live_bytes(device).peak_bytes == 80
    assert live_bytes(host).peak_bytes == 60
    assert live_bytes(host).phase == "step"
    phases = [event for event in RECORD if event[0] == PHASE]
    assert [event for event in host if event[0] == PHASE] == phases
    assert [event for event in device if event[0] == PHASE] == phases


def test_a_record_without_offloading_is_all_on_the_device():
    events = RECORD[:9]
    assert split_by_place(events)[0] == events
    assert live_bytes(split_by_place(events)[1]).peak_bytes == 0


def test_what_an_engine_lets_go_of_at_last_is_left_in_the_cache():
    mib = 1 << 20
    building = [
        (ALLOCATE, 1, 100 * mib, "weights", "cat", 0),
        (ALLOCATE, 2, 50 * mib, "temporaries", "zeros", 0),
        (ALLOCATE, 3, 100, "optimizer", "ones", 0),  # small ones lie elsewhere
        (FREE, 2, 0),
    ]
    since = since_training([*building, (PHASE, "data", 0)])
    assert since == [building[0], building[2], building[1], building[3], (PHASE, "data", 0)]
    late = (ALLOCATE, 4, 30 * mib, "weights", "cat", 0)  # may lie in what was let go of
    since = since_training([*building, late, (PHASE, "data", 0)])
    assert since == [building[0], building[2], late, (PHASE, "data", 0)]
