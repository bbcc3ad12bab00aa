"""HDF5 files as others make them, and a manifest of what they hold:
hdf5-any.py DIRECTORY makes DIRECTORY/old.h5, new.h5 and a manifest of each."""
import hashlib
import json
import os
import sys

import h5py
import numpy as np

TORCH = {"f4": "float32", "f8": "float64", "f2": "float16", "i1": "int8",
         "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8",
         "u8": "uint64", "b1": "bool", "c8": "complex64", "c16": "complex128"}
rng = np.random.default_rng(7)
a = rng.standard_normal((300, 200)).astype("f4")
a[5, 7], a[6, 8], a[7, 9] = np.nan, -0.0, np.inf
os.chdir(sys.argv[1])


class File:
    def __init__(self, name, **how):
        self.name, self.h5 = name, h5py.File(name + ".h5", "w", **how)
        self.tensors, self.aliases, self.values = [], {}, {}

    def note(self, name, data):
        data = np.asarray(data)
        data = np.array(data, data.dtype.newbyteorder("<"), order="C", ndmin=0)
        self.tensors.append({
            "name": name, "shape": list(data.shape),
            "dtype": TORCH[data.dtype.kind + str(data.dtype.itemsize)],
            "sha256": hashlib.sha256(data.tobytes()).hexdigest()})

    def put(self, name, data, **how):
        self.h5.create_dataset(name, data=data, **how)
        self.note(name, data)

    def part(self, name, shape, dtype, **how):
        d = self.h5.create_dataset(name, shape, dtype, **how)
        d[5:60, 2:30] = 7
        self.note(name, d[...])

    def close(self):
        self.h5.close()
        with open(self.name + ".json", "w") as f:
            json.dump({"tensors": self.tensors, "aliases": self.aliases,
                       "values": self.values}, f)


f = File("old")
gzip = {"compression": "gzip"}
f.put("plain", a)
f.put("chunks", a, chunks=(64, 50))
f.put("gzip", a, chunks=(64, 50), **gzip)
f.put("all", a, chunks=(64, 50), shuffle=True, fletcher32=True, **gzip)
f.put("lzf", np.repeat(a, 3, axis=1), chunks=(64, 70), compression="lzf",
      shuffle=True)
f.put("sum", a, chunks=(300, 200), fletcher32=True)
f.put("whole", a, chunks=(300, 200), shuffle=True, **gzip)
f.put("odd.sum", (a[:, 0] * 9).astype("i1"), chunks=(101,), fletcher32=True)
f.put("one/deep/i2", (a[5:] * 100).clip(-9, 9).astype(">i2"))
f.put("f8", a.astype(">f8"), chunks=(7, 200), **gzip)
f.put("c8", (a + 1j).astype("c8"), chunks=(100, 100))
f.put("c16", (a + 1j).astype(">c16"), chunks=(100, 100), **gzip)
f.put("b", a > 0, chunks=(100, 100), **gzip)
f.put("f2", a.astype("f2")[:, 0], chunks=(11,), shuffle=True, **gzip)
f.put("u8", np.arange(24, dtype="u8").reshape(2, 3, 4), chunks=(1, 2, 3),
      shuffle=True, **gzip)
f.put("noise", np.frombuffer(rng.bytes(70000), "u1"), chunks=(9999,),
      compression="lzf")
f.put("scalar", np.float64(2.5))
f.put("empty", np.zeros((0, 3), "f4"))
f.part("sparse", (100, 100), "f4", chunks=(10, 10), fillvalue=3.5, **gzip)
f.part("zeros", (100, 100), ">i4", chunks=(10, 10))
f.note("fill", f.h5.create_dataset("fill", (10,), ">f4", fillvalue=2.5)[...])
e = np.array([0, 5, 0], ">i2")
f.h5.create_dataset("enum", data=e, dtype=h5py.enum_dtype(
    {"A": 0, "B": 5}, basetype=">i2"))
f.note("enum", e)
compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
compact.set_layout(h5py.h5d.COMPACT)
h5py.h5d.create(f.h5.id, b"compact", h5py.h5t.IEEE_F32BE,
                h5py.h5s.create_simple((5,)), compact)
f.h5["compact"][...] = a[0, :5]
f.note("compact", a[0, :5])
x = np.arange(21, dtype="f4").reshape(7, 3)
f.h5.create_dataset("external", x.shape, "f4",
                    external=[("1.bin", 4, 24), ("2.bin", 0, 60)])
f.note("external", x)
for name, data in ("1.bin", b"XXXX" + x.tobytes()[:24]), (
        "2.bin", x.tobytes()[24:]):
    with open(name, "wb") as file:
        file.write(data)
f.h5["soft"] = h5py.SoftLink("/gzip")
f.h5["tied"] = f.h5["whole"]
f.h5["group"] = h5py.SoftLink("/one")
f.aliases = {"soft": "gzip", "tied": "whole", "group/deep/i2": "one/deep/i2"}
f.h5["names"] = ["a", "b\u00e9"]
f.h5["one/text"] = "x" * 300
f.h5["bytes"] = np.array([b"ab ", b"c"], "S5")
f.h5.attrs["step"] = 12
f.h5.attrs["big"] = np.uint64(2**64 - 1)
f.h5["one"].attrs["lr"] = [0.5, np.inf]
f.h5["gzip"].attrs["frozen"] = True
f.h5["gzip"].attrs["ref"] = f.h5["one"].ref
f.values = {"names": ["a", "b\u00e9"], "one/text": "x" * 300,
            "bytes": ["ab ", "c"], "@step": 12, "@big": 2**64 - 1,
            "one@lr": [0.5, {"$float": "inf"}], "gzip@frozen": True}
f.close()

f = File("new", libver="latest")
f.put("fixed", a, chunks=(64, 50), **gzip)
f.put("single", a, chunks=a.shape, **gzip)
f.put("implicit", a, chunks=(64, 50))
for name, most, how in ("one way", (None, 200), {}), (
        "two ways", (None, None), {"shuffle": True, **gzip}):
    d = f.h5.create_dataset(name, (1, 1) if most[1] is None else (1, 200),
                            "f4", chunks=(64, 50), maxshape=most, **how)
    d.resize(a.shape)
    d[...] = a
    f.note(name, a)
f.close()
