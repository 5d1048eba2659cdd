"""The arithmetic that a model's steps cannot do without."""

from engine.config import ModelConfig


def gemm_flops(model: ModelConfig, tokens: int, drawn: int) -> float:
    """Of the matrix products with weights in a step of so many ``tokens``, of which ``drawn``
    become logits: of the others the last layer needs K and V alone."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    k_and_v = 2 * model.hidden_size * kv_size
    rest = model.hidden_size * (2 * q_size + 3 * model.intermediate_size)
    head = model.hidden_size * model.vocab_size
    whole = (model.num_layers - 1) * tokens + drawn
    return 2.0 * (model.num_layers * tokens * k_and_v + whole * rest + drawn * head)


def attention_flops(model: ModelConfig, tokens: int, drawn: int, context: float) -> float:
    """Of ``tokens`` that see ``context`` others in the mean, ``drawn`` as in ``gemm_flops``."""
    whole = (model.num_layers - 1) * tokens + drawn
    return 4.0 * whole * model.num_heads * model.head_dim * context
