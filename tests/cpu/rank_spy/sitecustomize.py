"""Put on PYTHONPATH as `sitecustomize`, it writes down what really ran in each process of a launch.

`trl sft` takes no callback, so one is added to transformers' own. With `CPUS_AS_GPUS` set,
accelerate takes processes on CPUs for such on GPUs: it does FSDP for those alone.
"""

import json
import os
from pathlib import Path

if "RANK" in os.environ and "RANK_SPY" in os.environ:
    import gc

    import transformers.trainer
    from transformers import TrainerCallback

    class Spy(TrainerCallback):
        """Writes at the end of the training."""

        def on_train_end(self, args, state, control, model=None, optimizer=None, **_):
            from accelerate.state import AcceleratorState

            shared = AcceleratorState()
            engines = [o for o in gc.get_objects() if type(o).__name__ == "DeepSpeedEngine"]
            chain, inner = [], optimizer
            while inner is not None:
                chain.append(type(inner).__name__)
                inner = getattr(inner, "optimizer", None)
            seen = {
                "distributed_type": shared.distributed_type.value,
                "processes": shared.num_processes,
                "device": shared.device.type,
                "backend": shared.backend,
                "stages": [engine.zero_optimization_stage() for engine in engines],
                "wrapped": any(
                    type(o).__name__ == "DistributedDataParallel" for o in gc.get_objects()
                ),
                "model": [kind.__name__ for kind in type(model).__mro__],
                "optimizers": chain,
                "groups": [
                    {name: group.get(name) for name in ("betas", "eps", "weight_decay")}
                    for group in optimizer.param_groups
                ],
                "rates": [one["learning_rate"] for one in state.log_history if "loss" in one],
                "losses": [one["loss"] for one in state.log_history if "loss" in one],
            }
            Path(os.environ["RANK_SPY"], os.environ["RANK"]).write_text(json.dumps(seen))

    transformers.trainer.DEFAULT_CALLBACKS.append(Spy)

    if "CPUS_AS_GPUS" in os.environ:
        from accelerate.state import PartialState
        from accelerate.utils import DistributedType

        PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
