"""How the tokens of a request are chosen, with every default resolved."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Ranges are checked at the gateway; the field comments of generation.proto are the reference.

    ``eos_token_ids`` end a text by the tokenizer, which only who sends the request has.
    ``temperature`` 0 is greedy; ``top_k`` 0 keeps all tokens; ``logprobs`` None returns none and
    0 only the chosen token's.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    stop_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
