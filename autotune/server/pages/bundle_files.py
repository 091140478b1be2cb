"""The files of a bundle, as a page shows them. Pure."""

import io
import zipfile
from dataclasses import dataclass

SHOWN = ("launch.sh", "_config.yaml", "accelerate.yaml", "deepspeed.json", "README.md")
_MOST = 64_000


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    name: str
    text: str


def bundle_files(archive: bytes | None) -> list[BundleFile]:
    """The files that a person looks at."""
    if archive is None:
        return []
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        names = [name for end in SHOWN for name in files.namelist() if name.endswith(end)]
        return [
            BundleFile(name.removeprefix("bundle/"), _text(files.read(name)))
            for name in names
            if files.getinfo(name).file_size <= _MOST
        ]


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
