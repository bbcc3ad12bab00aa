#!/usr/bin/env python3
"""The peers of "./dev bench ckpt": what PyTorch's tools do with a checkpoint.

One line of NAME=VALUE: seconds, and MiB of memory at the most of a process.
The work is under its own clock: importing torch does not count.
"""
import argparse
import collections
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def reshard(source, target):
    """Load into this world, dim-0 shards as FSDP2 has them, and save; one
    process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    metadata = dcp.FileSystemReader(source).read_metadata()
    start = time.monotonic()
    state = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "size"):
            continue
        dtype = entry.properties.dtype
        if len(entry.size) == 0:
            state[name] = torch.empty(entry.size, dtype=dtype)
            continue
        rows = -(-entry.size[0] // mesh.size())
        mine = min(max(entry.size[0] - mesh.get_rank() * rows, 0), rows)
        local = torch.empty((mine, *entry.size[1:]), dtype=dtype)
        state[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=entry.size,
            stride=torch.empty(entry.size, device="meta").stride())
    dcp.load(state, checkpoint_id=source)
    dcp.save(state, checkpoint_id=target)
    dist.barrier()
    took = time.monotonic() - start
    dist.destroy_process_group()
    return took


def merge(source, target):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    start = time.monotonic()
    dcp_to_torch_save(source, target)
    return time.monotonic() - start


def accelerate(source, target):
    from accelerate.utils import merge_fsdp_weights
    start = time.monotonic()
    merge_fsdp_weights(source, target, safe_serialization=True)
    return time.monotonic() - start


def zero(source, target):
    from deepspeed.utils.zero_to_fp32 import (
        convert_zero_checkpoint_to_fp32_state_dict)
    start = time.monotonic()
    convert_zero_checkpoint_to_fp32_state_dict(source, target,
                                               max_shard_size=None,
                                               safe_serialization=True)
    return time.monotonic() - start


def make_zero(source, target, world=4):
    """A ZeRO-3 checkpoint of the weights in a DCP directory."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    start = time.monotonic()
    whole = os.path.join(target, "whole.pt")
    step = os.path.join(target, "global_step1")
    os.makedirs(step)
    dcp_to_torch_save(source, whole)
    weights = torch.load(whole, mmap=True)
    weights = {name: t for name, t in weights.items()
               if t.dtype == torch.float32 and t.numel() > 1}
    shapes = collections.OrderedDict((n, t.shape) for n, t in weights.items())
    for rank in range(world):
        parts = []
        for tensor in weights.values():
            size = -(-tensor.numel() // world)
            part = tensor.reshape(-1)[rank * size:(rank + 1) * size]
            parts.append(torch.nn.functional.pad(part, (0, size - len(part))))
        torch.save({"optimizer_state_dict": {
            "zero_stage": 3, "partition_count": world,
            "fp32_flat_groups": [torch.cat(parts)],
            "optimizer_state_dict": {"state": {}, "param_groups": []},
        }, "ds_config": {}, "ds_version": "0.16.0"}, os.path.join(
            step, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
        torch.save({
            "module": {}, "buffer_names": [], "param_shapes": [shapes],
            "frozen_param_shapes": None, "frozen_param_fragments": None,
            "shared_params": {}, "ds_config": {}, "ds_version": "0.16.0",
        }, os.path.join(
            step, f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"))
    with open(os.path.join(target, "latest"), "w", encoding="utf-8") as f:
        f.write("global_step1")
    os.unlink(whole)
    return time.monotonic() - start


def main():
    verbs = {f.__name__.replace("_", "-"): f
             for f in (reshard, merge, accelerate, zero, make_zero)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("source")
    parser.add_argument("target")
    args = parser.parse_args()
    torch.set_num_threads(1)
    took = verbs[args.verb](args.source, args.target)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"seconds={took:.3f} mib={peak >> 10}")


if __name__ == "__main__":
    main()
