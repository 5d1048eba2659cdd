"""`baton models`: what can be pulled by name, and what is here."""

import json
from typing import Any

from chassis.catalogue import CATALOGUE
from chassis.errors import ServiceError
from chassis.model_store import ModelStore


def run_models(*, as_json: bool) -> None:
    """Prints the models of the catalogue and of the store."""
    rows = list_models()
    if as_json:
        print(json.dumps({"models": rows}, ensure_ascii=False))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        here = row["path"] or f"not here: baton pull {row['name']}"
        what = f"  ({row['what']})" if row["what"] else ""
        print(f"{row['name']:<{width}}  {here}{what}")


def list_models() -> list[dict[str, Any]]:
    """One entry a model: `name`, `path` (None where it is not here) and `what`."""
    store = ModelStore()
    rows = []
    for name in sorted({*CATALOGUE, *store.names()}):
        known = CATALOGUE.get(name)
        what = f"{known.description}, {known.license}" if known else ""
        try:
            path = str(store.resolve(name).path)
        except ServiceError:
            path = None
        rows.append({"name": name, "path": path, "what": what})
    return rows
