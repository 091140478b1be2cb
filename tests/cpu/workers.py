"""Children of the CPU tests: they use the product's own code on the real trainer."""

from pathlib import Path
from typing import Any

from autotune.probe.protocol import ProbeFolder, ProbeRequest, read_json, write_json


def one_step(path: Path) -> None:
    """One optimizer step of a candidate on its first rows; what it did to the weights."""
    import torch

    from autotune.training.batches import Rows, as_dataset
    from autotune.training.families import family

    folder = ProbeFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request) or {})
    torch.set_num_threads(1)
    trains = family(request.method)
    overrides = {**trains.overrides, "output_dir": str(folder.scratch), "max_steps": 1}
    _, training, model = trains.parse({**request.config, **overrides}, folder.scratch)
    rows = Rows(request.rows, request.method)
    batch: list[Any] = [rows[index] for index in range(request.global_batch)]
    torch.manual_seed(0)
    trainer = trains.trainer(request, training, model, as_dataset([batch]))
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    after = [p.detach() for p in trainer.model.parameters() if p.requires_grad]
    moved = [float((b - a).double().norm()) for a, b in zip(after, before, strict=True)]
    write_json(folder.reply, {"loss": trainer.state.log_history[-1]["train_loss"], "moved": moved})
