"""The command as it is, but for kernels that are compiled quickly.

python -m tests.quickly_compiled --device cpu --shapes 64x2x64
"""

from __future__ import annotations

from tests.quick import keep_answers
from tests.quick_command import compile_quickly
from tsm2_tune.__main__ import main

if __name__ == "__main__":
    keep_answers(setattr)
    compile_quickly(setattr)
    main()
