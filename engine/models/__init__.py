"""Models, all of one class that configuration flags tell apart."""

from engine.models.decoder import DecoderModel
from engine.models.loader import load_model

__all__ = ["DecoderModel", "load_model"]
