"""``python -m bench.load``: what the stack does when it has more to do than it takes.

A thousand streams of a tiny model for ten minutes: none falls silent, memory does not grow, who
comes besides is refused at once. And with the default model: admitted requests are as fast under a
storm of refused ones as alone.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from bench.load.open_streams import measure_open_streams
from bench.load.storm import measure_storm
from bench.results import FOLDER, Figure, write_results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the open streams")
    parser.add_argument("--streams", type=int, default=1000, help="open at once")
    parser.add_argument("--model", default="smollm2-135m", help="of the storm")
    parser.add_argument("--admitted", type=int, default=64, help="requests within the storm")
    parser.add_argument("--rounds", type=int, default=2, help="with and without the storm")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-load-") as folder:
        asyncio.run(_measure(options, Path(folder)))


async def _measure(options: argparse.Namespace, folder: Path) -> None:
    """Writes what there is after each part: one that fails costs nothing of the one before."""
    parts: list[Awaitable[list[Figure]]] = []
    if options.seconds:
        parts.append(measure_open_streams(options.streams, options.seconds, folder))
    if options.rounds:
        parts.append(measure_storm(options.admitted, options.rounds, options.model, folder))
    figures: list[Figure] = []
    for part in parts:
        new = await part
        for figure in new:
            print(f"{figure.name:34} {figure.value:10g} {figure.unit:20} {figure.note or ''}")
        figures += new
        print(write_results("load", figures, ("torch", "grpcio", "baton-serve"), options.output))


if __name__ == "__main__":
    main()
