"""What can go wrong inside the engine.

EngineError
├── ConfigurationError      a setting cannot be honoured on this machine
├── CheckpointError         a checkpoint cannot be used; names the file and the tensor
│   └── UnsupportedModelError   its architecture or a feature of it is not supported
├── OutOfBlocks             the KV pool has no room now
├── DeviceLost              what the model runs on computes nothing any more
│   └── RankLost                its ranks do not compute together any more
└── RequestError            a request that this engine can never serve
"""


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""


class ConfigurationError(EngineError):
    """A setting cannot be honoured; the message says which one to change."""


class CheckpointError(EngineError):
    """A checkpoint cannot be used; the message names the file and the tensor."""


class UnsupportedModelError(CheckpointError):
    """The architecture, or a feature of it, is not supported; the message lists what is."""


class OutOfBlocks(EngineError):
    """The KV pool has no room now; nothing was taken."""


class DeviceLost(EngineError):
    """What the model runs on has failed in a way that only a new process gets over."""


class RankLost(DeviceLost):
    """Another rank of the model has ended, or is out of step; the message says how."""


class RequestError(EngineError):
    """The request can never be served here (too long for the pool, token ids out of range)."""
