"""A model hub on loopback, with a second site that the large files are redirected to."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee0123456789c0ffee0123456789c0ffee01"


@dataclass
class HubServer:
    """Repositories by id, and what the tests want to go wrong.

    ``drop_after`` ends that many next large downloads early; ``token`` is then required;
    ``corrupt`` names files whose bytes are changed on the way.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    drop_after: list[int] = field(default_factory=list)
    corrupt: set[str] = field(default_factory=set)
    token: str | None = None
    ranges: bool = True
    states_sizes: bool = True
    seen: list[tuple[str, str, str, str]] = field(default_factory=list)
    endpoint: str = ""
    storage: str = ""

    def paths(self, site: str) -> list[str]:
        """Paths asked for at one of the sites, ``hub`` or ``storage``."""
        return [path for where, path, _, _ in self.seen if where == site]

    def ranges_seen(self) -> list[str]:
        """The Range headers of all downloads from storage, "" where there was none."""
        return [header for where, _, header, _ in self.seen if where == "storage"]

    def tokens_seen(self, site: str) -> set[str]:
        """The Authorization headers that a site got."""
        return {token for where, _, _, token in self.seen if where == site}


@contextmanager
def serving_hub() -> Iterator[HubServer]:
    """Both sites, running."""
    hub = HubServer()
    with (
        _site(hub, "hub", _HubHandler) as hub.endpoint,
        _site(hub, "storage", _StorageHandler) as hub.storage,
    ):
        yield hub


@contextmanager
def _site(hub: HubServer, name: str, handler: type["_Handler"]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type(name, (handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    site: str

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "")
        self.hub.seen.append((self.site, path, self.headers.get("Range", ""), token))
        self.answer(path.split("/")[1:])

    def answer(self, parts: list[str]) -> None:
        raise NotImplementedError

    def log_message(self, *args: Any) -> None:
        pass

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _HubHandler(_Handler):
    site = "hub"

    def answer(self, parts: list[str]) -> None:
        hub = self.hub
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.send(401)
        if parts[:2] == ["api", "models"]:
            return self._list("/".join(parts[2:4]))
        files = hub.repositories.get("/".join(parts[:2]), {})
        name = "/".join(parts[4:])
        if parts[2:4] != ["resolve", hub.commit] or name not in files:
            return self.send(404)
        if not is_large(name):
            return self.send(200, served(hub, name, files[name]), ETag=f'"{blob(files[name])}"')
        linked = {"X_Linked_Etag": f'"{sha256(files[name])}"'}
        if hub.states_sizes:
            linked["X_Linked_Size"] = str(len(files[name]))
        location = f"{hub.storage}/{'/'.join(parts[:2])}/{name}"
        return self.send(302, b"", Location=location, **linked)

    def _list(self, repository: str) -> None:
        files = self.hub.repositories.get(repository)
        if files is None:
            return self.send(404)
        siblings = [listing(name, data, self.hub.states_sizes) for name, data in files.items()]
        answer = {"sha": self.hub.commit, "siblings": siblings}
        return self.send(200, json.dumps(answer).encode())


class _StorageHandler(_Handler):
    site = "storage"

    def answer(self, parts: list[str]) -> None:
        name = "/".join(parts[2:])
        data = served(self.hub, name, self.hub.repositories["/".join(parts[:2])][name])
        start = 0
        if self.hub.ranges and (header := self.headers.get("Range")):
            start = int(header.removeprefix("bytes=").rstrip("-"))
        if start > len(data) or (start and start == len(data)):
            return self.send(416)
        body = data[start:]
        length = str(len(body))
        if self.hub.drop_after:
            body = body[: self.hub.drop_after.pop(0)]
            self.close_connection = True
        return self.send(206 if start else 200, body, Content_Length=length)


def listing(name: str, data: bytes, sizes: bool) -> dict[str, Any]:
    """An entry of the hub's file list, as with ``?blobs=true``."""
    entry: dict[str, Any] = {"rfilename": name}
    if sizes:
        entry |= {"size": len(data), "blobId": blob(data)}
        if is_large(name):
            entry["lfs"] = {"sha256": sha256(data), "size": len(data)}
    return entry


def served(hub: HubServer, name: str, data: bytes) -> bytes:
    """What is really sent."""
    return data[:-1] + bytes([data[-1] ^ 1]) if name in hub.corrupt else data


def is_large(name: str) -> bool:
    """Whether the file is kept in the second site."""
    return name.endswith((".safetensors", ".gguf"))


def sha256(data: bytes) -> str:
    """As hubs state it for large files."""
    return hashlib.sha256(data).hexdigest()


def blob(data: bytes) -> str:
    """A git blob id, as hubs state it for small files."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
