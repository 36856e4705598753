"""Stand-ins for the CUDA libraries that PyTorch's wheels link to, for computing on the CPU alone.

torch_stubs.py FOLDER   FOLDER: site-packages with torch, installed without its dependencies

A wheel from PyPI names some twelve libraries of CUDA, of which the packages take 5 GB, and loads them when it is
imported. No computation on the CPU calls them. Each stand-in has the name and the versioned symbols that torch asks
for. A function returns 100, cudaErrorNoDevice; one that gives an error's text returns that; no stream is capturing.
A library that torch's own folder has is left alone. Needs gcc and readelf."""
import os
import re
import subprocess
import sys
import tempfile

CUDA = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+$")


def readelf(path, *options):
    done = subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True)
    return done.stdout


def asked(path):
    """The CUDA libraries that a library needs, and of each the versions and their symbols. Symbols without a version do
    not say whose they are: each library gets them, under the version ""."""
    needed = [n for n in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "-d")) if CUDA.match(n)]
    library, version = None, {}
    for line in readelf(path, "-V").splitlines():
        found = re.search(r"File: (\S+)", line)
        library = found[1] if found else library
        found = re.search(r"Name: (\S+)\s+Flags:.*Version: \d+", line)
        if found and library in needed:
            version[found[1]] = library
    symbols = {name: {} for name in needed}
    for line in readelf(path, "--dyn-syms").splitlines():
        found = re.search(r"\bUND (\w+)(?:@+(\S+))?", line)
        if found and found[2] in version:
            symbols[version[found[2]]].setdefault(found[2], set()).add(found[1])
        elif found and not found[2] and re.match(r"cu[A-Zps]|nccl|nv[A-Zrs]", found[1]):
            for name in needed:
                symbols[name].setdefault("", set()).add(found[1])
    return symbols


def function(name):
    """The code of a stand-in."""
    if re.search("Error(String|Name)$", name):
        return f'const char *{name}(int code) {{ return "no CUDA: a stand-in was called"; }}\n'
    if name == "cudaStreamIsCapturing":
        return f"int {name}(void *stream, int *status) {{ *status = 0; return 0; }}\n"
    return f"int {name}(void) {{ return 100; }}\n"


def build(folder, name, versions):
    with tempfile.TemporaryDirectory() as work:
        code, script = os.path.join(work, "stub.c"), os.path.join(work, "stub.map")
        with open(code, "w") as f:
            f.writelines(function(s) for s in sorted(set().union(*versions.values())))
        with open(script, "w") as f:
            f.writelines(f"{v} {{ global: {' '.join(s + ';' for s in sorted(names))} }};\n"
                         for v, names in versions.items() if v)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", code, f"-Wl,-soname,{name}",
                        *([f"-Wl,--version-script,{script}"] if any(versions) else []),
                        "-o", os.path.join(folder, name)], check=True)


def main(site):
    folder = os.path.join(site, "torch", "lib")
    all_symbols = {}
    for entry in sorted(os.listdir(folder)):
        if not re.search(r"\.so(\.\d+)?$", entry) or CUDA.match(entry):
            continue
        for name, versions in asked(os.path.join(folder, entry)).items():
            mine = all_symbols.setdefault(name, {})
            for version, symbols in versions.items():
                mine.setdefault(version, set()).update(symbols)
    for name, versions in all_symbols.items():
        if not os.path.exists(os.path.join(folder, name)):
            build(folder, name, versions)
    print(f"{len(all_symbols)} CUDA libraries have stand-ins in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
