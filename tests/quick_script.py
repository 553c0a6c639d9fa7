"""A Python program, such as an example, in which tuning is as quick as in `tests.quick_command`.

python -m tests.quick_script examples/api.py --device cpu --shapes 64x2x64
"""

from __future__ import annotations

import runpy
import sys

from tests.quick import keep_answers
from tests.quick_command import make_quick

if __name__ == "__main__":
    keep_answers(setattr)
    make_quick(setattr)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
