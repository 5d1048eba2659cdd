"""Rotary position embedding and its scalings."""

import math
from dataclasses import dataclass

import torch

from engine.config import ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class RotaryAngles:
    """``cos`` and ``sin`` of a step's tokens, (T, 1, head_dim).

    ``sin`` is negated in the first half, so that ``x * cos + roll(x, head_dim / 2) * sin`` is the
    rotation.
    """

    cos: torch.Tensor
    sin: torch.Tensor


class Rotary:
    """Angles depend on positions only, so they are computed once a step for all layers."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._half = config.head_dim // 2
        self._inverse_frequencies = inverse_frequencies(config)
        self._magnitude = magnitude(config.rope_scaling)

    def angles(self, positions: torch.Tensor) -> RotaryAngles:
        """``positions``: (T,) integers."""
        angles = positions.float().unsqueeze(-1) * self._inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos * self._magnitude, sin * self._magnitude
        return RotaryAngles(
            torch.cat((cos, cos), dim=-1).to(self._dtype).unsqueeze(1),
            torch.cat((-sin, sin), dim=-1).to(self._dtype).unsqueeze(1),
        )

    def rotate(self, x: torch.Tensor, angles: RotaryAngles) -> torch.Tensor:
        """Rotates ``x`` (T, heads, head_dim) into a new tensor."""
        return (x * angles.cos).addcmul_(torch.roll(x, self._half, -1), angles.sin)


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """(head_dim / 2,) float32 radians a position, scaling applied."""
    dim = config.head_dim
    frequencies = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2).float() / dim))
    scaling = config.rope_scaling
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    if scaling.kind == "yarn":
        return _yarn(frequencies, config)
    if scaling.kind == "factors":
        return frequencies / torch.tensor(scaling.frequency_factors)
    return frequencies


def magnitude(scaling: RopeScaling) -> float:
    """What cos and sin are multiplied by; yarn alone differs from 1."""
    if scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(
            scaling.factor, scaling.mscale_all_dim
        )
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def _yarn(frequencies: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Like llama3, but the blend is linear in the index of the frequency."""
    scaling = config.rope_scaling
    low = _index_of_turns(scaling.beta_fast, config)
    high = _index_of_turns(scaling.beta_slow, config)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(len(frequencies)).float() - low) / width).clamp(0.0, 1.0)
    return frequencies * ((1.0 - stretched) + stretched / scaling.factor)


def _index_of_turns(turns: float, config: ModelConfig) -> float:
    """Index of the frequency that makes ``turns`` turns over the original context."""
    context = config.rope_scaling.original_max_position_embeddings
    wavelength_index = math.log(context / (turns * 2 * math.pi))
    return config.head_dim * wavelength_index / (2 * math.log(config.rope_theta))
