#!/usr/bin/python3
"""List a checkpoint with h5py alone, as doc/checkpoint-format.md says:
SHA-256, type, shape and name of each tensor, then the aliases."""
import hashlib, json, os, sys
import h5py

def show(path, item):
    if "name" not in item.attrs:  # a group, or a table
        return
    data, kind = item[()], item.id.get_type()
    dtype = item.attrs.get("dtype", b"").decode()
    shape = item.attrs["shape"] if "shape" in item.attrs else item.shape
    shape = [] if isinstance(shape, h5py.Empty) else [int(n) for n in shape]
    if not dtype and isinstance(kind, h5py.h5t.TypeFloatID) and kind.get_size() == 2 and kind.get_ebias() == 127:
        dtype, data = "bf16", (data.view("u4") >> 16).astype("u2")  # came as f32
    elif not dtype:
        dtype = "bool" if data.dtype == bool else f"{data.dtype.kind}{8 * data.dtype.itemsize}"
    lines.append((item.attrs["name"], f"{hashlib.sha256(data.tobytes()).hexdigest()} {dtype} {shape}"))

top, lines = sys.argv[1], []
manifest = json.load(open(os.path.join(top, "manifest.json"), encoding="utf-8"))
assert manifest["format"] == "fsdp-checkpoint" and manifest["min_reader"] <= 1
for file in manifest["files"]:  # else HDF5 would show zeros
    assert os.path.getsize(os.path.join(top, file["name"])) == file["size"], file["name"]
h5py.File(os.path.join(top, manifest["index"]["name"]), "r").visititems(show)
for name, text in sorted(lines):
    sys.stdout.buffer.write(text.encode() + b" " + name + b"\n")
for name, owner in sorted(manifest["aliases"].items()):
    sys.stdout.buffer.write(f"alias {name} of {owner}\n".encode())
