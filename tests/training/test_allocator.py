"""That freed memory serves the next tensor, told by the page faults of a process of its own."""

import subprocess
import sys

import pytest

from vanilla_transformer.training import allocator

PROGRAM = """
import resource, sys, torch
from vanilla_transformer.training.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    if not keep_freed_memory():
        print("unsupported")
        sys.exit()
def faults():
    x = torch.ones(64 << 18)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = faults()
for _ in range(4):
    last = faults()
print(last - first)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    if done.stdout.strip() == "unsupported":
        pytest.skip("a C library other than glibc")
    return int(done.stdout)


@pytest.mark.integration
def test_freed_memory_is_used_again(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    # 64 MiB are 16,384 pages of 4 KiB, and are allocated four times after the first.
    assert faults("keep") < 2000
    assert faults("default") > 16_384


def test_another_allocator_is_left_alone(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libtcmalloc_minimal.so.4")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: pytest.fail("asked the C library"))
    assert not allocator.keep_freed_memory()
    assert allocator.os.environ["THP_MEM_ALLOC_ENABLE"] == "0"  # the user's
