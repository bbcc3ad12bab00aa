#!/bin/sh

test_description='HDF5 files of others: chunks, filters, byte orders, links'

. "$SHARNESS_SH"

test_have_prereq PYTHON_H5PY || skip_all 'no Python with h5py'

test_expect_success 'h5py makes files' '
	mkdir any && "$PYTHON" "$FSDP_SRCDIR/t/hdf5-any.py" any
'

for file in old new; do
	test_expect_success "$file.h5 holds what h5py wrote" '
		fsdp-verify --manifest any/'$file'.json any/'$file'.h5 &&
		fsdp-verify any/'$file'.h5
	'

	test_expect_success "$file.h5 converted, in little memory too" '
		fsdp-convert -q --to hdf5 --world 3 any/'$file'.h5 thirds &&
		fsdp-verify --manifest any/'$file'.json thirds &&
		fsdp-convert -q --max-mem 2M --jobs 1 --to hdf5-file \
			any/'$file'.h5 small.h5 &&
		fsdp-verify --manifest any/'$file'.json small.h5 &&
		fsdp-diff any/'$file'.h5 thirds && rm -rf thirds small.h5
	'
done

test_expect_success 'a chunk that takes more memory than there is' '
	test_must_fail fsdp-convert --max-mem 1M any/old.h5 x.h5 2>err &&
	grep -e "--max-mem" err && test ! -e x.h5
'

test_expect_success 'an external file that is short, gone or elsewhere' '
	cp -r any cut && truncate -s -1 cut/2.bin &&
	test_must_fail fsdp-ls cut/old.h5 2>err && grep 2.bin err &&
	rm cut/2.bin && test_must_fail fsdp-ls cut/old.h5 2>err &&
	grep "external.*2.bin" err &&
	"$PYTHON" -c "
import h5py
f = h5py.File(\"out.h5\", \"w\")
f.create_dataset(\"x\", (2,), \"f4\", external=[(\"/etc/passwd\", 0, 8)])" &&
	test_must_fail fsdp-ls out.h5 2>err && grep "/etc/passwd" err
'

test_expect_success 'links: to links, to groups, to nothing, to other files' '
	cat >links.py <<-\END &&
	import h5py
	with h5py.File("links.h5", "w") as f:
	    f["g/a"] = [1.0, 2.0]
	    f.create_group("empty")
	    f["to a"] = h5py.SoftLink("/g/a")
	    f["to link"] = h5py.SoftLink("./to a")
	    f["to group"] = h5py.SoftLink("g")
	    f["in group"] = h5py.SoftLink("to group/a")
	    f["to empty"] = h5py.SoftLink("/empty")
	    f["g/up"] = h5py.SoftLink("/")
	    f["loop"] = h5py.SoftLink("/loop")
	    f["gone"] = h5py.SoftLink("/g/b")
	    f["far"] = h5py.ExternalLink("far.h5", "/x")
	END
	"$PYTHON" links.py && fsdp-ls links.h5 >out 2>err &&
	grep "^1 tensor, 16 B .* 5 tied names" out &&
	for name in "to a" "to link" "to group/a" "in group" "g/up/g/a"; do
		grep "^$name is tied to g/a$" out || return 1
	done &&
	cat >lost <<-\END &&
	links.h5: /far is a link to /x in far.h5, which is not there
	links.h5: /gone is a link to /g/b, which is not there
	links.h5: /loop is a link to /loop, which is not there
	END
	sed "s/^fsdp-ls: warning: //" err | sort >have && test_cmp lost have &&
	test_expect_code 1 fsdp-verify links.h5 >out &&
	grep "^links.h5: " out | sort >have && test_cmp lost have &&
	fsdp-convert --to safetensors --rename g/a=a links.h5 a.safetensors >out &&
	sed -n "s/^note: \(links.h5: \)/\1/p" out | sort >have &&
	test_cmp lost have && fsdp-ls a.safetensors a &&
	cp any/new.h5 far.h5 && test_must_fail fsdp-ls links.h5 2>err &&
	grep "links.h5: /far is a link to /x in far.h5, which is not followed" err
'

test_expect_success 'many small chunks' '
	"$PYTHON" -c "
import h5py, numpy
f = h5py.File(\"many.h5\", \"w\")
a = numpy.arange(400000, dtype=\"i4\").reshape(1000, 400)
f.create_dataset(\"x\", data=a, chunks=(4, 4), compression=1)
f.create_dataset(\"y\", data=a)" &&
	fsdp-ls many.h5 x | grep 25000 &&
	fsdp-convert -q --to safetensors --include x many.h5 x.safetensors &&
	fsdp-convert -q --to safetensors --include y --rename y=x many.h5 \
		y.safetensors && cmp x.safetensors y.safetensors
'

# One bit in a chunk that has a checksum is always found, and wherever it is
# nothing crashes.
test_expect_success 'a flipped bit in encoded data' '
	fsdp-ls --json -l any/old.h5 all gzip tied sum >list &&
	sed -n "s/.*\"offset\": *\([0-9]*\),*/\1/p" list >offsets &&
	test $(wc -l <offsets) -gt 40 &&
	for at in $(awk "NR % 4 == 0" offsets); do
		cp any/old.h5 any/bad.h5 && flip any/bad.h5 $((at + 20)) &&
		test_expect_code 1 fsdp-verify any/bad.h5 >out &&
		grep "bad.h5.*encoded bytes" out &&
		test_must_fail fsdp-convert any/bad.h5 bad-out.h5 2>err &&
		test ! -e bad-out.h5 || return 1
	done
'

test_done
