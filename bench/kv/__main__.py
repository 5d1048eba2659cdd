"""``python -m bench.kv``: how fast KV blocks move between two processes, and at what cost.

On any machine NIXL against a copy from shared memory. On NVIDIA GPUs, the reader on the last and
the peer on the first, the KV of an 8k prompt of Llama-3.1-8B against a contiguous copy and against
NIXL, and decode steps while blocks arrive. Writes ``bench/results/kv.json``.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from bench.kv.cpu import measure_cpu
from bench.results import FOLDER, Figure, write_results


def show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        rival = f"  rival {figure.rival}" if figure.rival is not None else ""
        floor = f"  floor {figure.floor}" if figure.floor is not None else ""
        note = f"  {figure.note}" if figure.note else ""
        print(
            f"{figure.name:40} {figure.value:10.3f} {figure.unit}{rival}{floor}{note}", flush=True
        )


def reader_first() -> int:
    """Makes the last GPU this process's first, before CUDA looks; how many there are."""
    numbers = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    if numbers:
        known = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(numbers)
        order = known.split(",")[:2]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(reversed(order))
        return len(order)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kv", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--no-decode", action="store_true", help="leave out the steps of a model")
    options = parser.parse_args()
    num_gpus = reader_first()
    figures: list[Figure] = []
    packages, hardware = ["torch", "nixl-cu13"], {}
    if num_gpus:
        from bench.kv.gpu import gpu_name, measure_gpu

        figures += measure_gpu(num_gpus, show, with_decode=not options.no_decode)
        packages.append("triton")
        hardware["gpu"] = f"{num_gpus} x {gpu_name()}"
    figures_of_cpu = measure_cpu()
    show(figures_of_cpu)
    figures += figures_of_cpu
    print(write_results("kv", figures, packages, options.output, hardware=hardware))


if __name__ == "__main__":
    main()
