"""Makes dist/tenon-VERSION-py3-none-PLATFORM.whl: python/tenon with libtenon.so, the program tenon, and what they need
but libc.

wheel.py FOLDER [DIST]   FOLDER has libtenon.so and tenon, which look for others beside themselves (RPATH $ORIGIN)

Unpacks the wheel again and sees that ldd finds every library but those of libc beside it. Needs ldd."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

LIBC = re.compile(r"(linux-vdso|ld-linux[\w-]*|libc|libm|libpthread|libdl|librt)\.so")
WHEEL = """Wheel-Version: 1.0
Generator: tenon
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""
# What the package is called, and the backend of torch.compile, which PyTorch finds without an import of tenon.
ABOUT = {"PKG-INFO": "METADATA", "entry_points.txt": "entry_points.txt"}
# The command tenon; nothing of it imports PyTorch.
COMMAND = b"""#!python
import importlib.util
import os
import sys

program = os.path.join(os.path.dirname(importlib.util.find_spec("tenon").origin), "lib", "tenon")
os.execv(program, ["tenon", *sys.argv[1:]])
"""


def needed(library):
    """{name: path} of the libraries that a library loads, but libc's."""
    out = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in out.splitlines():
        name, _, path = line.strip().partition(" => ")
        if LIBC.match(os.path.basename(name.split()[0])):
            continue
        path = path.split(" (")[0]
        if not os.path.exists(path):
            sys.exit(f"wheel: {name} is not found")
        found[name] = path
    return found


def version():
    with open("python/tenon.egg-info/PKG-INFO", encoding="utf-8") as f:
        return re.search(r"^Version: (.*)", f.read(), re.M)[1]


def files(folder, number):
    """(name in the wheel, bytes) of all of its files but RECORD."""
    library, program = os.path.join(folder, "libtenon.so"), os.path.join(folder, "tenon")
    for name in sorted(os.listdir("python/tenon")):
        if name.endswith(".py"):
            with open(os.path.join("python/tenon", name), "rb") as f:
                yield f"tenon/{name}", f.read()
    for name, path in {"libtenon.so": library, "tenon": program, **needed(library), **needed(program)}.items():
        with open(path, "rb") as f:
            yield f"tenon/lib/{name}", f.read()
    info = f"tenon-{number}.dist-info"
    with open("LICENSE", "rb") as f:
        yield f"{info}/LICENSE", f.read()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    for own, name in ABOUT.items():
        with open(f"python/tenon.egg-info/{own}", "rb") as f:
            yield f"{info}/{name}", f.read()
    yield f"tenon-{number}.data/scripts/tenon", COMMAND
    yield f"{info}/WHEEL", WHEEL.format(platform=platform).encode()


def write(path, folder, number):
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files(folder, number):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if name.endswith("/tenon") else 0o100644) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
        name = f"tenon-{number}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "".join(record) + f"{name},,\n")


def check(path):
    """That the unpacked library finds all beside itself."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
        inside = os.path.realpath(os.path.join(folder, "tenon", "lib"))
        both = {**needed(os.path.join(inside, "libtenon.so")), **needed(os.path.join(inside, "tenon"))}
        for name, at in both.items():
            if not os.path.realpath(at).startswith(inside + os.sep):
                sys.exit(f"wheel: {name} is found in {at}, and not in the wheel")


def main(folder, dist="dist"):
    os.makedirs(dist, exist_ok=True)
    number = version()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    path = os.path.join(dist, f"tenon-{number}-py3-none-{platform}.whl")
    write(path, folder, number)
    check(path)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
