"""Which groups a gate's precision, recall and savings are counted over."""

from enum import StrEnum


class Convention(StrEnum):
    """`eligible`: groups that can be cut, as a live gate does; `paper`: every flagged group, as in published tables.

    A group is flagged at step K when its score is under the threshold; it is eligible when some trajectory is longer
    than K, and only a flagged eligible group can be cut.
    """

    ELIGIBLE = "eligible"
    PAPER = "paper"
