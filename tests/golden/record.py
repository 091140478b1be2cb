"""Renew the recorded bundles, after a change of what is emitted that is meant:

    python tests/golden/record.py

Then read the difference (`git diff tests/golden/recorded`) as a user would who has such a bundle.
"""

import shutil
from pathlib import Path

from bundle_cases import CASES

RECORDED = Path(__file__).parent / "recorded"


def record() -> None:
    """Write every case anew; what no case has any more goes."""
    shutil.rmtree(RECORDED, ignore_errors=True)
    for name, make in CASES.items():
        folder = RECORDED / name
        folder.mkdir(parents=True)
        for file, text in make().files().items():
            (folder / file).write_bytes(text.encode())


if __name__ == "__main__":
    record()
