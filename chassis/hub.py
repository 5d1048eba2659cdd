"""Models from a Hugging Face hub (HF_ENDPOINT, HF_TOKEN), over plain HTTP."""

import json
import os
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chassis.download import Checks, Downloader, Progress
from chassis.errors import NotFound, Unavailable
from chassis.model_files import weight_files
from modelfiles.model_folder import SAFETENSORS_INDEX

# What the engine, the tokenizer and the chat template read; nothing else is fetched.
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    SAFETENSORS_INDEX,
)
# A part that begins with a dot is a folder's.
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(:[\w./-]+\.gguf)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model repository and what its content must be."""

    name: str
    checks: Checks


@dataclass(frozen=True, slots=True)
class HubModel:
    """One commit of a model repository."""

    repository: str
    commit: str
    files: dict[str, HubFile]


class Hub:
    """A hub by its address, by default HF_ENDPOINT or huggingface.co."""

    def __init__(self, endpoint: str | None = None, downloader: Downloader | None = None) -> None:
        given = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        self._endpoint = given.rstrip("/")
        self._downloader = downloader or Downloader(given, os.environ.get("HF_TOKEN"))

    def find(self, repository: str) -> HubModel:
        """The current commit of a repository. Raises NotFound, PermissionDenied, Unavailable."""
        url = f"{self._endpoint}/api/models/{repository}/revision/main?blobs=true"
        try:
            answer = json.loads(self._downloader.get(url))
            files = [_hub_file(entry) for entry in answer["siblings"]]
            return HubModel(repository, str(answer["sha"]), {file.name: file for file in files})
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(
                f"{url}: not the answer of a model hub", reason="HUB_ANSWER_INVALID"
            ) from error

    def download(self, model: HubModel, folder: Path, progress: Progress) -> None:
        """Fetches what serving the model needs; files that are there already are kept.

        ``folder`` must belong to this commit alone.
        """
        texts = [model.files[name] for name in TEXT_FILES if name in model.files]
        self._fetch(model, texts, folder, progress)
        names = [name for name in model.files if name.endswith(".safetensors")]
        if SAFETENSORS_INDEX in model.files:
            names = weight_files(folder)
        if not names:
            raise self._without_weights(model)
        if missing := [name for name in names if name not in model.files]:
            raise NotFound(
                f"{model.repository} lacks {', '.join(missing)}, which its index names",
                reason="MODEL_INVALID",
            )
        self._fetch(model, [model.files[name] for name in names], folder, progress)

    def download_file(self, model: HubModel, name: str, folder: Path, progress: Progress) -> None:
        """Fetches one file of the repository."""
        if name not in model.files:
            raise self._without_weights(model)
        self._fetch(model, [model.files[name]], folder, progress)

    def _fetch(
        self, model: HubModel, files: Iterable[HubFile], folder: Path, progress: Progress
    ) -> None:
        for file in files:
            target = folder / Path(file.name).name
            if not target.exists():
                path = urllib.parse.quote(f"{model.repository}/resolve/{model.commit}/{file.name}")
                url = f"{self._endpoint}/{path}"
                self._downloader.fetch(url, target, file.checks, progress)

    def _without_weights(self, model: HubModel) -> NotFound:
        ggufs = sorted(name for name in model.files if name.endswith(".gguf"))
        text = f"{model.repository} has no safetensors files"
        if ggufs:
            offers = ", ".join(f"{model.repository}:{name}" for name in ggufs)
            text = f"name one GGUF file: {offers}"
        return NotFound(text, reason="MODEL_INVALID")


def _hub_file(entry: dict[str, object]) -> HubFile:
    name = str(entry["rfilename"])
    lfs = entry.get("lfs")
    size = entry.get("size")
    if isinstance(lfs, dict):
        return HubFile(name, Checks(int(lfs["size"]), sha256=str(lfs["sha256"])))
    blob = entry.get("blobId")
    return HubFile(
        name,
        Checks(
            size if isinstance(size, int) else None,
            git_blob=blob if isinstance(blob, str) and len(blob) == 40 else None,
        ),
    )
