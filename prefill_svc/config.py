"""Settings of the prefill service."""

from dataclasses import dataclass

from chassis.server import ServerSettings
from chassis.settings import group, setting
from worker.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """Computes the KV cache and the first token of prompts, and hands the KV to decode workers."""

    server: ServerSettings = group(ServerSettings, port=7101)
    engine: EngineSettings = group(EngineSettings)
    handoff_timeout: float = setting(
        10.0, help="seconds that a computed prompt, or a Pull, waits for its counterpart", minimum=0
    )
    checksums: bool = setting(
        False, help="send a checksum with every KV block, which the decode worker verifies"
    )
    revoke_after: float = setting(
        2.0,
        help="seconds before a computed prompt that no decode worker has room for may lose its "
        "blocks to a waiting one",
        minimum=0,
    )
