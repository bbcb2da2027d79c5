"""A program that plays a game and is then ended from outside: `environment_user.py GAME`.

Prints the process ids of its worker and of the two instances.
"""

import asyncio
import multiprocessing
import sys
from pathlib import Path

from collect.stock_group import StockGroup


async def main() -> None:
    async with StockGroup(Path(sys.argv[1]), 2) as environment:
        await asyncio.gather(environment.reset(0), environment.reset(1))
        (worker,) = multiprocessing.active_children()
        instances = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
        print(worker.pid, instances, flush=True)
        if sys.argv[2:] != ["once"]:
            while True:
                await environment.step(0, "look")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
