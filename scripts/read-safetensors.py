#!/usr/bin/env python3
"""read-safetensors.py FILE: read a safetensors file as its definition says.

By PyPI's safetensors if it is there, by numpy else.  Prints a line a tensor.
"""
import json
import struct
import sys

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
          "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
          "BOOL": "?"}


def read_plain(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    header.pop("__metadata__", None)
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        yield name, values.reshape(entry["shape"])


def read(path):
    try:
        from safetensors.numpy import load_file
    except ImportError:
        return "numpy", list(read_plain(path))
    return "safetensors", sorted(load_file(path).items())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    reader, tensors = read(sys.argv[1])
    total = 0
    for name, values in tensors:
        total += values.size
        print(f"{name:40} {str(values.dtype):8} {str(values.shape):14}"
              f" rms {np.sqrt(np.mean(np.square(values.astype('f8')))):.4g}")
    print(f"{len(tensors)} tensors, {total} elements, read by {reader}")


if __name__ == "__main__":
    main()
