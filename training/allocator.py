"""The C library's allocator and memory pages, set for training on a CPU.

Every step frees large tensors and asks for them again. glibc gives those back to the system and gets them page by page,
each page zeroed and mapped anew: at base, 184,000 page faults a step and a fifth of its time. Kept in the process, and
in pages of 2 MiB, a step has under a thousand.
"""

import ctypes
import os
import sys

# Parameters of mallopt in glibc's malloc.h: from which size on to give back the top of the heap, how much to get at a
# time, how many blocks to get apart from the heap.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NEVER = 2**31 - 1
_TOP_PAD = 64 << 20


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for its next tensors; True where the C library took the wish.

    Another allocator, put in place by LD_PRELOAD, is left as it is. torch reads the variable for large pages when it
    first allocates a tensor; a value that the user has set stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform != "linux" or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # a C library other than glibc
        return False
    wishes = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _TOP_PAD))
    return all([mallopt(parameter, value) == 1 for parameter, value in wishes])
