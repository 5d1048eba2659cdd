"""4-bit models against transformers run on the very weights that they hold."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from engine.errors import UnsupportedModelError
from engine.models import load_model
from engine.weights.checkpoint import open_checkpoint
from engine.weights.quantize import quantize_q4, quantize_q8
from tests.engine.models.gguf_export import write_gguf_model
from tests.engine.models.sequence_runner import SequenceRunner
from tests.engine.models.tiny_checkpoint import Case, random_prompt, write_checkpoint

# Of the error's norm over that of the logits. What is left is bfloat16 (activations before each
# GEMM, outputs after it, scales and zeros); these models unquantised in bfloat16 measure 0.03.
TOLERANCE = 0.06
PROMPT = random_prompt(70)
CASES = [
    Case("llama", LlamaConfig, {"tie_word_embeddings": True}),
    Case("llama-biases", LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    Case("qwen2", Qwen2Config, {"tie_word_embeddings": True}),
    Case("qwen3-untied", Qwen3Config, {"head_dim": 32}),
]


def quantize_in_place(model: PreTrainedModel) -> None:
    """Gives ``model`` the weights that q4 makes of its own."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                at_ends = "embed_tokens" in name or "lm_head" in name
                stored = quantize_q8(parameter) if at_ends else quantize_q4(parameter)
                parameter.copy_(stored.dequantize(torch.float32))


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_folders_are_quantised_at_load(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    model = write_checkpoint(case, tmp_path)
    with torch.inference_mode():
        plain = model(torch.tensor([PROMPT])).logits[0]
    quantize_in_place(model)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    loaded = load_model(open_checkpoint(str(tmp_path)), dtype, "q4")
    actual = SequenceRunner(loaded, dtype).logits(PROMPT)
    assert error(actual, expected) < TOLERANCE
    # Else the comparison would say nothing about which weights are held.
    assert error(plain, expected) > 5 * TOLERANCE


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gguf_weights_are_kept_as_they_are(case: Case, kind: str, tmp_path: Path) -> None:
    model = write_checkpoint(case, tmp_path)
    path = write_gguf_model(
        model,
        tmp_path / "model.gguf",
        lambda name: "Q8_0" if "embd" in name or name.startswith("output.") else kind,
    )
    checkpoint = open_checkpoint(str(path))
    expected = SequenceRunner(load_model(checkpoint, torch.float32)).logits(PROMPT)
    loaded = load_model(checkpoint, torch.bfloat16, "q4")
    actual = SequenceRunner(loaded, torch.bfloat16).logits(PROMPT)
    assert error(actual, expected) < TOLERANCE


def test_rows_that_are_no_multiple_of_32_are_refused(tmp_path: Path) -> None:
    case = Case("odd", LlamaConfig, {"intermediate_size": 100})
    write_checkpoint(case, tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.mlp has rows of 100.*q4"):
        load_model(open_checkpoint(str(tmp_path)), torch.bfloat16, "q4")
