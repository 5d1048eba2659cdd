"""Tensors of GGUF files against the gguf library's own dequantisation."""

import gguf
import numpy as np
import pytest
import torch

from engine.errors import CheckpointError
from engine.weights.gguf_tensor import gguf_tensor
from engine.weights.stored_tensor import dequantize
from modelfiles.tensor_file import TensorEntry

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_dequantizes_as_the_library_does(kind: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    kind_value = gguf.GGMLQuantizationType[kind]
    stored = gguf.quantize(values, kind_value)
    raw = torch.from_numpy(np.frombuffer(bytearray(stored.tobytes()), dtype=np.uint8))
    entry = TensorEntry("w", kind, (6, 64), 0, len(raw))
    expected = gguf.dequantize(stored, kind_value).reshape(6, 64)
    actual = dequantize(gguf_tensor(raw, entry), torch.float32)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-6)


def test_a_type_that_nobody_reads_is_named_with_its_tensor() -> None:
    entry = TensorEntry("blk.0.w", "I8", (2, 4), 0, 8)
    with pytest.raises(CheckpointError, match=r"blk\.0\.w is of type I8"):
        gguf_tensor(torch.zeros(8, dtype=torch.uint8), entry)
