"""The files of a bundle, as a page shows them. Pure."""

import io
import re
import zipfile
from dataclasses import dataclass

SHOWN = ("launch.sh", "_config.yaml", "accelerate.yaml", "deepspeed.json", "README.md")
_MOST = 64_000
_LAUNCH = re.compile(r"`bash\s+(launch\w*\.sh[^`]*)`")


@dataclass(frozen=True)
class BundleFile:
    """A file of a bundle."""

    name: str
    text: str


def bundle_files(archive: bytes | None) -> list[BundleFile]:
    """Return the files that a person looks at."""
    if archive is None:
        return []
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        names = [name for end in SHOWN for name in files.namelist() if name.endswith(end)]
        return [
            BundleFile(name.removeprefix("bundle/"), _text(files.read(name)))
            for name in names
            if files.getinfo(name).file_size <= _MOST
        ]


def launch_command(id: str, files: list[BundleFile]) -> str:
    """Return what unpacks and launches a bundle that was downloaded, as its README has it: where
    the job named no data, the launch has to be told which."""
    readme = next((file.text for file in files if file.name == "README.md"), "")
    said = _LAUNCH.search(readme)
    launch = " ".join(said[1].split()) if said else "launch.sh"
    return f"unzip {id}-bundle.zip && bash bundle/{launch}"


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
