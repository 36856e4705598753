"""Every row of src/op/export.def by PyTorch: lines of tests/op, which build/tests/export_cases has made modules of,
against the references of Tenon's ops; with TN_LONG=1 every line, else each tenth."""

import os
import re
import subprocess
import sys
import unittest
import warnings

import torch

from exported import BUILD, error, read, scratch

# Results that are no numbers to be compared one by one: of equal elements any may come first.
EITHER = {"topk": {"out1"}}
# Ops of which PyTorch refuses some lines, with its message.
REFUSED = {"topk": "does not support bool", "constant_pad_nd": "length must be non-negative"}
# The log-sum-exp of an infinity is one there, and NaN here.
INFINITE = {"cross_entropy"}
# Divisions of integers, which end the process in PyTorch 2.9 where the least one is divided by -1.
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
DIVIDES = {"floor_divide", "trunc_divide", "remainder", "fmod"} if OLDER else ()


def bound_of(op, x):
    if op == "gelu" and x.dtype == torch.float32:
        return 1e-4  # where x is far below 0 PyTorch takes 1 from its erf
    return {torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.float32: 2e-5}.get(x.dtype, 1e-10)


def total(limbs):
    """What the limbs of a sum of squares stand for; how a total is spread over them may differ."""
    sum = torch.zeros((), dtype=torch.float64)
    for k in range(22):
        sum += limbs[k].double() * 2.0 ** (27 * k - 298)
    return torch.stack([sum, (limbs[22] > 0).double(), (limbs[23] > 0).double()])


def seen(op, x):
    if op == "sum_squares":
        return total(x)
    return torch.where(x.isfinite(), x, torch.nan) if op in INFINITE else x


def has_least(line, tensors):
    return any(x.numel() and not x.is_floating_point() and x.dtype != torch.bool and x.min() == torch.iinfo(x.dtype).min < 0
               for name, x in tensors.items() if name.startswith(f"{line}."))


def run_line(op, line, text, tensors):
    names = {"__name__": "exported"}
    exec(compile(text, f"{op}.case:{line}", "exec"), names)
    own = {name.split(".", 1)[1]: x for name, x in tensors.items() if name.startswith(f"{line}.")}
    got = names["run"](own)
    lines = []
    for name, x in own.items():
        if name.startswith("out") and name not in EITHER.get(op, ()):
            e = error(seen(op, got[name]), seen(op, x))
            if isinstance(e, str) or not e <= bound_of(op, x):
                lines.append(f"{name}: {e}")
    return lines


class TestOps(unittest.TestCase):
    def line(self, op, line, text, tensors):
        if op in DIVIDES and has_least(line, tensors):
            print(f"tests/op/{op}.case:{line}: left out: PyTorch {torch.__version__} ends the process", file=sys.stderr)
            return
        try:
            lines = run_line(op, line, text, tensors)
        except Exception as e:  # what PyTorch refuses is a failure of this line alone
            if op in REFUSED and REFUSED[op] in str(e):
                print(f"tests/op/{op}.case:{line}: PyTorch refuses it: {REFUSED[op]}", file=sys.stderr)
                return
            lines = [f"{type(e).__name__}: {e}"]
        with self.subTest(f"tests/op/{op}.case:{line}"):
            self.assertEqual(lines, [])

    def test_lines(self):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # PyTorch's of a variance without degrees of freedom
        count = 0
        with scratch() as out:
            every = "1" if os.environ.get("TN_LONG") else "10"
            made = subprocess.run([BUILD + "/tests/export_cases", out, every], capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            for file in sorted(os.listdir(out)):
                if file.endswith(".txt"):
                    tensors = read(f"{out}/{file[:-4]}.safetensors")
                    with open(f"{out}/{file}") as f:
                        parts = re.split(r"^### (\d+)\n", f.read(), flags=re.M)[1:]
                    for line, text in zip(parts[::2], parts[1::2]):
                        self.line(file[:-4], line, text, tensors)
                        count += 1
        print(f"{count} lines of tests/op", file=sys.stderr)
        self.assertGreater(count, 300)


if __name__ == "__main__":
    unittest.main()
