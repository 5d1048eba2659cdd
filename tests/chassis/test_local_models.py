"""Models that are on this machine already."""

from pathlib import Path

import pytest

from chassis.errors import AlreadyExists, FailedPrecondition, NotFound
from chassis.model_store import MANIFEST, LocalModel, ModelStore
from tests.chassis.model_folder import gguf, make_folder, safetensors


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def test_a_path_is_linked_under_its_own_name(store: ModelStore, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-model")
    model = store.pull(str(folder))
    assert model == store.resolve("my-model")
    assert model.path.resolve() == folder
    other = tmp_path / "elsewhere" / "my-model.gguf"
    other.parent.mkdir()
    other.write_bytes(gguf())
    assert store.pull(str(other)).path.resolve() == other
    assert store.resolve("my-model").path.resolve() == other


def test_a_path_cannot_take_the_name_of_another_model(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "smollm2-135m.gguf"
    path.write_bytes(gguf())
    with pytest.raises(AlreadyExists):
        store.pull(str(path))


def test_a_path_resolves_without_being_pulled(store: ModelStore, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-model")
    assert store.resolve(str(folder)) == LocalModel("my-model", folder)
    assert store.names() == []


def test_a_link_whose_target_is_gone_is_no_model(store: ModelStore, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my-model")
    store.pull(str(folder))
    folder.rename(tmp_path / "moved")
    with pytest.raises(FailedPrecondition, match="does not exist"):
        store.resolve("my-model")
    (tmp_path / "moved").rename(folder)
    assert store.pull(str(folder)).path.resolve() == folder


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}"])
def test_a_folder_with_a_broken_manifest_is_no_model_and_in_nobodys_way(
    store: ModelStore, tmp_path: Path, manifest: str
) -> None:
    folder = make_folder(tmp_path / "my-model")
    stored = store.pull(str(folder)).path
    (stored.parent / MANIFEST).write_text(manifest)
    assert store.names() == []
    with pytest.raises(NotFound):
        store.resolve("my-model")
    assert store.pull(str(folder)).path == stored
    assert store.names() == ["my-model"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", b"{", r"config\.json is no JSON"),
        ("config.json", b"{}", "names no architectures"),
        ("tokenizer.json", None, r"tokenizer\.json is missing"),
        ("model.safetensors", None, r"holds neither model\.safetensors nor"),
        ("model.safetensors", safetensors(100)[:-1], r"model\.safetensors .*tensor t .*truncated"),
        ("model.safetensors", b"", r"model\.safetensors is empty"),
        ("model.safetensors", b"\2" + b"\0" * 7 + b"[]", "no JSON object"),
        ("model.safetensors.index.json", b"{}", r"index\.json has no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"x": "../x"}}', "outside the folder"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"x": "gone.st"}}',
            r"gone\.st is missing",
        ),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"x": "model.safetensors"}}',
            r"model\.safetensors: tensor x is missing",
        ),
    ],
)
def test_a_folder_that_cannot_be_a_model_is_refused_by_file(
    store: ModelStore, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    folder = make_folder(tmp_path / "broken")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(FailedPrecondition, match=message) as caught:
        store.pull(str(folder))
    assert caught.value.reason == "MODEL_INVALID"


def test_a_file_that_is_no_gguf_is_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGML" * 10)
    with pytest.raises(FailedPrecondition, match=r"a\.gguf is not a usable GGUF file"):
        store.resolve(str(path))


def test_an_unknown_name_is_answered_with_what_there_is(store: ModelStore, tmp_path: Path) -> None:
    store.pull(str(make_folder(tmp_path / "mine")))
    for ask in (store.resolve, store.pull):
        with pytest.raises(NotFound, match=r"Models here: mine\. To pull by name: smollm2-135m"):
            ask("nothing")
    with pytest.raises(NotFound, match="baton pull smollm2-135m"):
        store.resolve("smollm2-135m")
