"""A figure that follows its samples slowly."""

_WEIGHT = 0.2


class Smoothed:
    """Exponentially weighted mean; 0 until the first sample."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, sample: float) -> None:
        self.value = sample if self.value == 0.0 else self.value + _WEIGHT * (sample - self.value)
