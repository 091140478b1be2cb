"""Hooks of mkdocs.yml: Markdown beside docs/ joins the site, and links lead to where it is there.

A page of the site has the path of its file in the repository, but that those of docs/ are at the
top. Links are written for the repository; what they name has to be a page or a file of the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/**/*.md", "examples/**/README.md")
HOME = {"README.md": "index.md"}
"""What the site has a page of its own for."""
RECORDS = ("CHANGELOG.md", "benchmarks/", "decisions/", "log.md")
"""What the search of the site names last."""
LINK = re.compile(r"(?P<code>```.*?```|`[^`]*`)|(?<=\]\()(?P<target>[^)#:\s]+)(?=[)#])", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/, and those beside it."""
    for pattern in BESIDE:
        for file in sorted(ROOT.glob(pattern)):
            uri = file.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page whose links are those of the site."""
    uri = page.file.src_uri
    if uri.startswith(RECORDS):
        page.meta["search"] = {"boost": 1e-4}  # a title counts a thousand times
    folder = posixpath.dirname(uri if uri.startswith(_TOPS) else f"docs/{uri}")

    def link(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        name = posixpath.normpath(posixpath.join(folder, found["target"]))
        target = HOME.get(name) or name.removeprefix("docs/")
        if files.get_file_from_path(target) is None:
            target = posixpath.join(target, "README.md")
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(link, markdown)


_TOPS = tuple(pattern.partition("*")[0] for pattern in BESIDE)
