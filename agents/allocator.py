"""Keep freed memory for the next step instead of handing it back to the system.

An update of a large model frees and asks again for hundreds of megabytes of gradients. The C
library returns blocks of that size at once, and the system then has to clear every page of the next
one: about a tenth of an iteration at the size of GPT-2 small.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed for later use by this process; returns whether it will.

    Other C libraries and systems are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, LARGEST)) and bool(mallopt(M_MMAP_THRESHOLD, LARGEST))
