"""One learner of several: `learner_peer.py MODEL ADAPTER OUT` under torchrun; the first one prints what it did."""

import json
import sys
from pathlib import Path

from learners import make_batch, settings_of

from collect.policy import Policy
from train.learner import Learner


def main() -> None:
    model, adapter, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    learner = Learner(Policy("tiny", model, adapter), settings_of())
    if not learner.leads:
        learner.follow()
        learner.save_adapter(out / "followed")
        learner.close()
        return
    norms = []
    for seed in (0, 1):
        norms.append(learner.update(make_batch(seed)).gradient_norm)
    skipped = learner.update([]).skipped
    learner.save_state(out / "both")
    learner.update(make_batch(2))
    learner.load_state(out / "both")
    learner.update(make_batch(3))
    learner.save_adapter(out / "led")
    learner.close()
    print(json.dumps({"norms": norms, "skipped": skipped}))


if __name__ == "__main__":
    main()
