"""How long a busy thread keeps the interpreter from others."""

# Seconds. At the default a busy event loop wakes the engine thread 5 ms late.
SWITCH_INTERVAL = 0.0002
