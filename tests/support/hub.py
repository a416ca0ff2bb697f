"""A hub for tests: an HTTP server that takes repositories and commits as the real one does, and keeps what it got."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub:
    """`files` are what was committed, by repository, branch and path; `refuse` is a status that all requests get."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.tokens: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.refuse = 0
        self.endpoint = ""

    def post(self, path: str, body: bytes) -> tuple[int, dict[str, object]]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.private[repo] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return 200, {"url": f"{self.endpoint}/{repo}", "name": repo, "id": "1"}
        if "/preupload/" in path:
            files = [{**file, "uploadMode": self._mode(file["path"]), "shouldIgnore": False} for file in _files(body)]
            return 200, {"files": files}
        if "/branch/" in path:
            return 200, {}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.endpoint}/blobs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        if "/commit/" in path:
            repo, _, branch = path.removeprefix("/api/models/").partition("/commit/")
            self._commit(repo, branch, body)
            return 200, {"commitUrl": f"{self.endpoint}/{repo}/commit/1", "commitOid": "1", "hookOutput": ""}
        return 404, {"error": path}

    def _mode(self, path: str) -> str:
        return "lfs" if path.endswith(".safetensors") else "regular"

    def _commit(self, repo: str, branch: str, body: bytes) -> None:
        kept = self.files.setdefault((repo, branch), {})
        for line in body.splitlines():
            row = json.loads(line)
            if row["key"] == "file":
                kept[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            elif row["key"] == "lfsFile":
                kept[row["value"]["path"]] = self.blobs[row["value"]["oid"]]


def _files(body: bytes) -> list[dict[str, object]]:
    return [{"path": one["path"]} for one in json.loads(body)["files"]]


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, content: dict[str, object]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer(hub.refuse or 200, {"name": "me", "siblings": [], "id": "me/it", "sha": "1"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.tokens.add(self.headers.get("Authorization", ""))
            self._answer(*((hub.refuse, {"error": "no"}) if hub.refuse else hub.post(self.path, body)))

        def do_PUT(self) -> None:
            hub.blobs[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, {})

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
