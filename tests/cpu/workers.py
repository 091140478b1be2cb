"""Children of the CPU tests: they use the product's own code on the real trainer."""

from pathlib import Path
from typing import Any

from autotune.probe.protocol import ProbeFolder, ProbeRequest, read_json, write_json


def one_step(path: Path) -> None:
    """One optimizer step of a candidate on its first rows; what it did to the weights."""
    import torch

    from autotune.training import sft
    from autotune.training.batches import Rows, as_dataset

    folder = ProbeFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request) or {})
    torch.set_num_threads(1)
    overrides = {**sft.PROBE_OVERRIDES, "output_dir": str(folder.scratch), "max_steps": 1}
    _, training, model = sft.parse_config({**request.config, **overrides}, folder.scratch)
    rows = Rows(request.rows)
    batch: list[Any] = [rows[index] for index in range(request.global_batch)]
    torch.manual_seed(0)
    trainer = sft.build_trainer(request, training, model, as_dataset([batch]))
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    after = [p.detach() for p in trainer.model.parameters() if p.requires_grad]
    moved = [float((b - a).double().norm()) for a, b in zip(after, before, strict=True)]
    write_json(folder.reply, {"loss": trainer.state.log_history[-1]["train_loss"], "moved": moved})
