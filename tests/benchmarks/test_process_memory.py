"""What the benchmarks say of a process's memory."""

import subprocess
import sys

import torch

from benchmarks.process_memory import forget_peak, peak_memory, resident


def test_resident_memory_is_read_and_its_peak_forgotten() -> None:
    kept = torch.ones(2**26)  # 256 MiB
    high = peak_memory()
    del kept
    forget_peak()
    assert peak_memory() <= high - 2**27
    assert resident("VmRSS") > 2**26


def test_a_process_does_not_count_what_its_parent_held() -> None:
    kept = torch.ones(2**27)  # 512 MiB
    call = "from benchmarks.process_memory import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**27 < kept.nbytes
