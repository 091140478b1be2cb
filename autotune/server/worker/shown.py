"""What commands of works say, without the folders of this machine that only the worker knows."""

import json
import re
from pathlib import Path


class Shown:
    """Takes the folder of a work, and the one that has all works, out of texts: what lies in the
    work's folder is named from there.

    Args:
        root: the folder that has a folder for each work.
        id: of the work.
    """

    def __init__(self, root: Path, id: str) -> None:
        folders = {str(root), str(root.resolve())}
        escaped = {json.dumps(folder)[1:-1] for folder in folders}
        escaped |= {json.dumps(folder, ensure_ascii=False)[1:-1] for folder in folders}
        names = folders | escaped
        roots = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._places = re.compile(rf"(?<![\w.-])(?:{roots})(?:/{id})?(?:(/)|(?![\w.-]))")

    def text(self, text: str, inside: str = "") -> str:
        """Return a text, which may be JSON, as it is shown.

        Args:
            inside: what stands before the names of what lies in the work's folder.
        """
        return self._places.sub(lambda found: inside if found[1] else ".", text)

    def file(self, content: bytes) -> bytes:
        """Return a file that is handed out; what it names in the work's folder is no name of a
        hub."""
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        return self.text(text, "./").encode()
