"""What is no JSON: the page and its files, a run's report, and a page that tells the API."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from outdo.dash.files import opened

WEB = Path(__file__).parent / "web"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
REPORT = 64 << 20  # bytes
# A report may draw its own curves and reach nothing: it is of no origin, and no address is open to it.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def web_file(name: str) -> Response:
    """A file of the page, by a name that is listed; there are no folders."""
    path = WEB / name
    if name not in set(os.listdir(WEB)) or path.suffix not in TYPES or not path.is_file():
        return PlainTextResponse("there is no such file", status_code=404)
    return FileResponse(path, media_type=TYPES[path.suffix])


def report(root: Path, folder: Path) -> Response:
    try:
        with opened(root, folder / "report.html") as file:
            text = file.read(REPORT + 1)
    except OSError:
        return PlainTextResponse("this run has no report: outdo report RUN writes one", status_code=404)
    if len(text) > REPORT:
        return PlainTextResponse("the report is too large to be shown here", status_code=404)
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


def api_page(schema: dict[str, Any]) -> Response:
    """Every address with its parameters and what it answers, from the schema itself. It needs no script."""
    parts = [_head(schema)]
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            parts.append(_address(path, method, told, schema))
    parts.append("<h2>Shapes</h2>")
    parts += [_shape(name, shape) for name, shape in schema.get("components", {}).get("schemas", {}).items()]
    return HTMLResponse("\n".join([*parts, "</div></main></body></html>"]))


def _head(schema: dict[str, Any]) -> str:
    title = html.escape(schema["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/style.css">'
        '</head><body><main><div class="page">'
        f"<h1>{title}</h1><p>{html.escape(schema['info'].get('description', ''))}</p>"
        '<p><a href="/api/openapi.json">openapi.json</a></p>'
    )


def _address(path: str, method: str, told: dict[str, Any], schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(one['name'])}</code></td><td>{_kind(one['schema'])}</td>"
        f"<td>{'needed' if one.get('required') else html.escape(_default(one['schema']))}</td>"
        f"<td>{html.escape(one.get('description', ''))}</td></tr>"
        for one in told.get("parameters", ())
    )
    content = told["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    gives = f"<p>Answers with {_kind(content)}.</p>" if content else ""
    table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    words = html.escape(told.get("description") or told.get("summary", ""))
    head = f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
    return f'<section class="card">{head}<p>{words}</p>{table}{gives}</section>'


def _default(schema: dict[str, Any]) -> str:
    return f"default {schema['default']}" if schema.get("default") not in (None, "") else ""


def _shape(name: str, shape: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code></td><td>{_kind(told)}</td></tr>"
        for field, told in shape.get("properties", {}).items()
    )
    words = html.escape(shape.get("description", ""))
    head = f'<h3 id="{html.escape(name)}">{html.escape(name)}</h3>'
    return f'<section class="card">{head}<p>{words}</p><table><tbody>{rows}</tbody></table></section>'


def _kind(schema: dict[str, Any]) -> str:
    """A type in words."""
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
