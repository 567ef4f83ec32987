"""Runs ``hocket.plan_files`` of a source tree with the native module that has just been built beside it.

python make_plans.py SOURCE BUILT DIRECTORY LEAST MOST
"""

import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path

source, built, directory, least, most = sys.argv[1:]
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]  # without the finder of an editable installation
sys.path.insert(0, source)

import hocket  # noqa: E402

hocket.__path__.append(built)

from hocket.plan_files import write  # noqa: E402

for ranks in range(int(least), int(most) + 1):
    write(Path(directory), ranks)
