"""Settings of the decode service."""

from dataclasses import dataclass

from chassis.server import ServerSettings
from chassis.settings import group, setting
from worker.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """Pulls the KV cache of prompts from prefill workers and streams the tokens that follow."""

    server: ServerSettings = group(ServerSettings, port=7102)
    engine: EngineSettings = group(EngineSettings)
    max_decode_batch: int = setting(256, help="choices that one step continues", minimum=1)
    max_hand_offs: int = setting(
        64, help="prompts whose KV may be on its way here at once", minimum=1
    )
    read_timeout: float = setting(
        10.0, help="seconds that reading one chunk of KV may take", minimum=0
    )
    released_timeout: float = setting(
        2.0, help="seconds to wait for the prefill worker's word that the KV is good", minimum=0
    )
    session_stall: float = setting(
        5.0, help="seconds after which a gateway that takes nothing is given up", minimum=0.001
    )
