"""``python -m bench.load``: what the stack does when it has more to do than it takes.

A thousand streams of a tiny model for ten minutes: none falls silent, memory does not grow, who
comes besides is refused at once. And with the default model: admitted requests are as fast under a
storm of refused ones as alone.
"""

import argparse
import asyncio
import tempfile
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
        figures = asyncio.run(_measure(options, Path(folder)))
    for figure in figures:
        print(f"{figure.name:34} {figure.value:10g} {figure.unit:20} {figure.note or ''}")
    print(write_results("load", figures, ("torch", "grpcio", "baton-serve"), options.output))


async def _measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    if options.rounds:
        figures += await measure_storm(options.admitted, options.rounds, options.model, folder)
    if options.seconds:
        figures += await measure_open_streams(options.streams, options.seconds, folder)
    return figures


if __name__ == "__main__":
    main()
