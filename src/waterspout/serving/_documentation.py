"""`/docs`: the paths of the API as a page, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse

__all__ = ["documentation"]

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-size: 95% } h2 { margin: 2rem 0 .3rem; font-size: 1.1rem }
dt { margin-top: .8rem; font-weight: 600 } dd { margin: .1rem 0 0 1rem }
"""


def documentation(schema: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """Return the page; `schema` is that of the whole application, which may not be made yet."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    def docs() -> HTMLResponse:
        return HTMLResponse("\n".join(_lines(schema())))

    return router


def _lines(schema: Mapping[str, Any]) -> Iterator[str]:
    title = escape(schema["info"]["title"])
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style><h1>{title}</h1>"
    yield "<p>Everything is JSON, but for <code>/metrics</code>. The whole of it as OpenAPI: "
    yield '<a href="/openapi.json">/openapi.json</a>. Commands need '
    yield "<code>Authorization: Bearer TOKEN</code>. An error is "
    yield '<code>{"error": {"kind": ..., "message": ...}}</code>.</p>'
    group = None
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            (tag, *_) = told.get("tags") or [""]
            if tag != group:
                yield f"{'</dl>' if group is not None else ''}<h2>{escape(tag)}</h2><dl>"
                group = tag
            asked = [p["name"] for p in told.get("parameters", ()) if p["in"] == "query"]
            query = f"?{'&amp;'.join(f'{escape(name)}=' for name in asked)}" if asked else ""
            yield f"<dt><code>{method.upper()} {escape(path)}{query}</code></dt>"
            yield f"<dd>{escape(told.get('description', ''))}</dd>"
    yield "</dl></html>"
