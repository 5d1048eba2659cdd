"""The model store and the model to serve."""

import os

from batonctl.doctor.check import Check, failed, ok, warning
from chassis.errors import NotFound, ServiceError
from chassis.model_store import resolve, store_directory


def check_model(name: str) -> list[Check]:
    """Whether the store can be written, and whether the model is there and whole."""
    return [_check_store(), _check_model(name)]


def _check_store() -> Check:
    store = store_directory()
    existing = next(path for path in (store, *store.parents) if path.exists())
    if os.access(existing, os.W_OK):
        return ok("model store", str(store))
    fix = f"make {existing} writable, or name another folder in BATON_MODEL_DIR"
    return failed("model store", f"{store} cannot be written", fix)


def _check_model(name: str) -> Check:
    try:
        model = resolve(name)
    except NotFound:
        return warning("model", f"{name} is not here", f"baton pull {name}")
    except ServiceError as error:
        return failed("model", error.message, f"remove the broken files and run baton pull {name}")
    return ok("model", f"{name} at {model.path}")
