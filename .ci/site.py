"""The pages at the root of the project as pages of the site, with the links between them and docs/ turned round."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the root's pages."""
    for name, page in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        for other, known in PAGES.items():
            text = text.replace(f"]({other})", f"]({known})")
        text = text.replace("[LICENSE](LICENSE)", "`LICENSE`")  # no page of the site
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Points links to the root's files at their pages."""
    for name, page in PAGES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(name)}", rf"](\1{page}", markdown)
    return markdown
