"""A state dict of everything that PyTorch can save, and what it becomes.

    torch-state.py make FILE       torch.save it
    torch-state.py torch FILE      is that file the same?
    torch-state.py dcp DIR         a distributed checkpoint, read by hand
    torch-state.py load DIR        the same, by torch.distributed.checkpoint
    torch-state.py ranks DIR       by two ranks, into DTensors
    torch-state.py hf DIR          safetensors shards, by PyTorch's reader
    torch-state.py safetensors FILE, torch-state.py h5 FILE
    torch-state.py train DIR       a model and AdamW that two ranks shard; the
                                   same is in DIR.h5, as libfsdp has it

Several verbs may follow each other.  Tensors are compared bit by bit.  Run by
t2311; any PyTorch from 1.13 on.
"""
import collections
import os
import pickle
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

DTYPES = (
    "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool"
    " complex64 complex128 uint16 uint32 uint64 float8_e4m3fn float8_e5m2"
    " float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
SHAPES = {"0d": (), "none": (0, 3), "one": (1,), "odd": (7, 3), "cube": (4, 3, 5)}


def of_bytes(raw, dtype):
    """Elements of these bytes; PyTorch knows no other way with empty ones."""
    if raw.numel() == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(raw.numpy().tobytes()), dtype=dtype)


def tensors():
    """By name; all bits are used, so NaNs with payloads are among them."""
    seed = torch.Generator().manual_seed(7)
    all = {}
    for name in DTYPES.split():
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        size = torch.empty(0, dtype=dtype).element_size()
        for kind, shape in SHAPES.items():
            flat = torch.empty(shape, dtype=dtype).numel() * size
            raw = torch.randint(0, 256, (flat,), generator=seed).to(torch.uint8)
            raw = raw % 2 if dtype == torch.bool else raw
            all[name + "." + kind] = of_bytes(raw, dtype).reshape(shape)
    all["zeros"] = torch.tensor([0.0, -0.0, float("nan"), float("-inf")])
    all["w/α β"] = torch.arange(12.0).reshape(3, 4).t()
    return all


def values():
    return {
        "none": None,
        "flag": True,
        "big": 2**100,
        "minus": -(2**40),
        "lr": 0.1,
        "inf": float("-inf"),
        "complex": 1 - 2.5j,
        "bytes": b"\x00\xff\x80abc",
        "text": "é\u2603\n",
        "betas": (0.9, (0.999, None)),
        "size": torch.Size([3, 4]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "set": {1, "a", (2, 3), frozenset([4])},
        "keys": ({1: "a", "1": "b", None: 3, (1, 2): True, "$tuple": []},),
        "counts": (collections.Counter("aab"), collections.OrderedDict(b=1, a=2)),
        "range": range(1, 10, 2),
    }


def state():
    return {
        "model": {"layers.0.w": torch.ones(6, 2), **tensors()},
        "optim": {
            "state": {
                "layers.0.w": {
                    "step": torch.tensor(3.0),
                    "exp_avg": torch.arange(12.0).reshape(6, 2) / 7,
                },
            },
            "param_groups": [
                {"lr": 0.1, "betas": (0.9, 0.99), "params": ["layers.0.w"]},
                {"lr": 0.2, "betas": (0.8, 0.99), "params": []},
            ],
        },
        "values": values(),
        "pair": (torch.arange(5), {"deep": torch.full((2, 2), 7.5)}, "x"),
        "listed": [torch.ones(2), [torch.zeros(3)]],
    }


def bits(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat.view(integers[flat.element_size()]).numpy().tobytes()


def same(a, b, path=""):
    """Equal, tensors by their bits."""
    if isinstance(a, torch.Tensor):
        good = (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and bits(a) == bits(b)
        )
        assert good, (path, a, b)
    elif isinstance(a, dict) and isinstance(b, dict):
        assert sorted(map(repr, a)) == sorted(map(repr, b)), (path, set(a) ^ set(b))
        for key in a:
            same(a[key], b[key], "%s.%s" % (path, key))
    elif isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        assert type(a) is type(b) and len(a) == len(b), (path, a, b)
        for i in range(len(a)):
            same(a[i], b[i], "%s.%d" % (path, i))
    else:
        assert a == b and type(a) is type(b), (path, a, b)


def flat(value, path=()):
    """Dicts, and lists of them or of tensors, taken apart as PyTorch does."""
    if isinstance(value, dict):
        parts = [((str(k),), v) for k, v in value.items()]
    elif isinstance(value, list) and any(map(is_split, value)):
        parts = [((i,), v) for i, v in enumerate(value)]
    else:
        return {path: value}
    all = {}
    for key, part in parts:
        all.update(flat(part, path + key))
    return all


def is_split(value):
    return isinstance(value, (dict, torch.Tensor)) or (
        isinstance(value, list) and any(map(is_split, value))
    )


def named():
    return {".".join(map(str, path)): v for path, v in flat(state()).items()}


def without(all, *dtypes):
    """The tensors but those of types that a library does not have."""
    unknown = [getattr(torch, name, None) for name in dtypes]
    return {
        k: v
        for k, v in all.items()
        if isinstance(v, torch.Tensor) and v.dtype not in unknown
    }


class Stub:
    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class Metadata(pickle.Unpickler):
    """Of .metadata, without the classes, which each version has elsewhere."""

    def find_class(self, module, name):
        if module.startswith("torch.distributed"):
            return type(name, (Stub,), {})
        return super().find_class(module, name)


def read_by_hand(dir):
    import io

    with open(os.path.join(dir, ".metadata"), "rb") as file:
        metadata = Metadata(file).load()
    all = {}
    for name, entry in metadata.state_dict_metadata.items():
        if hasattr(entry, "size"):
            all[name] = torch.empty(entry.size, dtype=entry.properties.state[0])
    for index, place in metadata.storage_data.items():
        with open(os.path.join(dir, place.relative_path), "rb") as file:
            file.seek(place.offset)
            blob = torch.load(io.BytesIO(file.read(place.length)), **WHOLE)
        if index.fqn not in all:
            all[index.fqn] = blob
            continue
        part = all[index.fqn]
        for d, offset in enumerate(index.offset or ()):
            part = part.narrow(d, offset, blob.shape[d])
        part.copy_(blob)
    return all, metadata.planner_data


WHOLE = {} if torch.__version__.startswith("1.") else {"weights_only": False}


def check_dcp(dir):
    got, paths = read_by_hand(dir)
    same(named(), got)
    same(sorted(map(repr, flat(state()))), sorted(map(repr, paths.values())))


def check_load(dir):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(dir, "whole.pt")
    same(state(), torch.load("whole.pt", **WHOLE))
    want = state()
    got = state()
    for path, value in flat(got).items():
        at = got
        for key in path[:-1]:
            at = at[key]
        is_tensor = isinstance(value, torch.Tensor)
        at[path[-1]] = torch.empty_like(value) if is_tensor else None
    dcp.load(got, checkpoint_id=dir)
    same(want, got)


def check_rank(rank, dir, port):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group(
        "gloo", init_method="file://" + port, rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    got, want = {}, {}
    for name, tensor in state()["model"].items():
        if tensor.dim() == 0:
            got[name], want[name] = torch.empty_like(tensor), tensor
            continue
        parts = torch.chunk(tensor, 2)
        want[name] = parts[rank] if rank < len(parts) else tensor[:0]
        got[name] = DTensor.from_local(
            torch.empty_like(want[name]).contiguous(),
            mesh,
            [Shard(0)],
            run_check=False,
            shape=tensor.shape,
            stride=tensor.contiguous().stride(),
        )
    dcp.load({"model": got}, checkpoint_id=dir)
    for name, tensor in got.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        same(want[name], local, name)
    dist.destroy_process_group()


def spawn(check, dir):
    import torch.multiprocessing

    port = os.path.join(tempfile.mkdtemp(dir="."), "port")
    torch.multiprocessing.spawn(check, (dir, os.path.abspath(port)), nprocs=2)


def check_ranks(dir):
    spawn(check_rank, dir)


def check_hf(dir):
    import torch.distributed.checkpoint as dcp

    want = without(named(), "complex128", "float8_e8m0fnu")
    got = {k: torch.empty_like(v).contiguous() for k, v in want.items()}
    dcp.load(got, storage_reader=dcp.HuggingFaceStorageReader(dir))
    same(want, got)


def check_safetensors(path):
    import safetensors.torch

    same(without(named(), "complex128"), safetensors.torch.load_file(path))


def check_h5(path):
    import h5py
    import numpy

    count = 0
    with h5py.File(path, "r") as file:
        for name, want in named().items():
            if not isinstance(want, torch.Tensor) or "/" in name:
                continue
            data = file[name]
            if data.dtype == numpy.float32 and want.dtype == torch.bfloat16:
                raw = numpy.empty(data.shape, data.dtype)
                data.read_direct(raw) if raw.size else None
                number = want.float().numpy()
                assert numpy.array_equal(raw, number, equal_nan=True), name
            else:
                assert numpy.asarray(data).tobytes() == bits(want), (name, data.dtype)
            count += 1
    assert count > 50, count


def make_model(shapes):
    """Modules that have these parameters."""
    model = torch.nn.Module()
    for name, shape in shapes.items():
        at = model
        *modules, last = name.split(".")
        for part in modules:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
    return model


def check_train_rank(rank, dir, port):
    import h5py
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as sd
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(
        "gloo", init_method="file://" + port, rank=rank, world_size=2
    )
    want = {}
    with h5py.File(dir + ".h5", "r") as file:
        file.visititems(
            lambda name, data: want.update({name: torch.from_numpy(data[()])})
            if isinstance(data, h5py.Dataset) and name.startswith(("model", "optim"))
            else None
        )
    names = [k[len("model/") :] for k in want if k.startswith("model/")]
    model = make_model({k: want["model/" + k].shape for k in names})
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    parameters = dict(model.named_parameters())
    groups = read_by_hand(dir)[0]
    groups = [groups["optim.param_groups.%d.params" % i] for i in range(2)]
    optimizer = torch.optim.AdamW(
        [{"params": [parameters[k] for k in group]} for group in groups], lr=99.0
    )
    got = {
        "model": sd.get_model_state_dict(model),
        "optim": sd.get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(got, checkpoint_id=dir)
    sd.set_model_state_dict(model, got["model"])
    sd.set_optimizer_state_dict(model, optimizer, got["optim"])

    for name, parameter in parameters.items():
        state = optimizer.state[parameter]
        same(want["model/" + name], parameter.full_tensor().detach(), name)
        for kind in ("exp_avg", "exp_avg_sq"):
            key = "optim/%s/%s" % (kind, name)
            same(want[key], state[kind].full_tensor(), key)
        same(torch.tensor(4.0), state["step"], name)
    assert len(parameters) > 20
    assert [g["lr"] for g in optimizer.param_groups] != [99.0, 99.0]
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)
    dist.destroy_process_group()


def check_train(dir):
    spawn(check_train_rank, dir)


def check_torch(path):
    same(state(), torch.load(path, **WHOLE))


def check_make(path):
    torch.save(state(), path)


if __name__ == "__main__":
    for verb, path in zip(sys.argv[1::2], sys.argv[2::2]):
        globals()["check_" + verb](path)
