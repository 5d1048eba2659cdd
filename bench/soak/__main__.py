"""``python -m bench.soak``: requests in, faults in, and every answer must be right.

Two gateways, two prefill and two decode workers serve a tiny model in float32. While clients ask
without a pause, a schedule that the seed gives kills, stops, drains and moves processes of every
role. Each answer is compared with that of one engine in this process; a request that its gateway
loses is sent to the other one. In the end every block must be free.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from batonctl.service_spec import Role
from bench.results import FOLDER, write_results
from bench.soak.faults import attack, schedule
from bench.soak.fleet import Fleet, fleet
from bench.soak.load import Load
from bench.soak.pages import leaked_blocks
from bench.soak.questions import Question, questions
from bench.soak.report import Bars, figures_of
from bench.soak.tally import Tally
from bench.tiny_model import write_tiny_model

PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    answers: int
    kills: int
    width: int
    num_questions: int
    output: Path


def main() -> int:
    settings = _parse()
    folder = Path(tempfile.mkdtemp(prefix="baton-soak-"))
    print(f"logs and traces: {folder}")
    began = time.monotonic()
    model = write_tiny_model(folder / "tiny")
    asked = questions(model, random.Random(settings.seed), settings.num_questions)
    tally = Tally()
    troubles = asyncio.run(_soak(settings, model, folder, asked, tally))
    figures = figures_of(tally, time.monotonic() - began)
    for figure in figures:
        print(f"{figure.name:22} {figure.value:10g} {figure.unit:10} {figure.note or ''}")
    missed = [*troubles, *Bars(settings.answers, settings.kills).missed_by(tally)]
    for text in (*missed, *tally.wrong[:10]):
        print(f"MISSED: {text}")
    print(write_results("soak", figures, ("torch", "grpcio", "baton-serve"), settings.output))
    if not missed and not tally.refused:
        shutil.rmtree(folder)
    return 1 if missed else 0


def _parse() -> Settings:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of questions, clients and faults")
    parser.add_argument("--answers", type=int, default=2_000, help="least number of them")
    parser.add_argument("--kills", type=int, default=100, help="number of them")
    parser.add_argument("--width", type=int, default=12, help="requests open at once")
    parser.add_argument("--questions", type=int, default=240, help="different requests")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    arguments = parser.parse_args()
    return Settings(
        seed=arguments.seed,
        answers=arguments.answers,
        kills=arguments.kills,
        width=arguments.width,
        num_questions=arguments.questions,
        output=arguments.output,
    )


async def _soak(
    settings: Settings, model: str, folder: Path, asked: list[Question], tally: Tally
) -> list[str]:
    """Fills the tally; returns what nobody's fault explains."""
    async with fleet(model, folder) as processes:
        for service in processes.all:
            await service.wait_ready()
        for role in Role:
            await processes.wait_whole(role)
        faults = asyncio.create_task(_attack(settings, processes, tally))
        progress = asyncio.create_task(_tell(tally))

        def is_enough() -> bool:
            # Where most are refused there is no point in waiting for answers.
            has_asked = tally.answered >= settings.answers or tally.sent >= 2 * settings.answers
            return faults.done() and has_asked

        try:
            load = Load(processes.services[Role.GATEWAY], asked, settings.seed, tally)
            await load.run(settings.width, is_enough)
            troubles = await faults
        finally:
            progress.cancel()
            faults.cancel()
        tally.leaked = await leaked_blocks(processes.workers)
        for gateway in processes.services[Role.GATEWAY]:
            await tally.note_retries(gateway)
        tally.descriptors = max(service.num_descriptors() for service in processes.all)
        return [*troubles, *(each for service in processes.all for each in service.troubles)]


async def _attack(settings: Settings, processes: Fleet, tally: Tally) -> list[str]:
    """Returns what did not come back."""
    due = schedule(random.Random(settings.seed), settings.kills)
    outcomes = await asyncio.gather(
        *(attack(processes, role, faults, tally) for role, faults in due.items()),
        return_exceptions=True,
    )
    return [
        f"a {role} is not back: {each!r}" for role, each in zip(due, outcomes, strict=True) if each
    ]


async def _tell(tally: Tally) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        print(
            f"{tally.sent} sent, {tally.answered} answered, {len(tally.wrong)} wrong, "
            f"{tally.refused.total()} refused, {tally.faults.total()} faults",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
