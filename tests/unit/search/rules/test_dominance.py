"""What need not be probed any more."""

from autotune.search.rules.dominance import dominated
from tests.unit.builders import GIB, bad, make_candidate, ok
from tests.unit.search.rules.test_replication import record

OOM = bad("oom", missing_bytes=5)


def reasons(candidate, *records, allowed_bytes=10 * GIB):
    return dominated([candidate], records, allowed_bytes).get(candidate.key)


def test_a_larger_micro_batch_runs_out_of_memory_too():
    reason = reasons(make_candidate(8, 2), record(3, OOM, make_candidate(4, 4)))
    assert reason == "needs at least as much memory as probe 3, which ran out of memory"


def test_what_is_leaner_in_anything_is_not_ruled_out():
    probe = record(0, OOM, make_candidate(4, 4))
    for lean in (
        make_candidate(2, 8),
        make_candidate(8, 2, gradient_checkpointing=True),
        make_candidate(8, 2, max_length=512),
    ):
        assert reasons(lean, probe) is None
    hungry = record(0, OOM, make_candidate(4, 4, gradient_checkpointing=True))
    assert reasons(make_candidate(4, 4, loss_type="nll"), hungry) is not None


def test_a_knob_whose_effect_depends_on_the_rest_has_to_be_the_same():
    probe = record(0, OOM, make_candidate(4, 4, padding_free=True))
    assert reasons(make_candidate(8, 2), probe) is None


def test_a_larger_micro_batch_outweighs_knobs_that_change_little():
    probe = record(3, OOM, make_candidate(2, 8, optim="adamw_torch_fused"))
    little = {"train_sampling_strategy": "group_by_length", "optim": "adamw_torch"}
    assert "as probe 3" in reasons(make_candidate(4, 4, **little), probe)
    assert reasons(make_candidate(2, 8, **little), probe) is None
    plain = record(3, OOM, make_candidate(2, 8, optim="adamw_torch"))
    assert reasons(make_candidate(4, 4, optim="adamw_torch_fused"), plain) is None
    assert reasons(make_candidate(4, 4, optim="adafactor"), probe) is None


def test_a_single_step_of_accumulation_holds_no_gradients_meanwhile():
    assert reasons(make_candidate(16, 1), record(0, OOM, make_candidate(8, 2))) is None
    assert reasons(make_candidate(16, 1), record(0, OOM, make_candidate(8, 1))) is not None


def test_a_probe_above_the_headroom_rules_out_as_an_out_of_memory_does():
    probe = record(0, ok(100, 11 * GIB), make_candidate(4, 4))
    assert "took more than is allowed" in reasons(make_candidate(8, 2), probe)
    assert reasons(make_candidate(8, 2), record(0, ok(100, GIB), make_candidate(4, 4))) is None


def test_checkpointing_of_more_layers_takes_less_memory_and_more_work():
    grid = ["offload", True, "selective", "every_2", "every_4", False]
    for n, leaner in enumerate(grid):
        for hungrier in grid[n + 1 :]:
            lean = make_candidate(4, 4, gradient_checkpointing=leaner)
            hungry = make_candidate(4, 4, gradient_checkpointing=hungrier)
            assert "as probe 0" in reasons(hungry, record(0, OOM, lean))
            assert reasons(lean, record(0, OOM, hungry)) is None
            slower = reasons(lean, record(0, ok(100, GIB), hungry))
            if leaner == "selective" and hungrier in ("every_2", "every_4"):
                assert slower is None  # it repeats no attention, which is most of long rows
            else:
                assert "recomputes" in slower
            assert reasons(hungry, record(0, ok(100, GIB), lean)) is None


def test_checkpointing_is_pointless_where_it_fits_without():
    fits = record(1, ok(100, GIB), make_candidate(4, 4))
    reason = reasons(make_candidate(4, 4, gradient_checkpointing=True), fits)
    assert reason == "probe 1 fits without it, and checkpointing recomputes activations"
    assert reasons(make_candidate(2, 8, gradient_checkpointing=True), fits) is None
    assert reasons(make_candidate(4, 4), record(1, ok(9, 1), make_candidate(2, 8))) is None


def test_checkpointing_is_not_pointless_where_it_does_not_fit_without():
    probe = record(0, ok(100, 11 * GIB), make_candidate(4, 4))
    assert reasons(make_candidate(4, 4, gradient_checkpointing=True), probe) is None


def test_probed_candidates_and_silent_probes_are_passed_over():
    candidate = make_candidate(4, 4)
    assert reasons(candidate, record(0, OOM, candidate)) is None
    for outcome in ("busy", "interrupted", "crash", "stopped", "timeout"):
        assert reasons(make_candidate(8, 2), record(0, bad(outcome), candidate)) is None
    assert reasons(make_candidate(8, 2), record(0, None, candidate)) is None


def test_a_missing_package_is_missing_for_every_candidate_that_needs_it():
    missing = bad("unsupported", failure={"type": "ImportError"})
    probe = record(4, missing, make_candidate(4, 4, optim="adamw_8bit"))
    reason = reasons(make_candidate(2, 8, optim="adamw_8bit"), probe)
    assert reason == "probe 4 found that `optim: adamw_8bit` is not installed"
    assert reasons(make_candidate(2, 8, optim="adafactor"), probe) is None
    other_probe = record(4, bad("unsupported", failure={"type": "ValueError"}), probe.candidate)
    assert reasons(make_candidate(2, 8, optim="adamw_8bit"), other_probe) is None


def test_a_refusal_that_is_due_to_some_knobs_holds_for_all_that_have_them():
    failure = {"type": "Unsupported", "knobs": ["attn_implementation", "padding_free", "packing"]}
    flat = {"attn_implementation": "sdpa", "padding_free": True}
    probe = record(4, bad("unsupported", failure=failure), make_candidate(4, 4, **flat))
    reason = reasons(make_candidate(2, 8, **flat, optim="adafactor"), probe)
    said = "this stack cannot do `attn_implementation: sdpa`, `padding_free: true`"
    assert reason == f"probe 4 found that {said}"
    assert reasons(make_candidate(2, 8, **flat | {"padding_free": False}), probe) is None
    assert reasons(make_candidate(2, 8, **flat | {"attn_implementation": "eager"}), probe) is None
    unknown = record(4, bad("unsupported", failure=failure | {"knobs": []}), probe.candidate)
    assert reasons(make_candidate(2, 8, **flat), unknown) is None


def test_a_server_of_another_size_is_beside_the_same_training():
    pinned = {"use_vllm": True, "vllm_mode": "server"}
    two = make_candidate(4, 4, vllm_tensor_parallel_size=2, **pinned)
    four = make_candidate(4, 4, vllm_tensor_parallel_size=4, **pinned)
    reason = reasons(four, record(2, ok(100, GIB), two))
    assert reason == "probe 2 trained the same, beside a server of another size"
    larger = make_candidate(8, 2, vllm_tensor_parallel_size=4, **pinned)
    assert reasons(larger, record(2, ok(100, GIB), two)) is None
    # Colocated it takes another part of each device.
    fields = {"use_vllm": True, "vllm_mode": "colocate"}
    first, second = (make_candidate(4, 4, vllm_tensor_parallel_size=n, **fields) for n in (1, 2))
    assert reasons(second, record(2, ok(100, GIB), first)) is None
