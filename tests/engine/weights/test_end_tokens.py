"""The engine ends a text where the gateway's tokenizer says that it ends."""

from engine.weights.gguf_config import END_TEXTS
from gateway.tokenizer.token_table import END_TEXTS as GATEWAY_END_TEXTS


def test_engine_and_gateway_know_the_same_end_texts() -> None:
    assert END_TEXTS == GATEWAY_END_TEXTS
