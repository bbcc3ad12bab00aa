#!/bin/sh

test_description='parts of tensors, as PATTERN[SLICE], in ls, diff and convert'

. "$SHARNESS_SH"

step='step-00000100'
fc=transformer.h.0.mlp.c_fc.weight

# values CKPT PART: the numbers, one a line.
values() {
	fsdp-ls --json --values "$2" "$1" | sed -n 's/^      \(.*[0-9]\),\{0,1\}$/\1/p'
}

test_expect_success 'make checkpoints' '
	ckpt_make --strategy hybrid:2 four &&
	fsdp-convert --to dcp --layout dp=2,tp=2 --split "*.weight=-1" four grid
'

test_expect_success 'ls shows the part, its bytes and its statistics' '
	fsdp-ls four "$fc[2:5]" "*.ln_f.bias" >out &&
	grep "^model/$fc  *f32  *\[3, 256\]  *3072 " out &&
	grep "^model/transformer.ln_f.bias  *f32  *\[64\]  *256 " out
'

for ckpt in four grid; do
	for part in "3:9" "-2:" "7" ":, 5:100" "-3:, -9:" "1:60, 11" "0:0"; do
		test_expect_success "$ckpt: [$part] as values show it" '
			rm -rf part && fsdp-convert --to hdf5-file \
				-i "*$fc['"$part"']" '$ckpt' part.h5 &&
			values '$ckpt' "model/$fc['"$part"']" >want &&
			values part.h5 "model/$fc[]" >have && test_cmp want have &&
			fsdp-ls part.h5 >out && grep "^3 tensors, " out &&
			fsdp-verify part.h5 && fsdp-diff -i "*$fc['"$part"']" four '$ckpt' &&
			rm part.h5
		'
	done
done

test_expect_success 'a part of the shape it has in both is the same' '
	fsdp-convert -w 3 --strategy full -i "*.wte.weight[0:100]" four rows && fsdp-verify rows &&
	fsdp-diff -i "*.wte.weight[10:20]" four rows >out && grep "^the same: 3 " out &&
	expect_code 1 fsdp-diff -i "*.wte.weight" four rows >out &&
	grep "wte.weight: shape" out && grep "^they differ in 3 places" out
'

test_expect_success 'a difference outside of the part is none' '
	fsdp-convert -i "$fc" four a.safetensors &&
	cp a.safetensors b.safetensors && set -- a.safetensors b.safetensors &&
	ckpt_pieces $1 model/$fc >piece && read -r first count file at <piece &&
	flip $2 $((at + 4 * 256 * 40 + 3)) && expect_code 1 fsdp-diff "$@" &&
	fsdp-diff -i "$fc[:40]" "$@" && fsdp-diff -i "$fc[41:]" "$@" &&
	expect_code 1 fsdp-diff -i "$fc[40, 0:2]" "$@" >out &&
	grep "^model/$fc  *1  *2  *0 " out
'

test_expect_success 'checksums are of whole blocks, and still compared' '
	cp -r four/$step bad && ckpt_pieces four/$step model/$fc | head -n 1 >piece &&
	read -r first count file at <piece && flip bad/$file $((at + 4)) &&
	expect_code 65 fsdp-convert -i "$fc[1:2]" bad no 2>err &&
	grep "do not have their checksum" err && test ! -e no
'

test_expect_success 'brackets of a name, or of a pattern, come first' '
	safetensors b.safetensors "{\"a[0]\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}" abc &&
	fsdp-ls b.safetensors "a\[0\]" >out && grep "^a.0.  *u8  *\[2\]" out &&
	fsdp-ls four "transformer.h.[0].ln_1.weight" >out && grep "^1 tensor chosen" out &&
	fsdp-ls four "*.ln_[12].weight[1:3]" >out && grep "ln_2.weight  *f32  *\[2\]" out
'

test_expect_success 'what is no part is refused, by name' '
	expect_code 2 fsdp-convert -i "*.wte.weight[0:8193]" four no 2>err &&
	grep "outside of the tensor; the shape of model/transformer.wte.weight is" err &&
	expect_code 2 fsdp-diff -i "*.wte.weight[3:2]" four four 2>err &&
	grep "ends before it begins" err &&
	expect_code 2 fsdp-ls four "*.wte.weight[::2]" 2>err &&
	grep "without a step" err &&
	expect_code 2 fsdp-ls four "*.wte.weight[0,0,0]" 2>err &&
	grep "more dimensions" err && test ! -e no
'

test_expect_success PYTHON_H5PY 'notes of the source, and values that lie in no file' '
	cat >make.py <<-\END &&
	import h5py
	import numpy as np
	from h5py import h5d, h5p, h5s, h5t
	with h5py.File("odd.h5", "w") as f:
	    plist = h5p.create(h5p.DATASET_CREATE)
	    plist.set_layout(h5d.COMPACT)
	    space = h5s.create_simple((6,))
	    data = h5d.create(f.id, b"compact", h5t.IEEE_F32LE, space, plist)
	    data.write(h5s.ALL, h5s.ALL, np.arange(6, dtype="f4"))
	    f.create_dataset("fill", (30,), "f4", chunks=(10,), fillvalue=7)
	    f["soft"] = h5py.SoftLink("/nowhere")
	END
	"$PYTHON" make.py &&
	fsdp-ls --stats odd.h5 "compact[1:3]" "fill[25:]" >out 2>err &&
	grep "^compact  *f32  *\[2\]  *8  *1  *2 " out &&
	grep "^fill  *f32  *\[5\]  *20  *7  *7 " out &&
	grep "^fsdp-ls: warning: odd.h5: /soft is a link to /nowhere" err &&
	fsdp-convert -i "compact[4:]" odd.h5 odd.safetensors &&
	fsdp-ls --values compact odd.safetensors >out && grep "^4  5$" out &&
	echo "fill = full" >rules &&
	fsdp-convert --rules ./rules odd.h5 full.safetensors &&
	fsdp-ls --values "full[9:11]" full.safetensors >out && grep "^7  7$" out
'

test_expect_success 'pieces that are boxes are shown as such' '
	fsdp-ls -l grid "model/$fc" | tr -s " " >out &&
	grep "BYTES BOX FIRST COUNT FILE OFFSET$" out &&
	grep "^ \[32:64, 128:256\] 8320 4096 __3_0.distcp [0-9]*$" out &&
	fsdp-ls -l --json grid "model/$fc" | tr -d " \n" >out &&
	grep "\"first\":8320,\"count\":4096,\"start\":\[32,128\],\"shape\":\[32,128\]," \
		out && fsdp-ls -l four "model/$fc" >out && ! grep BOX out
'

test_done
