"""The report of a run: the page as one file with all that it would ask for, to be kept and sent to others.

The scripts are those of the page. Browsers load no modules from files, so they are put into one script here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

import orjson

from control_plane.composition import ControlPlane
from control_plane.web.configuration import configuration_view
from control_plane.web.diagnosis import profile_view
from control_plane.web.status_views import plan_view, status_view

#: Modules of the page, those before that others import.
_MODULES = ("dom", "format", "graph", "charts", "actions", "panels", "diagnosis", "main")
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_POLICY = "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def page_files() -> dict[str, str]:
    """Return the files of the page by name: texts of some tens of KB."""
    folder = resources.files("control_plane.web") / "page"
    return {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir()}


def report_html(control_plane: ControlPlane, files: Mapping[str, str]) -> str:
    """Return the report of a job as it is now, in the event loop; ``files``: those of the page."""
    data = orjson.dumps(_documents(control_plane)).decode()
    # A name in it must not end the element.
    data = data.replace("<", "\\u003c")
    script = one_script(files)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest=digest)}">\n'
        f"<style>\n{files['page.css']}</style>"
    )
    page = files["index.html"]
    page = re.sub(r"^<link .*\n|^<script .*\n", "", page, flags=re.MULTILINE)
    page = page.replace("</head>", f"{head}\n</head>")
    tail = f'<script type="application/json" id="report">{data}</script>\n<script type="module">{script}</script>'
    return page.replace("</body>", f"{tail}\n</body>")


def one_script(files: Mapping[str, str]) -> str:
    """Return the modules of the page as one script: each as a function that returns what it exports."""
    parts = []
    for name in _MODULES:
        text = files[f"{name}.js"]
        exported = ", ".join(match[1] for match in _EXPORT.finditer(text))
        text = _IMPORT.sub(r"const \1 = \2_js;", _EXPORT.sub("", text))
        parts.append(f"const {name}_js = (() => {{\n{text}\nreturn {{ {exported} }};\n}})();\n")
    return "".join(parts)


def _documents(control_plane: ControlPlane) -> dict[str, Any]:
    """What the page asks for, by path; ``/live``: a moment."""
    watcher, checkpointer = control_plane.watcher, control_plane.checkpointer
    checkpoints = [checkpointer.view(record).model_dump() for record in checkpointer.machine.records]
    rescales, profile = control_plane.rescaler.log.to_list(), control_plane.profiler.latest
    moment = {
        "status": status_view(control_plane).model_dump(mode="json"),
        "point": watcher.history.latest(),
        "marks": [asdict(mark) for mark in watcher.history.marks],
        "checkpoints": [],
        "rescales_at": [],
        "drains_at": [],
        "profile_at": control_plane.profiler.version,
    }
    return {
        "/live": moment,
        "/history": watcher.history.document(),
        "/plan": plan_view(control_plane.job.graph).model_dump(mode="json"),
        "/checkpoints": checkpoints,
        "/rescales": rescales,
        "/profile": None if profile is None else profile_view(profile).model_dump(mode="json"),
        "/configuration": configuration_view(control_plane).model_dump(mode="json"),
    }
