"""Compress the records of a PyTorch distributed checkpoint as the ZStandard
extension of its writer does: dcp-zstd.py SOURCE TARGET DESCRIPTORS [OPTION...]

DESCRIPTORS is what the metadata says, joined by commas; OPTIONs are those of
zstd.  No torch is needed: the classes of the metadata are stand-ins."""
import copyreg
import os
import pickle
import subprocess
import sys
import types


class Node:
    """Of any class: what it was made of."""

    def __new__(cls, *args):
        self = object.__new__(cls)
        self.args = args
        self.state = None
        return self

    def __setstate__(self, state):
        self.state = state

    def __reduce_ex__(self, protocol):
        if self.args:
            return type(self), self.args
        return copyreg.__newobj__, (type(self),), self.state


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        there = sys.modules.get(module)
        if there is None or not hasattr(there, "stand_in"):
            there = sys.modules[module] = types.ModuleType(module)
            there.stand_in = True
        if not hasattr(there, name):
            setattr(there, name, type(name, (Node,), {"__module__": module}))
        return getattr(there, name)


source, target, descriptors, *options = sys.argv[1:]
with open(os.path.join(source, ".metadata"), "rb") as file:
    metadata = Reader(file).load()
os.mkdir(target)
records = [r.state for r in metadata.state["storage_data"].values()]
for record in sorted(records, key=lambda r: (r["relative_path"], r["offset"])):
    with open(os.path.join(source, record["relative_path"]), "rb") as file:
        file.seek(record["offset"])
        data = file.read(record["length"])
    for _ in descriptors.split(","):
        data = subprocess.run(["zstd", "-qc", *options], input=data,
                              stdout=subprocess.PIPE, check=True).stdout
    with open(os.path.join(target, record["relative_path"]), "ab") as file:
        record.update(offset=file.tell(), length=len(data),
                      transform_descriptors=descriptors.split(","))
        file.write(data)
with open(os.path.join(target, ".metadata"), "wb") as file:
    pickle.dump(metadata, file, protocol=4)
