"""Models from a hub: whole or not at all."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chassis.download import Downloader
from chassis.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)
from chassis.hub import Hub
from chassis.model_store import LocalModel, ModelStore, resolve
from tests.chassis.hub_server import HubServer, serving_hub
from tests.chassis.model_folder import folder_files, gguf, make_folder, safetensors

REPOSITORY = "org/model"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving_hub() as server:
        server.repositories[REPOSITORY] = folder_files()
        yield server


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(tmp_path: Path, hub: HubServer, pauses: list[float]) -> ModelStore:
    return store_of(tmp_path, hub, pauses)


def store_of(
    folder: Path, hub: HubServer, pauses: list[float], token: str | None = None
) -> ModelStore:
    downloader = Downloader(hub.endpoint, token, pauses.append)
    return ModelStore(folder / "store", Hub(hub.endpoint, downloader))


def visible(folder: Path) -> list[str]:
    """What of the store a user would see."""
    models = folder / "store" / "models"
    return sorted(path.name for path in models.glob("[!.]*")) if models.exists() else []


def test_a_hub_model_is_pulled_whole_and_found_by_name(
    store: ModelStore, hub: HubServer, tmp_path: Path
) -> None:
    progress: list[tuple[str, int, int | None]] = []
    model = store.pull(REPOSITORY, lambda *step: progress.append(step))
    assert model == store.resolve(REPOSITORY) == LocalModel(REPOSITORY, model.path)
    files = hub.repositories[REPOSITORY]
    wanted = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {path.name for path in model.path.glob("[!.]*")} == wanted | {"baton.json"}
    assert all((model.path / name).read_bytes() == files[name] for name in wanted)
    size = len(files["model.safetensors"])
    assert progress[-1] == ("model.safetensors", size, size)


def test_what_is_here_is_not_pulled_again(store: ModelStore, hub: HubServer) -> None:
    first = store.pull(REPOSITORY)
    hub.seen.clear()
    assert store.pull(REPOSITORY) == first
    assert hub.seen == []


def test_a_broken_connection_is_continued_where_it_broke(
    store: ModelStore, hub: HubServer, pauses: list[float]
) -> None:
    hub.drop_after = [100_000, 50_000]
    store.pull(REPOSITORY)
    assert hub.ranges_seen() == ["", "bytes=100000-", "bytes=150000-"]
    assert pauses == [0.5, 1.0]


def test_a_pull_that_failed_shows_nothing_and_the_next_one_continues(
    store: ModelStore, hub: HubServer, tmp_path: Path
) -> None:
    hub.drop_after = [1000] * 5
    with pytest.raises(Unavailable) as caught:
        store.pull(REPOSITORY)
    assert caught.value.reason == "DOWNLOAD_FAILED"
    assert visible(tmp_path) == [] and store.names() == []
    hub.seen.clear()
    store.pull(REPOSITORY)
    assert hub.ranges_seen() == ["bytes=5000-"]
    assert not any(path.endswith("config.json") for path in hub.paths("hub"))


def test_leftovers_of_another_file_are_replaced(
    store: ModelStore, hub: HubServer, tmp_path: Path
) -> None:
    hub.drop_after = [1000] * 5
    with pytest.raises(Unavailable):
        store.pull(REPOSITORY)
    (part,) = (tmp_path / "store" / "models").glob(".part-*/model.safetensors.part")
    part.write_bytes(b"x" * 1_000_000)
    model = store.pull(REPOSITORY)
    stored = (model.path / "model.safetensors").read_bytes()
    assert stored == hub.repositories[REPOSITORY]["model.safetensors"]


def test_a_store_that_cannot_be_written_is_said_so(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    with pytest.raises(FailedPrecondition, match="cannot write to") as caught:
        store_of(tmp_path, hub, []).pull(REPOSITORY)
    assert caught.value.reason == "MODEL_STORE_UNWRITABLE"


def test_a_server_without_ranges_is_asked_from_the_start(store: ModelStore, hub: HubServer) -> None:
    hub.ranges, hub.drop_after = False, [100_000]
    model = store.pull(REPOSITORY)
    stored = (model.path / "model.safetensors").read_bytes()
    assert stored == hub.repositories[REPOSITORY]["model.safetensors"]


def test_files_of_two_commits_never_mix(store: ModelStore, hub: HubServer) -> None:
    hub.drop_after = [1000] * 5
    with pytest.raises(Unavailable):
        store.pull(REPOSITORY)
    hub.commit = "beef" * 10
    hub.repositories[REPOSITORY]["model.safetensors"] = safetensors(200_000)
    hub.seen.clear()
    store.pull(REPOSITORY)
    assert hub.ranges_seen() == [""]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"], ids=["sha256", "git blob"])
def test_a_changed_byte_is_found_and_nothing_kept(
    store: ModelStore, hub: HubServer, tmp_path: Path, name: str
) -> None:
    hub.corrupt = {name}
    with pytest.raises(FailedPrecondition, match=name) as caught:
        store.pull(REPOSITORY)
    assert caught.value.reason == "DOWNLOAD_CORRUPT"
    assert visible(tmp_path) == []
    hub.corrupt = set()
    store.pull(REPOSITORY)


def test_the_redirect_tells_the_sha256_where_the_list_does_not(
    store: ModelStore, hub: HubServer
) -> None:
    hub.states_sizes, hub.corrupt = False, {"model.safetensors"}
    with pytest.raises(FailedPrecondition, match="sha256"):
        store.pull(REPOSITORY)
    hub.corrupt = set()
    assert store.pull(REPOSITORY).path.is_dir()


def test_a_private_model_needs_a_token_which_stays_with_the_hub(
    tmp_path: Path, hub: HubServer, pauses: list[float]
) -> None:
    hub.token = "secret"
    with pytest.raises(PermissionDenied, match="HF_TOKEN"):
        store_of(tmp_path, hub, pauses).pull(REPOSITORY)
    hub.seen.clear()
    store_of(tmp_path, hub, pauses, token="secret").pull(REPOSITORY)
    assert hub.tokens_seen("hub") == {"Bearer secret"}
    assert hub.tokens_seen("storage") == {""}


def test_the_index_says_which_shards_there_are(store: ModelStore, hub: HubServer) -> None:
    files = hub.repositories[REPOSITORY]
    del files["model.safetensors"]
    files["a.safetensors"] = safetensors(300_000, "x")
    files["b.safetensors"] = safetensors(10, "y")
    files["consolidated.safetensors"] = safetensors(20)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    model = store.pull(REPOSITORY)
    assert {path.name for path in model.path.glob("*.safetensors")} == {
        "a.safetensors",
        "b.safetensors",
    }


def test_one_gguf_of_a_repository_can_be_named(store: ModelStore, hub: HubServer) -> None:
    hub.repositories["org/ggufs"] = {"q4/m.gguf": gguf(b"4"), "q8/m.gguf": gguf(b"8")}
    with pytest.raises(NotFound, match=r"org/ggufs:q4/m\.gguf, org/ggufs:q8/m\.gguf"):
        store.pull("org/ggufs")
    model = store.pull("org/ggufs:q4/m.gguf")
    assert model.path.read_bytes() == gguf(b"4")
    assert store.resolve("org/ggufs:q4/m.gguf") == model


def test_a_hub_that_is_not_there_is_unavailable(tmp_path: Path, pauses: list[float]) -> None:
    hub = Hub("http://127.0.0.1:1", Downloader("http://127.0.0.1:1", None, pauses.append))
    with pytest.raises(Unavailable):
        ModelStore(tmp_path, hub).pull(REPOSITORY)


def test_an_unknown_hub_model_is_not_found(store: ModelStore) -> None:
    with pytest.raises(NotFound):
        store.pull("org/nothing")


def test_something_else_at_the_address_is_no_hub(store: ModelStore, hub: HubServer) -> None:
    hub.commit = ""
    hub.repositories[REPOSITORY] = {}
    with pytest.raises(ServiceError):
        store.pull(REPOSITORY)


def test_two_pulls_at_once_download_once(
    tmp_path: Path, hub: HubServer, pauses: list[float]
) -> None:
    start = threading.Barrier(2)

    def pull(_: int) -> LocalModel:
        start.wait()
        return store_of(tmp_path, hub, pauses).pull(REPOSITORY)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(pull, range(2))
    assert first == second
    assert len(hub.ranges_seen()) == 1


def test_names_that_look_alike_are_kept_apart(
    store: ModelStore, hub: HubServer, tmp_path: Path
) -> None:
    pulled = store.pull(REPOSITORY)
    linked = store.pull(str(make_folder(tmp_path / "org--model")))
    assert store.resolve(REPOSITORY) == pulled and store.resolve("org--model") == linked
    assert store.names() == ["org--model", REPOSITORY]


def test_the_store_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, store: ModelStore, tmp_path: Path
) -> None:
    model = store.pull(REPOSITORY)
    monkeypatch.setenv("BATON_MODEL_DIR", str(tmp_path / "store"))
    assert resolve(REPOSITORY) == model
