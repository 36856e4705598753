"""Every row of src/op/export.def by PyTorch: lines of tests/op, which build/tests/export_cases has made modules
of, against the references of Tenon's ops.

Usage: export_ops.py BUILD [EVERY [OP...]]
"""

import os
import re
import subprocess
import sys
import tempfile

import torch

from export_fx import error, read

# Results that are no numbers to be compared one by one: of equal elements any may come first.
EITHER = {"topk": {"out1"}}


# Ops of which PyTorch refuses some lines, with its message.
REFUSED = {"topk": "does not support bool", "constant_pad_nd": "length must be non-negative"}
# The log-sum-exp of an infinity is one there, and NaN here.
INFINITE = {"cross_entropy"}


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


def run_case(op, line, text, tensors):
    names = {"__name__": "exported"}
    exec(compile(text, f"{op}.case:{line}", "exec"), names)
    prefix = f"{line}."
    own = {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
    got = names["run"](own)
    wrong = []
    for name, x in own.items():
        if not name.startswith("out") or name in EITHER.get(op, ()):
            continue
        e = error(*(seen(op, y) for y in (got[name], x)))
        if isinstance(e, str) or not e <= bound_of(op, x):
            wrong.append(f"{name}: {e}")
    return wrong


def main():
    build, every = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "1"
    torch.set_num_threads(1)
    passed = failed = refused = 0
    with tempfile.TemporaryDirectory() as out:
        made = subprocess.run([build + "/tests/export_cases", out, every, *sys.argv[3:]], capture_output=True, text=True)
        if made.returncode:
            print(made.stdout, made.stderr)
            failed += 1
        for file in sorted(os.listdir(out)):
            if not file.endswith(".txt"):
                continue
            op = file[:-4]
            tensors = read(f"{out}/{op}.safetensors")
            with open(f"{out}/{file}") as f:
                parts = re.split(r"^### (\d+)\n", f.read(), flags=re.M)[1:]
            for line, text in zip(parts[::2], parts[1::2]):
                try:
                    wrong = run_case(op, line, text, tensors)
                except Exception as e:  # what PyTorch refuses is a failure of this line alone
                    if op in REFUSED and REFUSED[op] in str(e):
                        print(f"tests/op/{op}.case:{line}: PyTorch refuses it: {REFUSED[op]}")
                        refused += 1
                        continue
                    wrong = [f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"]
                passed, failed = passed + (not wrong), failed + bool(wrong)
                for text in wrong:
                    print(f"tests/op/{op}.case:{line}: {text}")
    print(f"{passed} passed, {refused} refused, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
