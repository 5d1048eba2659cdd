"""Turns of the event loop, one piece of work each."""

import asyncio


class Turns:
    """Lets one caller pass a turn, first come, first served. Event loop only.

    For work that makes a gRPC write: gRPC hands the loop one finished thing a turn, in order. More
    writes than turns would queue up before whatever else arrives, such as requests.
    """

    def __init__(self) -> None:
        self._passing = asyncio.Lock()

    async def take(self) -> None:
        """Returns in a later turn, which no other caller gets."""
        async with self._passing:
            await asyncio.sleep(0)
