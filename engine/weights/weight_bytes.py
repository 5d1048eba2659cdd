"""How much memory a model's weights take, without loading them."""

from engine.config import ModelConfig
from engine.parallel.sharding import shard_config


def weight_bytes(config: ModelConfig, item_bytes: int, num_ranks: int) -> int:
    """Of the first of ``num_ranks`` ranks, dense weights of ``item_bytes`` an element.

    Raises ConfigurationError for what cannot be divided among so many.
    """
    own = shard_config(config, num_ranks)
    hidden, inner = own.hidden_size, own.intermediate_size
    q_size, kv_size = own.num_heads * own.head_dim, own.num_kv_heads * own.head_dim
    rows = q_size + 2 * kv_size
    layer = hidden * (rows + q_size + 3 * inner) + 2 * hidden
    layer += rows if own.attention_bias else 0
    layer += hidden if own.attention_output_bias else 0
    layer += 2 * inner + hidden if own.mlp_bias else 0
    layer += 2 * own.head_dim if own.qk_norm else 0
    is_divided = num_ranks > 1 and own.vocab_size % num_ranks == 0
    vocabulary = own.vocab_size * hidden
    head = vocabulary // num_ranks if is_divided else vocabulary
    if own.tie_word_embeddings and not is_divided:
        head = 0
    return (own.num_layers * layer + vocabulary + head + hidden) * item_bytes
