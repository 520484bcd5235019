"""Write inspections as one self-contained HTML file: no server, no network, no build.

The explorer's modules lie in explorer/ as a browser reads them from a server. Here they become one script: each after
those that it imports, without the words `import` and `export`. The page's content security policy allows this script
and this style, by their digests, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

from transduce.inspection.record import Inspection

FOLDER = Path(__file__).parent / "explorer"
STYLES = ("base.css", "explorer.css")
FIRST = "file.js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', flags=re.MULTILINE)


def page(inspections: Sequence[Inspection]) -> str:
    """The page for one inspection or several, which can be shown side by side."""
    script, style = bundle(FIRST), "".join(read(name) for name in STYLES)
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:"
    data = json.dumps([inspection.as_json() for inspection in inspections], ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # nothing in it may end the element it stands in
    title = html.escape(f"{inspections[0].text} → {inspections[0].translation}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header class="bar"><h1 class="name">transduce inspect</h1><div class="right" id="theme"></div></header>
<main class="explorer" id="explorer"></main>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def read(name: str) -> str:
    """Read a file of the explorer."""
    return (FOLDER / name).read_text(encoding="utf-8")


def bundle(first: str) -> str:
    """Bundle a module and all that it imports."""
    done: list[str] = []
    _visit(first, done)
    return "".join(re.sub(r"^export ", "", _IMPORT.sub("", read(name)), flags=re.MULTILINE) for name in done)


def _visit(name: str, done: list[str]) -> None:
    for other in _IMPORT.findall(read(name)):
        _visit(other, done)
    if name not in done:
        done.append(name)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
