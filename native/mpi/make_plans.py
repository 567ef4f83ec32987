"""Runs ``hocket.plan_files`` of a source tree with the native module that has just been built beside it.

python make_plans.py SOURCE BUILT DIRECTORY LEAST MOST MOST_ON_NODES

For LEAST to MOST ranks, and for up to MOST_ON_NODES on nodes of as many each.
"""

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

source, built, directory, least, most, most_on_nodes = sys.argv[1:]
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]  # without the finder of an editable installation
sys.path.insert(0, source)

import hocket  # noqa: E402

hocket.__path__.append(built)

from hocket.plan_files import write  # noqa: E402

for ranks in range(int(least), int(most) + 1):
    write(Path(directory), ranks)
for ranks in range(2, int(most_on_nodes) + 1):
    for each in range(1, ranks):
        if ranks % each == 0:
            write(Path(directory), ranks, [rank // each for rank in range(ranks)])
