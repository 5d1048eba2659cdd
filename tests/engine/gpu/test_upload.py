"""Weights come to a device as they are, whatever their shape and in whatever pieces."""

from contextlib import closing

import pytest
import torch

from engine.gpu.upload import Upload

SHAPES = ((5,), (1000,), (7, 33), (64, 32), (3, 5, 6))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_element_arrives(device: torch.device, dtype: torch.dtype) -> None:
    tensors = [torch.randn(shape).to(dtype) for shape in SHAPES]
    # A rank's share of the columns, and of the rows.
    tensors += [torch.randn(40, 64).to(dtype)[:, 32:], torch.randn(40, 64).to(dtype)[20:]]
    # Few rows a piece, so that both buffers are used again and again.
    with closing(Upload(device, piece_bytes=500)) as upload:
        uploaded = [upload(tensor) for tensor in tensors]
    for tensor, copy in zip(tensors, uploaded, strict=True):
        assert copy.device.type == device.type and copy.is_contiguous()
        assert torch.equal(copy.cpu(), tensor)


def test_what_is_uploaded_is_apart_from_its_source(device: torch.device) -> None:
    source = torch.zeros(4, 4)
    with closing(Upload(device)) as upload:
        copy = upload(source)
    source += 1
    assert copy.sum() == 0
