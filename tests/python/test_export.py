"""`tenon export fx` by PyTorch: graphs that PyTorch traced are imported, exported and run by PyTorch, and what comes
out is compared with what PyTorch computed when they were traced, at 2e-5 (1e-2 in 16 bits). The same of the graph
after passes: recomputed (the bits of what is not), in slices, fused. Graphs of tests/pass, as they are and after
their passes, against `tenon run`: loops, optimizers, dropout with the mask that Tenon draws. Graphs of several ranks
over gloo. FIXTURES names more folders. With TN_LONG=1 all of them, else each fifth."""

import glob
import os
import re
import shlex
import socket
import subprocess
import sys
import unittest

import torch

from exported import BUILD, export, load, read, same_bits, scratch, tenon, write, wrong

LONG = bool(os.environ.get("TN_LONG"))


def some(paths):
    return sorted(paths)[:: 1 if LONG else 5]


def say(text):
    print(text, file=sys.stderr)


# Variants of a graph: a name, options of `tenon opt`, what then is in it; the options of the graph whose bits it has.
VARIANTS = [
    ("recomputed", ["--passes=remat", "--recompute-rule", "*::*"], " origin=", []),
    ("in slices", ["--passes=canonicalize,chunk", "--chunk", "2"], " = loop(", None),
    ("fused", ["--passes=canonicalize,cse,dce,fuse"], " = fused(", ["--passes=canonicalize,cse,dce"]),
]


class TestRoundTrip(unittest.TestCase):
    def run_graph(self, what, graph, inputs, want):
        module, message = export(graph)
        with self.subTest(what):
            self.assertTrue(module, message)
        if not module:
            return {}
        results = module["run"](module["load"](inputs))
        with self.subTest(what):
            self.assertEqual(wrong(results, want), [])
        return results

    def run_variant(self, name, variant, graph, inputs, want, plain):
        kind, options, sign, like = variant
        made = graph[:-3] + ".made.tn"
        code, message = tenon("opt", graph, *options, "-o", made)
        if code:
            return f"not {kind}: {message.splitlines()[0]}"
        with open(made) as f:
            if sign not in f.read():
                return f"not {kind}: nothing to do"
        results = self.run_graph(f"{name}, {kind}", made, inputs, want)
        if like:
            tenon("opt", graph, *like, "-o", made)
            plain = self.run_graph(f"{name}, {like}", made, inputs, want)
        with self.subTest(f"{name}, {kind}: bits"):
            self.assertEqual(same_bits(results, plain) if like is not None else [], [])
        return kind

    def round_trip(self, folder, options, passes):
        name = os.path.basename(folder)
        inputs, want = folder + "/inputs.safetensors", read(folder + "/outputs.safetensors")
        with scratch() as out:
            graph = f"{out}/graph.tn"
            code, message = tenon("import", "fx", folder + "/graph.txt", "--inputs", inputs, *options, "-o", graph)
            if not code and passes:
                code, message = tenon("opt", graph, f"--passes={passes}", "-o", graph)
            if code:
                return f"not imported: {message.splitlines()[0]}"
            plain = self.run_graph(name, graph, inputs, want)
            return "; ".join(self.run_variant(name, v, graph, inputs, want, plain) for v in VARIANTS)

    def test_folders(self):
        """All folders are imported; each variant is met."""
        said = {}
        for folder in some(glob.glob("tests/fx/*")):
            if os.path.exists(folder + "/outputs.safetensors"):
                said[folder] = self.round_trip(folder, [], None)
                say(f"{folder}: {said[folder]}")
        self.assertEqual([f for f, text in said.items() if text.startswith("not imported")], [])
        for kind, *_ in VARIANTS:
            self.assertTrue(any(kind in text.split("; ") for text in said.values()), kind)

    def test_gradients(self):
        for folder in some(glob.glob("tests/fx_grad/*")):
            if os.path.exists(folder + "/outputs.safetensors"):
                with open(folder + "/loss") as f:
                    loss, params = f.read().split()
                text = self.round_trip(folder, ["--loss", loss, "--params", params], "grad")
                say(f"{folder}: {text}")
                self.assertFalse(text.startswith("not imported"), text)

    def test_fixtures(self):
        """Folders of FIXTURES, by the commands of their notes; what is not imported is said."""
        for folder in some(glob.glob(os.environ.get("FIXTURES", "") + "/*/*")):
            if not os.path.exists(folder + "/outputs.safetensors"):
                continue
            options, passes = [], None
            if os.path.exists(folder + "/note.txt"):
                with open(folder + "/note.txt") as f:
                    note = f.read()
                found = re.search(r"import fx graph.txt --inputs \S+ (.*?)-o", note)
                options = shlex.split(found[1]) if found else []
                passes = "grad" if "--passes=grad" in note else None
            say(f"{folder}: {self.round_trip(folder, options, passes)}")


def random_inputs(module):
    """Inputs by name: small numbers, indices that tables of three rows have, optimizers' states that there may be."""
    made, generator = {}, torch.Generator().manual_seed(1)
    for name, role, weight, dtype, shape in module["INPUTS"]:
        if dtype == torch.bool:
            x = torch.randint(0, 2, shape, generator=generator).bool()
        elif not dtype.is_floating_point:
            x = torch.randint(0 if role != "step" else 1, 3, shape, generator=generator).to(dtype)
        else:
            x = torch.randn(shape, generator=generator).to(dtype)
            x = x.abs() if weight.endswith(".v") or role == "scalar" else x
        made[name] = x
    return made


class TestGraphs(unittest.TestCase):
    """Graphs of tests/pass: PyTorch's results of the exported module against those of `tenon run`."""

    def run_both(self, what, text, out):
        graph, inputs, outputs = f"{out}/g.tn", f"{out}/in.safetensors", f"{out}/out.safetensors"
        with open(graph, "w") as f:
            f.write(text)
        module, message = export(graph)
        if not module:
            return message.splitlines()[0]
        tensors = random_inputs(module)
        write(inputs, tensors)
        code, message = tenon("run", graph, "--inputs", inputs, "--outputs", outputs)
        if code:
            return message.splitlines()[0]
        with self.subTest(what):
            half = "f16[" in text or "f16," in text or "f16)" in text  # bf16 too: its roundings are in what follows
            self.assertEqual(wrong(module["run"](tensors), read(outputs), wide=1e-2 if half else 2e-5), [])
            return "equal"

    def test_passes(self):
        counts, loops, masks = {}, 0, 0
        with scratch() as out:
            for path in some(glob.glob("tests/pass/*/*.tn")):
                with open(path) as f:
                    text = f.read()
                for k, part in enumerate(text.split("\n---\n")):
                    if "graph" not in part or " mesh(" in part:
                        continue
                    result = self.run_both(f"{path}, {'after' if k else 'before'}", part, out)
                    equal = result == "equal"
                    loops, masks = loops + (equal and " = loop(" in part), masks + (equal and "dropout(" in part)
                    counts[equal] = counts.get(equal, 0) + 1
                    if not equal:
                        say(f"{path}: {result}")
        say(f"{counts.get(True, 0)} graphs equal, {loops} with loops, {masks} with dropout; {counts.get(False, 0)} not run")
        self.assertGreater(counts[True], 20)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most elements of a tensor that a call gives."""

    found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            self.found = max(self.found, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


ATTENTION = """tenon 1
graph attention(%q: f32[1, 128, 2, 4] param "q", %k: f32[1, 128, 1, 4] param "k", %v: f32[1, 128, 1, 4] param "v") {
  %o, %l = flash_attention(%q, %k, %v, causal=true)
  %dq, %dk, %dv = flash_attention_backward(%o, %q, %k, %v, %o, %l, causal=true)
  return metric "o" %o, metric "l" %l, grad "q" %dq, grad "k" %dk, grad "v" %dv
}
"""


class TestAttention(TestGraphs):
    """PyTorch has no matrix of the scores either."""

    test_passes = None

    def test_largest(self):
        with scratch() as out, Largest() as largest:
            self.assertEqual(self.run_both("attention", ATTENTION, out), "equal")
        self.assertLess(largest.found, 128 * 128)
        self.assertGreaterEqual(largest.found, 128 * 2 * 4)


# ---- training ----


class TestTrain(unittest.TestCase):
    def test_adamw(self):
        """`tenon train GRAPH.tn` on one batch: losses of five steps are those of PyTorch's AdamW with the exported
        module's gradients, clipped, with weight decay on matrices."""
        folder, lr = "tests/fx/gpt2_step", 1e-2
        with scratch() as out:
            graph, batch = f"{out}/joint.tn", f"{out}/batch.safetensors"
            code, message = tenon("import", "fx", folder + "/graph.txt", "--inputs", folder + "/inputs.safetensors",
                                  "--loss", "getitem_21", "--params", "arg*", "-o", graph)
            self.assertEqual(code, 0, message)
            module = load(graph[:-3] + ".py") if export(graph)[0] else None
            tensors = module["load"](folder + "/inputs.safetensors")
            write(batch, {"input_ids": tensors["arg0_1"], "labels": tensors["arg1_1"]})
            done = subprocess.run(
                [BUILD + "/tenon", "train", graph, "--inputs", folder + "/inputs.safetensors", "--batch", batch,
                 "--steps", "5", "--lr", str(lr), "--schedule", "constant", "--out", out + "/run"],
                capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = [float(line.split()[3]) for line in done.stdout.splitlines()]
        params = {weight: torch.nn.Parameter(tensors[name]) for name, role, weight, *_ in module["INPUTS"] if role == "param"}
        groups = [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
        want = []
        for _ in range(5):
            with torch.no_grad():
                results = module["run"]({**tensors, **params})
            want.append(float(results["loss"]))
            for name, p in params.items():
                p.grad = results["grad." + name].clone()
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
            optimizer.step()
        for a, b in zip(found, want, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertLess(want[-1], want[0] - 0.1)


# ---- several ranks ----


class TestEmpty(unittest.TestCase):
    """An input without elements is in no file, and needs not be given."""

    def test_none(self):
        with scratch() as out:
            with open(out + "/none.tn", "w") as f:
                f.write('tenon 1\ngraph none(%z: f32[0] const "z", %w: f32[2] param "w") {\n'
                        "  %x = sum(%z)\n  %y = add(%x, %w)\n  return metric \"y\" %y\n}\n")
            module, message = export(out + "/none.tn")
            self.assertTrue(module, message)
            self.assertEqual(list(module["load"]()), ["z"])
            got = module["run"]({"w": torch.ones(2)})
            self.assertEqual([x.tolist() for x in got.values()], [[1.0, 1.0]])
            with self.assertRaisesRegex(KeyError, "missing.*'w'"):
                module["run"]({})


def run_rank(rank, ranks, port, folder, out, modules):
    """One rank of a folder's graph, in a process of its own: what is wrong is written to a file."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    module = load(modules[rank])
    results = module["run"](module["load"](f"{folder}/inputs.{rank}.safetensors"))
    with open(f"{out}/wrong.{rank}", "w") as f:
        f.write("\n".join(wrong(results, read(f"{folder}/outputs.{rank}.safetensors"))))
    dist.barrier()
    dist.destroy_process_group()


class TestRanks(unittest.TestCase):
    def import_ranks(self, folder, out):
        modules = []
        for rank in range(len(glob.glob(folder + "/graph.*.txt"))):
            with open(f"{folder}/mesh.{rank}.txt") as f:
                mesh, *groups = f.read().split()
            graph = f"{out}/graph.{rank}.tn"
            code, message = tenon(
                "import", "fx", f"{folder}/graph.{rank}.txt", "--inputs", f"{folder}/inputs.{rank}.safetensors",
                "--mesh", mesh, "--rank", str(rank), *(f"--group={group}" for group in groups), "-o", graph)
            self.assertEqual(code, 0, message)
            modules.append(graph[:-3] + ".py")
            code, message = tenon("export", "fx", graph, "-o", modules[-1])
            self.assertEqual(code, 0, message)
        return modules

    def test_folders(self):
        for folder in sorted(glob.glob("tests/fx_ranks/*")) if LONG else ["tests/fx_ranks/fsdp_tp"]:
            with scratch() as out, self.subTest(folder):
                modules = self.import_ranks(folder, out)
                with socket.socket() as s:
                    s.bind(("127.0.0.1", 0))
                    port = s.getsockname()[1]
                ranks = len(modules)
                torch.multiprocessing.spawn(run_rank, (ranks, port, folder, out, modules), nprocs=ranks)
                for rank in range(ranks):
                    with open(f"{out}/wrong.{rank}") as f:
                        self.assertEqual(f.read(), "", f"rank {rank}")
                say(f"{folder}: {ranks} ranks")


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
