"""A program that plays a game and is then ended from outside: `environment_user.py GAME`; prints its worker's pid."""

import asyncio
import multiprocessing
import sys
from pathlib import Path

from collect.environment import GroupEnvironment


async def main() -> None:
    async with GroupEnvironment(Path(sys.argv[1]), 2) as environment:
        await environment.reset(0)
        (worker,) = multiprocessing.active_children()
        print(worker.pid, flush=True)
        if sys.argv[2:] != ["once"]:
            while True:
                await environment.step(0, "look")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
