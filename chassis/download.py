"""Downloads one file over HTTP(S): resumed after an interruption, checked before it counts."""

import hashlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from chassis.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)

CHUNK_BYTES = 1024 * 1024
ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0
REDIRECTS = (301, 302, 303, 307, 308)


class Progress(Protocol):
    """Told how far a pull is: what is being fetched, bytes done, bytes in all if known."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Checks:
    """What a file must be: its size, and its sha256 or git blob id, as far as they are known."""

    num_bytes: int | None = None
    sha256: str | None = None
    git_blob: str | None = None

    def verify(self, path: Path, name: str) -> None:
        """Raises FailedPrecondition (DOWNLOAD_CORRUPT) if the file differs."""
        size = path.stat().st_size
        if self.num_bytes is not None and size != self.num_bytes:
            raise _corrupt(name, "bytes", str(self.num_bytes), str(size))
        if self.sha256 is not None:
            found = file_digest(path, hashlib.sha256())
            if found != self.sha256:
                raise _corrupt(name, "sha256", self.sha256, found)
        elif self.git_blob is not None:
            found = file_digest(path, hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False))
            if found != self.git_blob:
                raise _corrupt(name, "git blob id", self.git_blob, found)


@dataclass(frozen=True, slots=True)
class Response:
    """An open response and the headers of it and of every redirect before it, lower case."""

    body: IO[bytes]
    status: int
    headers: Mapping[str, str]

    @property
    def content_length(self) -> int | None:
        """Bytes that the body will have, if the server says."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdigit() else None


class Downloader:
    """Fetches from one site; ``token`` goes to that site only, never along a redirect.

    ``pause`` waits between attempts.
    """

    def __init__(
        self,
        site: str,
        token: str | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host = urllib.parse.urlsplit(site).netloc
        self._token = token
        self._pause = pause
        self._opener = urllib.request.build_opener(_NoRedirect)

    def get(self, url: str) -> bytes:
        """A small document. Raises NotFound, PermissionDenied or Unavailable."""
        with self.open(url).body as body:
            return body.read()

    def fetch(self, url: str, target: Path, checks: Checks, progress: Progress) -> None:
        """Downloads to ``target``, which appears only when it is whole and checked.

        Continues what an earlier try left in ``target.part``. Raises Unavailable when every
        attempt failed, FailedPrecondition when the content is not what was announced.
        """
        part = target.with_name(target.name + ".part")
        for attempt in range(ATTEMPTS):
            try:
                found = self._continue(url, part, checks, progress)
                break
            except Unavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                self._pause(0.5 * 2**attempt)
        try:
            found.verify(part, target.name)
        except ServiceError:
            # Never continued: a wrong start would spoil every later attempt as well.
            part.unlink()
            raise
        part.replace(target)

    def open(self, url: str, start: int = 0) -> Response:
        """Opens a URL, from byte ``start`` where the server can; follows redirects."""
        seen: dict[str, str] = {}
        for _ in range(6):
            response = self._open_once(url, start)
            headers = {key.lower(): value for key, value in response.headers.items()}
            # A redirect's own headers describe the file, those of its target only the transfer.
            seen = {**headers, **seen, "content-length": headers.get("content-length", "")}
            if response.status not in REDIRECTS:
                return Response(response, response.status, seen)
            response.close()
            url = urllib.parse.urljoin(url, headers.get("location", ""))
        raise Unavailable(f"{url}: too many redirects", reason="DOWNLOAD_FAILED")

    def _continue(self, url: str, part: Path, checks: Checks, progress: Progress) -> Checks:
        done = part.stat().st_size if part.exists() else 0
        if done and done == checks.num_bytes:
            return checks
        response = self.open(url, done)
        if response.status != 206:
            done = 0
        checks = _announced(checks, response, done)
        with response.body as body, part.open("ab" if done else "wb") as file:
            while chunk := _read(body, url):
                file.write(chunk)
                done += len(chunk)
                progress(part.name.removesuffix(".part"), done, checks.num_bytes)
        if checks.num_bytes is not None and done < checks.num_bytes:
            raise _unavailable(url, f"ended after {done} of {checks.num_bytes} bytes")
        return checks

    def _open_once(self, url: str, start: int) -> Any:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise Unavailable(f"{url} is not an HTTP address", reason="DOWNLOAD_FAILED")
        request = urllib.request.Request(url, headers={"User-Agent": "baton"})
        if self._token and urllib.parse.urlsplit(url).netloc == self._host:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            return self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code in REDIRECTS:
                return error
            with error:
                if error.code == 416 and start:
                    # What is here is longer than the file: it is another one.
                    return self._open_once(url, 0)
                raise _http_error(url, error.code) from error
        except (OSError, http.client.HTTPException) as error:
            raise _unavailable(url, error) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def file_digest(path: Path, digest: Any) -> str:
    """Hex digest of a file, continuing ``digest``."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    text: str = digest.hexdigest()
    return text


def _read(body: IO[bytes], url: str) -> bytes:
    try:
        return body.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _unavailable(url, error) from error


def _announced(checks: Checks, response: Response, start: int) -> Checks:
    """Adds what the response says about the file to what is known already."""
    headers = response.headers
    etag = headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
    linked = headers.get("x-linked-size", "")
    length = response.content_length
    size = int(linked) if linked.isdigit() else None
    if size is None and length is not None:
        size = start + length
    return Checks(
        num_bytes=checks.num_bytes if checks.num_bytes is not None else size,
        sha256=checks.sha256 or (etag if len(etag) == 64 else None),
        git_blob=checks.git_blob or (etag if len(etag) == 40 else None),
    )


def _http_error(url: str, code: int) -> ServiceError:
    if code in (401, 403):
        text = f"{url}: HTTP {code}; a private or gated model needs HF_TOKEN"
        return PermissionDenied(text, reason="DOWNLOAD_FORBIDDEN")
    if code == 404:
        return NotFound(f"{url}: not found", reason="DOWNLOAD_NOT_FOUND")
    return _unavailable(url, f"HTTP {code}")


def _unavailable(url: str, cause: object) -> Unavailable:
    return Unavailable(f"{url}: {cause}", reason="DOWNLOAD_FAILED")


def _corrupt(name: str, what: str, expected: str, found: str) -> ServiceError:
    text = f"{name}: expected {what} {expected}, got {found}; nothing was kept"
    return FailedPrecondition(text, reason="DOWNLOAD_CORRUPT")
