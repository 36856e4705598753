"""train: the training loop of the program `tenon`, over a captured step."""
import json
import os
import re
import signal
import subprocess
import tempfile

import torch

from . import _optimizer, _watch
from ._capture import Captured
from ._errors import DoesNotFit, Error, NotSupported
from ._library import FIT, USAGE, in_python, path
from ._plan import bytes_of
from ._save import read_tensors, real, save

INTERRUPTED = 128 + signal.SIGINT


def program():
    """The program tenon: beside the library, else by its name."""
    beside = os.path.join(os.path.dirname(os.path.abspath(path)), "tenon")
    return beside if os.path.exists(beside) else "tenon"


def words(options):
    """Options as words of a command: {"eval_every": 10, "check": True} is --eval-every 10 --check."""
    out = []
    for key, value in options.items():
        name = "--" + key.replace("_", "-")
        if value is None or value is False:
            continue
        for x in value if isinstance(value, (list, tuple)) else [value]:
            out += [name] if x is True else [name, os.fspath(x) if isinstance(x, os.PathLike) else str(x)]
    return out


def of_optimizer(captured, options, data):
    """What a captured optimizer says, where the caller has not: its rate, constant."""
    optimizer, update = captured.optimizer, captured.update
    update.check()
    done = max([update.done(name) for name in update.step_of], default=0)
    if done or any(key in state for state in optimizer.state.values() for key in update.keys):
        raise NotSupported("the optimizer has a state, and the loop begins with none: capture with a new optimizer")
    rate = _optimizer.rate(optimizer.param_groups[0])
    held_out = {} if data is None else {"val_fraction": 0}  # evaluation would need a graph without the update
    return {"lr": repr(rate), "schedule": "constant", **held_out, **options}


class Trained:
    """What a run gave: `losses` by step, `steps` that were done, `folder` of its last checkpoint."""

    def __init__(self, losses, steps, folder):
        self.losses, self.steps, self.folder = losses, steps, folder

    def __repr__(self):
        last = f", last loss {self.losses[-1]:.4f}" if self.losses else ""
        return f"<tenon.Trained: {self.steps} steps{last}, {self.folder}>"


def run(command, quiet):
    """Runs the loop, prints what it says, and returns its exit code and what it said. Ctrl-C ends it as it ends the
    program: it saves a checkpoint first."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
                               errors="replace", start_new_session=True)
    said = []
    while True:
        try:
            line = process.stdout.readline()
            if not line:
                process.stdout.close()
                return process.wait(), said
            said.append(line)
            if not quiet:
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        except BaseException:
            process.kill()
            process.wait()
            raise


def take_back(captured, folder):
    """Copies a checkpoint's values into the model, and into the state of its optimizer."""
    role = captured.ports.role
    found = read_tensors(folder, "model")
    with torch.no_grad():
        for name, t in [*captured.parameters.items(), *captured.buffers.items()]:
            if role(name) in found:
                real(t).copy_(found[role(name)])
        if captured.update is None:
            return
        update, found = captured.update, read_tensors(folder, "optimizer")
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as f:
            steps = json.load(f)["step"]
        for (parameter, key), state in zip(update.states.values(), update.roles):
            p = update.parameter[parameter]
            own = update.optimizer.state[p]
            own[key] = found[state].reshape(real(p).shape)
            own[key] = torch.view_as_complex(own[key]) if p.is_complex() else own[key]
            if key != "momentum_buffer":
                own["step"] = torch.tensor(float(steps), device="cpu")


def train(captured, data=None, *, steps, out, batch=None, quiet=False, **options):
    """Trains a captured step by the loop of `tenon train`, in a process of its own: data, schedules, evaluations,
    checkpoints, resuming. At the end, or after Ctrl-C, the model has the last checkpoint's values, and so has the
    optimizer that was captured.

    captured  what capture returned, of token ids and labels i64[B, T] (or ids alone), without an optimizer or with one
              that has no state yet
    data      path of texts or token files, or a list; batch: a safetensors file with one batch in its place
    steps     that are trained; out: the folder of checkpoints
    quiet     True: prints nothing
    options   all others of `tenon train`, as eval_every=100, tokenizer=PATH, memory="2GiB", resume=True. A captured
              optimizer gives lr and a constant schedule where they are not named.

    Returns a Trained. Raises ValueError for options that `tenon train` refuses, DoesNotFit as plan, Error where the run
    fails, with what it says; KeyboardInterrupt after Ctrl-C."""
    if not isinstance(captured, Captured):
        raise TypeError(f"train: expected what capture returned, found {type(captured).__name__}")
    if options.get("memory") not in (None, "auto"):
        options["memory"] = bytes_of(options["memory"])
    if not captured.ranks:  # which are refused below
        captured.check()
        _watch.check_modes(captured)
    if captured.optimizer is not None:
        options = of_optimizer(captured, options, data)
    with tempfile.TemporaryDirectory() as folder:
        begin = []
        if not options.get("resume"):
            save(captured, folder)
            begin = [os.path.join(folder, "step.tn"), "--inputs", os.path.join(folder, "weights.safetensors")]
        metrics = options.pop("metrics", None) or os.path.join(folder, "metrics")
        command = [program(), "train", *begin,
                   *words({"data": data, "batch": batch, "steps": steps, "out": out, "metrics": metrics, **options})]
        code, said = run(command, quiet)
        losses = losses_of(metrics)
    latest = os.path.join(out, "latest")
    if os.path.exists(latest):
        take_back(captured, os.path.realpath(latest))
    if code in (INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    if code == FIT:
        raise misfit(failure(said))
    if code:
        raise (ValueError if code == USAGE else Error)(failure(said))
    return Trained(losses, len(losses), os.path.realpath(latest))


def misfit(message):
    """The DoesNotFit that a program's refusal says, its bytes without a unit."""
    first, _, table = message.partition("\n")
    found = re.search(r"(\d+)(?: bytes)? \(arena (\d+), library reserve (\d+)\), the limit is (\d+); the least that would "
                      r"do is (\d+)", first)
    if not found:
        return Error(message)
    peak, reserve, limit, least = map(int, found.groups()[1:])
    return DoesNotFit(in_python(first.removeprefix("tenon: ")), table, limit, peak, reserve, least)


def failure(said):
    """What a program said at its end, from its error on."""
    begins = [i for i, line in enumerate(said)
              if line.startswith("tenon: ") and not line.startswith(("tenon: note:", "tenon: warning:"))]
    return "".join(said[begins[-1]:] if begins else said[-5:]).strip()


def losses_of(metrics):
    if not os.path.exists(metrics):
        return []
    with open(metrics, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return [line["loss"] for line in lines if "loss" in line]
