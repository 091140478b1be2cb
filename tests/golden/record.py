"""Renew the recorded bundles, after a change of what is emitted that is meant:

    python tests/golden/record.py

Then read the difference (`git diff tests/golden/recorded`) as a user would who has such a bundle.
"""

import shutil
from pathlib import Path

from bundle_cases import CASES

RECORDED = Path(__file__).parent / "recorded"
PPO_SCRIPT = Path(__file__).parents[2] / "autotune" / "training" / "train_ppo.py"
"""A bundle's copy of it is compared with it, not with a recorded one."""


def recorded(name: str) -> dict[str, bytes]:
    """The files of a case's bundle."""
    files = {path.name: path.read_bytes() for path in (RECORDED / name).iterdir()}
    if (RECORDED / name / "ppo_config.yaml").exists():
        files[PPO_SCRIPT.name] = PPO_SCRIPT.read_bytes()
    return files


def record() -> None:
    """Write every case anew; what no case has any more goes."""
    shutil.rmtree(RECORDED, ignore_errors=True)
    for name, make in CASES.items():
        folder = RECORDED / name
        folder.mkdir(parents=True)
        for file, text in make().files().items():
            if file != PPO_SCRIPT.name:
                (folder / file).write_bytes(text.encode())


if __name__ == "__main__":
    record()
