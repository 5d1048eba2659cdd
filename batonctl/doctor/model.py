"""The model store and the model to serve."""

import hashlib
import os
from pathlib import Path

from batonctl.doctor.check import Check, failed, ok, warning
from chassis.catalogue import CATALOGUE
from chassis.errors import NotFound, ServiceError
from chassis.hub import HUB_ID
from chassis.model_store import ModelStore, resolve, store_directory


def check_model(name: str) -> list[Check]:
    """Whether the store can be written, and whether the model is there and whole."""
    return [_check_store(), _check_model(name)]


def _check_store() -> Check:
    store = store_directory()
    existing = next(path for path in (store, *store.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK):
        return ok("model store", str(store))
    fix = f"make {existing} writable, or name another folder in BATON_MODEL_DIR"
    return failed("model store", f"{store} cannot be written", fix)


def _check_model(name: str) -> Check:
    try:
        model = resolve(name)
    except NotFound as error:
        if name in CATALOGUE or HUB_ID.fullmatch(name):
            return warning("model", f"{name} is not here", f"baton pull {name}")
        return failed("model", error.message, "name one of these with --model")
    except ServiceError as error:
        stored = name in ModelStore().names()
        return failed("model", error.message, f"baton pull {name}" if stored else "get it again")
    if name in CATALOGUE and _sha256(model.path) != CATALOGUE[name].sha256:
        fix = f"remove {model.path.parent}, then baton pull {name}"
        return failed("model", f"{model.path} is not what was pulled: its sha256 differs", fix)
    return ok("model", f"{name} at {model.path}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
