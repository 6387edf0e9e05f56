"""Peak memory of fits to 100,000 and to a million rows, each in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.perf

# Validation takes four batches at once, which a tenth of the rows fills at either size.
FEW, MANY, COLUMNS, BATCH = 100_000, 1_000_000, 10, 2000
SCRIPT = f"""
import sys, torch
from torch.utils.data import DataLoader, Dataset
from pyro_snefy import autoregressive_snefy, fit
from tests.perf.timing import peak_memory

torch.set_num_threads(1)
kind, count = sys.argv[1], int(sys.argv[2])

def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn({BATCH}, {COLUMNS}, generator=generator).cumsum(-1)

class Batches(Dataset):
    def __len__(self):
        return count // {BATCH}

    def __getitem__(self, number):
        return batch(number)

x = DataLoader(Batches(), batch_size=None)
if kind == "tensor":
    x = torch.empty(count, {COLUMNS})
    for number, rows in enumerate(x.split({BATCH})):
        rows.copy_(batch(number))
model = autoregressive_snefy({COLUMNS}, hidden_dims=[16]).initialize(batch(0))
fit(model, x, max_epochs=1, batch_size={BATCH}, progress=False)
print(peak_memory() / 1e6)
"""


def peak(kind: str, count: int) -> float:
    """The peak in megabytes."""
    command = [sys.executable, "-c", SCRIPT, kind, str(count)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(run.stdout)


# A loader's rows are held in no copy at all: one would be 36 MB. Rows in a tensor are 36 MB
# themselves, once more in the random order that holds some out, and once in passing.
@pytest.mark.parametrize(("kind", "most"), [("loader", 20), ("tensor", 4 * 36)])
def test_memory_does_not_grow(kind: str, most: float) -> None:
    few, many = peak(kind, FEW), peak(kind, MANY)
    print(f"\n{kind}: {few:.0f} MB with {FEW:,} rows, {many:.0f} MB with {MANY:,}; aim: +{most} MB")
    assert many - few < most
