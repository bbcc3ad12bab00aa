#!/usr/bin/env python3
"""compare-h5.py FILE.h5 FILE.safetensors: do both hold the same values?

Reads the one by h5py, the other by the reader beside this file.  Ends with 1
if a tensor is missing or differs in a bit.
"""
import importlib.util
import os
import sys

import h5py
import numpy as np


def load_reader():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "read-safetensors.py")
    spec = importlib.util.spec_from_file_location("read_safetensors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def h5_tensors(path):
    found = {}
    with h5py.File(path, "r") as f:
        f.visititems(lambda name, item: found.update({name: item[()]})
                     if isinstance(item, h5py.Dataset) else None)
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    ours = {name.removeprefix("model/"): values
            for name, values in h5_tensors(sys.argv[1]).items()}
    _, theirs = load_reader().read(sys.argv[2])
    elements = 0
    for name, values in theirs:
        if name not in ours:
            sys.exit(f"{name} is not in {sys.argv[1]}")
        if not np.array_equal(ours[name].view("u4"), values.view("u4")):
            sys.exit(f"{name} differs")
        elements += values.size
    if not theirs:
        sys.exit(f"no tensor in {sys.argv[2]}")
    print(f"{len(theirs)} tensors, {elements} elements: the same bits")


if __name__ == "__main__":
    main()
