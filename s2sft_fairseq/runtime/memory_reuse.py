"""Memory that PyTorch frees on the CPU, kept by the process for what it needs next.

The C library gives every large block back to the kernel at once, and the next one comes page by page and full of zeros:
training spends up to a third of its time on that. Here glibc is told to keep what it has, but for blocks of 32 MiB and
more: these, such as the gradient of an embedding, would leave holes that the small ones after them fill up.
"""

import ctypes
import os
import platform

# Parameters of mallopt(3), and the variables with which a user sets them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
# Bytes.
_NEVER, _GROWTH, _LARGE = (1 << 31) - 1, 64 << 20, 32 << 20


def apply() -> None:
    """Keep freed memory, unless the user has settings of their own or another allocator."""
    if platform.libc_ver()[0] != "glibc" or _has_settings_of_the_user():
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _NEVER)
    mallopt(_TOP_PAD, _GROWTH)


def _has_settings_of_the_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "LD_PRELOAD" in os.environ or "glibc.malloc" in tunables or any(name in os.environ for name in _OF_THE_USER)
