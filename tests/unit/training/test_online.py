"""What takes vLLM's place in a probe, where what it generates does not fit."""

from types import SimpleNamespace

import pytest

from autotune.training.spec import Unsupported


def a_stand_in(trainer_function, engine=None, processes=1):
    """In place of vLLM in a trainer that fits two completions at once."""
    import torch

    from autotune.training.online import StandIn

    class Trainer:
        use_vllm = True
        model_wrapped = torch.nn.Linear(1, 1)
        accelerator = SimpleNamespace(deepspeed_engine_wrapped=engine, num_processes=processes)

        def _generate_single_turn(self, prompts, images, fields):
            trainer_function.append(len(prompts))
            assert not self.use_vllm
            if len(prompts) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return [[*ids, 9] for ids in prompts], None

    stand_in = StandIn.__new__(StandIn)
    stand_in._trainer, stand_in._calls = Trainer(), 0
    return stand_in


def test_a_generation_that_does_not_fit_is_made_in_halves():
    """Eight at once do not fit, nor four: two do."""
    calls = []
    stand_in = a_stand_in(calls)
    prompts = [[n] for n in range(8)]
    assert stand_in._halved(prompts, 1) == [[n, 9] for n in range(8)]
    assert calls == [8, 4, 2, 2, 4, 2, 2] and stand_in._trainer.use_vllm
    assert stand_in._calls == 4


@pytest.mark.parametrize(("stage", "processes"), [(2, 2), (3, 2), (3, 1)])
def test_ranks_that_generate_in_step_do_not_halve_one_by_one(stage, processes):
    engine = SimpleNamespace(
        zero_optimization_stage=lambda: stage,
        zero_offload_optimizer=lambda: None,
        zero_offload_param=lambda: None,
    )
    stand_in = a_stand_in([], engine=SimpleNamespace(engine=engine), processes=processes)
    if (stage, processes) != (3, 2):
        assert len(stand_in._halved([[1], [2], [3]], 1)) == 3
        return
    with pytest.raises(Unsupported, match="generate in step"):
        stand_in._halved([[1], [2], [3]], 1)
