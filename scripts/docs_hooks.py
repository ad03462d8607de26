"""Hooks of mkdocs.yml: pages of files beside ``docs/``, links that leave ``docs/``, and a check of what pages load."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files in the repository's root, and the pages that they become."""
COPIES = "repository"
"""The folder of the site for other files of the repository that pages link to."""

_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[#)])")
_TABLE_IN_A_LIST = re.compile(r"^  (?=\|)", re.M)
_LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of files beside ``docs/``."""
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of the repository to those of the site, and indent tables in lists as Python-Markdown needs."""
    uri = page.file.src_uri
    name = {made: source for source, made in PAGES.items()}.get(uri, f"docs/{uri}")

    def rewritten(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[1]))
        if not (ROOT / path).is_file():
            return match[0]  # mkdocs reports it
        target = PAGES.get(path) or path.removeprefix("docs/")
        if target == path:
            target = f"{COPIES}/{path}"
            if files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, abs_src_path=str(ROOT / path)))
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return _TABLE_IN_A_LIST.sub("    ", _LINK.sub(rewritten, markdown))


def on_post_build(config: Any) -> None:
    """Check that no page loads anything from another host.

    Raises:
        PluginError: naming the pages that do, and what they load.
    """
    pages = sorted(Path(config.site_dir).rglob("*.html"))
    found = [f"{page}: {url}" for page in pages for url in _LOADED.findall(page.read_text(encoding="utf-8"))]
    if found:
        raise PluginError("pages load from other hosts:\n" + "\n".join(found))
