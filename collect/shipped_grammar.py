"""Reads, where it is imported, the grammar that ALFWorld ships: for the server that translators are forked from."""

from pathlib import Path

from alfworld.info import ALFRED_TWL2_PATH

from collect.textworld_grammar import read_grammar, read_query

for _query in read_grammar(Path(ALFRED_TWL2_PATH).read_text()).queries():
    read_query(_query)
