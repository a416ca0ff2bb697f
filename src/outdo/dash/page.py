"""What is not JSON: the page and its files, a run's report, and documentation of the API."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from outdo.runs.foreign.translate import source_of
from outdo.runs.layout import report_path
from outdo.runs.safe_open import open_regular

WEB = Path(__file__).parent / "web"
CHARTS = Path(__file__).parents[1] / "report" / "web"  # scripts that reports carry too
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
MAX_REPORT_BYTES = 64 << 20
SCHEMA = "/api/openapi.json"
# A report may run its own script and reach nothing: it has no origin, and may load from no address.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def web_file(name: str) -> Response:
    """A file of the page by its name; there are no folders."""
    path = next((folder / name for folder in (WEB, CHARTS) if name in os.listdir(folder)), None)
    if path is None or path.suffix not in TYPES or not path.is_file():
        return PlainTextResponse("there is no such file", status_code=404)
    return FileResponse(path, media_type=TYPES[path.suffix])


def report(root: Path, folder: Path) -> Response:
    try:
        with open_regular(root, report_path(source_of(folder) or folder)) as file:
            text = file.read(MAX_REPORT_BYTES + 1)
    except OSError:
        return PlainTextResponse("this run has no report: outdo report RUN writes one", status_code=404)
    if len(text) > MAX_REPORT_BYTES:
        return PlainTextResponse("the report is too large to be shown here", status_code=404)
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


def api_page(schema: dict[str, Any]) -> Response:
    """Every endpoint with its parameters and its answer, from the schema. It needs no script."""
    parts = [_head(schema)]
    for path, methods in schema["paths"].items():
        parts += [_endpoint(path, method, operation) for method, operation in methods.items()]
    parts.append("<h2>Models</h2>")
    parts += [_model(name, model) for name, model in schema.get("components", {}).get("schemas", {}).items()]
    return HTMLResponse("\n".join([*parts, "</div></main></body></html>"]))


def _head(schema: dict[str, Any]) -> str:
    title = html.escape(schema["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/style.css">'
        '</head><body><main><div class="page">'
        f"<h1>{title}</h1><p>{html.escape(schema['info'].get('description', ''))}</p>"
        f'<p><a href="{SCHEMA}">openapi.json</a></p>'
    )


def _endpoint(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(one['name'])}</code></td><td>{_kind(one['schema'])}</td>"
        f"<td>{'required' if one.get('required') else html.escape(_default(one['schema']))}</td>"
        f"<td>{html.escape(one.get('description', ''))}</td></tr>"
        for one in operation.get("parameters", ())
    )
    content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    gives = f"<p>Answers with {_kind(content)}.</p>" if content else ""
    table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    words = html.escape(operation.get("description") or operation.get("summary", ""))
    head = f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
    return f'<section class="card">{head}<p>{words}</p>{table}{gives}</section>'


def _default(schema: dict[str, Any]) -> str:
    return f"default {schema['default']}" if schema.get("default") not in (None, "") else ""


def _model(name: str, model: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code></td><td>{_kind(schema)}</td></tr>"
        for field, schema in model.get("properties", {}).items()
    )
    words = html.escape(model.get("description", ""))
    head = f'<h3 id="{html.escape(name)}">{html.escape(name)}</h3>'
    return f'<section class="card">{head}<p>{words}</p><table><tbody>{rows}</tbody></table></section>'


def _kind(schema: dict[str, Any]) -> str:
    """A type, as text."""
    if "$ref" in schema:
        name = html.escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema:
        return html.escape(" | ".join(map(str, schema["enum"])))
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"[{_kind(schema.get('items', {}))}]"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{{name: {_kind(schema['additionalProperties'])}}}"
    return html.escape(str(schema.get("type", "anything")))
