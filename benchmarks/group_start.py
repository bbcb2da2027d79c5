"""What it costs to start a group of G instances, against a group of one: `group_start.py GAME G REPEATS`.

A start is the time from entering the environment to the last instance's reset; CPU is that of the group's processes.
The two are measured by turns, so that other work on the machine weighs on both. Then all G step at once.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

from collect.stock_group import StockGroup

STEPS = 12


def processes() -> list[int]:
    """The group's worker and instances."""
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    return [worker.pid, *map(int, Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())]


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """Memory, each page divided by the number of processes that share it."""
    (pss,) = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
    return int(pss.split()[1]) / 1024


async def measure(game: Path, size: int) -> tuple[float, float, float, float]:
    """Seconds and CPU seconds of a start, then steps per second, and MB when they have been played."""
    clock = time.perf_counter()
    async with StockGroup(game, size) as environment:
        await asyncio.gather(*map(environment.reset, range(size)))
        start, cpu = time.perf_counter() - clock, sum(map(cpu_seconds, processes()))

        async def walk(index: int) -> None:
            for _ in range(STEPS):
                await environment.step(index, "look")

        clock = time.perf_counter()
        await asyncio.gather(*map(walk, range(size)))
        return start, cpu, size * STEPS / (time.perf_counter() - clock), sum(map(megabytes, processes()))


def main() -> None:
    game = Path(sys.argv[1])
    size, repeats = int(sys.argv[2]), int(sys.argv[3])
    asyncio.run(measure(game, 1))  # brings up the server that workers are forked from
    pairs = [(asyncio.run(measure(game, 1)), asyncio.run(measure(game, size))) for _ in range(repeats)]
    print(f"medians of {repeats} pairs, {STEPS} steps an instance, {os.cpu_count()} cores")
    print(f"{'':12}{'G = 1':>10}{f'G = {size}':>10}{'ratio':>8}   (range over the pairs)")
    for column, name in enumerate(("start, s", "start, CPU s", "steps/s", "memory, MB")):
        ratios = [group[column] / one[column] for one, group in pairs]
        one, group = (statistics.median(pair[which][column] for pair in pairs) for which in (0, 1))
        ratio = statistics.median(ratios)
        print(f"{name:12}{one:10.2f}{group:10.2f}{ratio:8.2f}   ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
