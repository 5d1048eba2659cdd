"""The arithmetic that a model's steps cannot do without."""

from engine.config import ModelConfig


def flops_a_token(model: ModelConfig) -> float:
    """Of the matrix products with the layers' weights; prefill needs the head only once."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    layer = model.hidden_size * (2 * q_size + 2 * kv_size + 3 * model.intermediate_size)
    return 2.0 * model.num_layers * layer


def attention_flops(model: ModelConfig, context: float) -> float:
    """Of one token that sees ``context`` others."""
    return 4.0 * model.num_layers * model.num_heads * model.head_dim * context
