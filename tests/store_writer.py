"""A writer to be killed: `store_writer.py FOLDER GROUPS [FSYNC]` writes the missing groups, each as a part of its own.

With FSYNC it kills itself just before that fsync, counted over the parts from 1.
"""

import os
import random
import signal
import sys
from pathlib import Path

from synthetic import make_game, make_group

from collect import files, store


def main() -> None:
    folder, groups = Path(sys.argv[1]), int(sys.argv[2])
    with store.open_run(folder, {}, {}, flush_groups=1) as run:
        if len(sys.argv) > 3:
            die_at_fsync(int(sys.argv[3]))
        print("ready", flush=True)
        for number in range(groups):
            if f"{make_game(number).id}#0" not in run.committed:
                run.add(make_group(random.Random(number), 3, 5, number=number))


def die_at_fsync(number: int) -> None:
    really_sync, done = files.fsync, 0

    def sync(path: Path) -> None:
        nonlocal done
        done += 1
        if done == number:
            os.kill(os.getpid(), signal.SIGKILL)
        really_sync(path)

    files.fsync = sync


if __name__ == "__main__":
    main()
