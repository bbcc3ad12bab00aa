#!/bin/sh

test_description='files of torch.save: written, read back, loaded by PyTorch'

. "$SHARNESS_SH"

want_torch 'import torch'

test_expect_success 'to a file of torch.save and back' '
	ckpt_make four &&
	fsdp-convert --to torch four four.pt >out && grep "^four.pt: torch" out &&
	fsdp-verify four.pt && fsdp-diff four four.pt &&
	fsdp-convert --to hdf5 --world 3 four.pt back && fsdp-diff four back
'

test_expect_success 'the name of the target tells the format' '
	for end in pt pth bin; do
		fsdp-convert --only-model four weights.$end &&
		cmp weights.$end weights.pt || return 1
	done &&
	mkdir inside && fsdp-convert --to torch four inside &&
	fsdp-ls inside/model.pt
'

test_expect_success 'a zip with right checksums, its data at multiples of 64' '
	python3 - four.pt <<-\EOF
	import sys, zipfile
	with zipfile.ZipFile(sys.argv[1]) as z:
	    assert z.testzip() is None
	    names = [i.filename for i in z.infolist()]
	    assert names[0] == "archive/data.pkl"
	    assert z.read("archive/byteorder") == b"little"
	    assert z.read("archive/version") == b"3\n"
	    assert "archive/data/0" in names
	    for i in z.infolist():
	        z.fp.seek(i.header_offset + 26)
	        n = int.from_bytes(z.fp.read(2), "little")
	        n += int.from_bytes(z.fp.read(2), "little")
	        assert (i.header_offset + 30 + n) % 64 == 0, i
	EOF
'

test_expect_success 'an altered byte is found' '
	set -- $(ckpt_pieces four.pt optim/exp_avg/transformer.wte.weight) &&
	cp four.pt bad.pt && flip bad.pt $(($4 + 7)) &&
	expect_code 1 fsdp-verify bad.pt >out && grep transformer.wte.weight out &&
	expect_code 65 fsdp-convert bad.pt bad.h5 && test ! -e bad.h5
'

cat >same.py <<-\EOF
import sys, torch
def same(a, b, at):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, at
        a = a.detach().contiguous().reshape(-1)
        b = b.detach().contiguous().reshape(-1)
        assert a.numel() == 0 or torch.equal(
            a.view(torch.uint8), b.view(torch.uint8)), at
        return
    assert type(a) is type(b), (at, type(a), type(b))
    if isinstance(a, dict):
        assert set(a) == set(b), (at, set(a) ^ set(b))
        for k in a:
            same(a[k], b[k], at + (k,))
        m = getattr(a, "_metadata", None)
        assert m is None or dict(m) == dict(b._metadata), at
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for i in range(len(a)):
            same(a[i], b[i], at + (i,))
    else:
        assert a == b or (a != a and b != b), (at, a, b)
# PyTorch 1 takes no floats then.
SAFE = not torch.__version__.startswith("1.")
for name in sys.argv[2:]:
    a, b = (torch.load(p, weights_only=SAFE)
            for p in (name, name + sys.argv[1]))
    same(a, b, (name,))
    if name == "tied.src":
        assert len({t.data_ptr() for t in (
            b["w"], b["tied"], b["list"][0], b["nest"]["deep"]["w"])}) == 1
EOF

test_expect_success TORCH 'files as people have them' '
	"$FSDP_TORCH_PYTHON" - <<-\EOF
	import torch
	from collections import OrderedDict
	def save(name, what):
	    torch.save(what, name + ".src")
	m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
	o = torch.optim.AdamW(m.parameters(), lr=1e-3)
	m(torch.randn(5, 3)).sum().backward()
	o.step()
	save("train", {"epoch": 3, "model": m.state_dict(),
	               "optimizer": o.state_dict(), "best": float("inf"),
	               "loss": float("nan"), "seed": -5,
	               "rng": torch.get_rng_state()})
	save("weights", m.state_dict())
	base = torch.arange(20.)
	save("names", {"a b": torch.zeros(0, 3), "s": torch.tensor(3.5),
	     "x/y": base[3:7], "x/z": base[5:9], "t": base.view(4, 5).t(),
	     "\u00fcn\u00ef.c\u00f6de \u2603": torch.ones(2), "e": torch.empty(0),
	     "b": torch.tensor([True, False]), "exp": torch.ones(1).expand(5),
	     "..": torch.ones(1), "a.b.c": torch.ones(1)})
	w = torch.randn(3, 3)
	save("tied", {"w": w, "tied": w, "nest": {"deep": {"w": w}},
	     "list": [w, {"k": torch.ones(2)}, [torch.zeros(1)]],
	     "tuple": (1, 2, {"t": w, 5: torch.ones(4)}), "empty": [],
	     "none": {}, "long": 2**80})
	save("list", [torch.ones(1) * i for i in range(12)])
	save("bare", torch.ones(2, 2))
	save("ints", {0: torch.ones(1), -1: torch.ones(2),
	              10: {2: torch.ones(3), "x": torch.ones(1)}})
	save("dotted", {"model": {"w": torch.ones(1)},
	                "model.ema": {"w": torch.ones(2)},
	                "a.b": {"c.d": {"e": torch.ones(3)}}})
	save("param", OrderedDict(p=torch.nn.Parameter(torch.ones(2)),
	                          h=torch.ones(3, dtype=torch.bfloat16)))
	torch.save({True: torch.ones(1), None: torch.ones(2)}, "keys.bad")
	save("sgd", {"state": {}, "param_groups": [{"lr": 0.1, "params": []}],
	             "w": torch.ones(1)})
	EOF
	for f in *.src; do
		fsdp-convert -q --to torch $f $f.pt && fsdp-diff $f $f.pt || return 1
	done &&
	"$FSDP_TORCH_PYTHON" same.py .pt *.src
'

test_expect_success TORCH 'what was nested stays so through HDF5' '
	for f in *.src; do
		fsdp-convert -q --to hdf5 --world 2 $f $f.dir &&
		fsdp-convert -q $f.dir $f.h5 &&
		fsdp-convert -q --to torch $f.h5 $f.3.pt || return 1
	done &&
	"$FSDP_TORCH_PYTHON" same.py .3.pt *.src
'

test_expect_success TORCH 'a list is kept or left out whole' '
	expect_code 2 fsdp-convert -x list.1.k tied.src part.pt 2>err &&
	grep "the list .list. would lack element 1," err &&
	fsdp-convert -q -x "list.*" tied.src part.pt && fsdp-ls part.pt
'

test_expect_success TORCH 'a value is kept or left out whole' '
	expect_code 2 fsdp-convert -x tuple.2.5 tied.src part2.pt 2>err &&
	grep "value .tuple. holds tensor tuple.2.5, which is left out" err &&
	fsdp-convert -q -x tuple -x "tuple.*" tied.src part2.pt &&
	fsdp-ls part2.pt >out && ! grep tuple out
'

test_expect_success TORCH 'a name is not that of a dict too' '
	expect_code 2 fsdp-convert --rename a.b.c.d.e=model dotted.src both.pt 2>err &&
	grep "model. would be a tensor or value, and a dict" err
'

test_expect_success TORCH 'keys that are neither texts nor integers: refused' '
	expect_code 2 fsdp-convert keys.bad keys.pt 2>err &&
	grep "keys that are neither texts nor integers" err && test ! -e keys.pt
'

test_expect_success 'a type that PyTorch lacks is refused, with the tensor named' '
	safetensors f4.safetensors "{\"odd\":{\"dtype\":\"F4\",\"shape\":[2],\
\"data_offsets\":[0,1]}}" "\\0" &&
	expect_code 2 fsdp-convert f4.safetensors f4.pt 2>err &&
	grep "tensor odd: PyTorch has no tensors of type f4" err &&
	expect_code 2 fsdp-convert --to dcp f4.safetensors f4 2>err &&
	grep "tensor odd: PyTorch has no tensors of type f4: .*exclude .odd." err
'

test_expect_success 'a tensor without a name, and how to leave it out' '
	safetensors noname.safetensors "{\"\":{\"dtype\":\"U8\",\"shape\":[1],\
\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\
\"data_offsets\":[1,2]}}" "ab" &&
	expect_code 2 fsdp-convert noname.safetensors noname.pt 2>err &&
	grep "would have an empty name: leave it out with --exclude .." err &&
	fsdp-convert --exclude "" noname.safetensors noname.pt &&
	fsdp-diff --exclude "" noname.safetensors noname.pt
'

test_expect_success 'metadata that makes no sense is refused' '
	cp -r four odd && step=odd/step-00000100 && odd=$step/manifest.json &&
	for note in "{\"model/transformer\": {\"is\": \"tree\"}}" \
		"{\"model/transformer\": {\"key\": \"xyz\"}}" \
		"{\"model/transformer\": {\"key\": 3}}" \
		"{\"\": {\"keys\": \"other\"}}"; do
		python3 -c "
import json, sys
m = json.load(open(sys.argv[1]))
m[\"meta\"][\"nesting\"] = json.loads(sys.argv[2])
json.dump(m, open(sys.argv[1], \"w\"))" $odd "$note" &&
		ckpt_reseal $step && fsdp-ls odd >out &&
		test_must_fail fsdp-convert odd odd.pt 2>err &&
		grep -e "makes no sense" -e "keys that are" err || return 1
	done
'

test_expect_success EXPENSIVE 'more than 2^32 bytes' '
	safetensors large.safetensors "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967301],\
\"data_offsets\":[0,4294967301]},\"b\":{\"dtype\":\"I16\",\"shape\":[2],\
\"data_offsets\":[4294967301,4294967305]}}" "" &&
	truncate -s +4294967305 large.safetensors &&
	fsdp-convert large.safetensors large.pt && fsdp-verify large.pt &&
	fsdp-diff large.safetensors large.pt && python3 -m zipfile -t large.pt
'

test_done
