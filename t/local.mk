# TAP tests: compiled ones in t/unit, shell ones in t/tNNNN-topic.t.
TEST_EXTENSIONS = .t
T_LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) \
	$(top_srcdir)/build-aux/tap-driver.sh
AM_TESTS_ENVIRONMENT = \
	SHARNESS_SH='$(SHARNESS_SH)' FSDP_SRCDIR='$(abs_top_srcdir)' \
	FSDP_BUILDDIR='$(abs_top_builddir)' \
	FSDP_MODULE_PATH='$(abs_top_builddir)/.libs' \
	SHARNESS_TEST_DIRECTORY='$(abs_top_builddir)/t' \
	SHARNESS_BUILD_DIRECTORY='$(abs_top_builddir)' \
	ASAN_OPTIONS="fast_unwind_on_malloc=0:exitcode=99:$$ASAN_OPTIONS" \
	LSAN_OPTIONS='suppressions=$(abs_top_srcdir)/t/lsan.supp:print_suppressions=0' \
	UBSAN_OPTIONS="print_stacktrace=1:exitcode=99:$$UBSAN_OPTIONS"; \
	export ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS SHARNESS_SH \
	FSDP_SRCDIR FSDP_BUILDDIR FSDP_MODULE_PATH SHARNESS_TEST_DIRECTORY \
	SHARNESS_BUILD_DIRECTORY;

check_PROGRAMS += \
	t/unit/attention.t \
	t/unit/data.t \
	t/unit/gpt2.t \
	t/unit/layers.t \
	t/unit/matmul.t \
	t/unit/catalog.t \
	t/unit/codec.t \
	t/unit/convert.t \
	t/unit/box_piece.t \
	t/unit/engine.t \
	t/unit/cli.t \
	t/unit/comm.t \
	t/unit/digest.t \
	t/unit/grid.t \
	t/unit/job.t \
	t/unit/kernels.t \
	t/unit/layout.t \
	t/unit/number.t \
	t/unit/select.t \
	t/unit/shard.t \
	t/unit/sum_tree.t \
	t/unit/llmc.t \
	t/unit/safetensors.t \
	t/unit/save.t \
	t/unit/tools.t \
	t/unit/util.t
# End of check_PROGRAMS

# Programs of shell tests.
noinst_PROGRAMS = \
	t/ckpt-damage \
	t/ckpt-make \
	t/ckpt-reseal \
	t/job-ring \
	t/shard-toy
# End of noinst_PROGRAMS

dist_check_SCRIPTS += \
	t/t0001-headers.t \
	t/t0002-man.t \
	t/t0003-scripts.t \
	t/t0004-install.t \
	t/t1001-job.t \
	t/t1101-bits.t \
	t/t1102-order.t \
	t/t1103-state.t \
	t/t1201-train.t \
	t/t1202-replay.t \
	t/t2101-h5py.t \
	t/t2201-faults.t \
	t/t2202-room.t \
	t/t2203-fault-writers.t \
	t/t2204-modes.t \
	t/t2301-samples.t \
	t/t2303-dcp.t \
	t/t2304-deepspeed.t \
	t/t2305-fuzz.t \
	t/t2306-zstd.t \
	t/t2307-damage.t \
	t/t2308-hostile.t \
	t/t2309-dcp-hf.t \
	t/t2310-torch.t \
	t/t2311-python.t \
	t/t2312-hdf5-any.t \
	t/t2315-universal.t \
	t/t2316-chains-dcp.t \
	t/t2317-chains-fsdp.t \
	t/t2318-chains-plain.t \
	t/t2319-chains-others.t \
	t/t2320-rules.t \
	t/t2321-llmc.t \
	t/t2322-hdf5-damage.t \
	t/t2325-odd.t \
	t/t2326-names.t \
	t/t3001-ls.t \
	t/t3002-verify.t \
	t/t3003-diff.t \
	t/t3004-convert.t \
	t/t3005-usage.t \
	t/t3006-examples.t \
	t/t3007-prune.t \
	t/t3008-ranks.t \
	t/t3010-targets.t \
	t/t3011-repair.t \
	t/t3012-paths.t \
	t/t3013-virtual.t \
	t/t3014-link.t \
	t/t3015-ends.t \
	t/t3018-verify-ranks.t \
	t/t3019-lustre.t \
	t/t3020-parts.t \
	t/t3021-decode-ranks.t \
	t/t3030-verify-files.t \
	t/t4000-cluster.t \
	t/t4001-rendezvous.t \
	t/t4101-train-slurm.t \
	t/t4102-tools-slurm.t \
	t/t8001-golden.t \
	t/t9001-kill.t \
	t/t9002-bits.t
# End of dist_check_SCRIPTS

# For each program that says nothing else: the unit tests.
LDADD = libnn.la libfsdpcore.la libckptcore.la libutil.la

t_unit_cli_t_SOURCES = t/unit/cli.c t/tap/tap.h
t_unit_cli_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_cli_t_LDADD = libcli.la libckptcore.la libutil.la

t_ckpt_damage_SOURCES = t/ckpt-damage.c
t_ckpt_damage_CPPFLAGS = $(AM_CPPFLAGS) $(CRYPTO_CFLAGS)
t_ckpt_damage_LDADD = libckptcore.la libutil.la $(CRYPTO_LIBS)

t_ckpt_make_SOURCES = t/ckpt-make.c
t_ckpt_make_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_ckpt_make_LDADD = libcli.la libutil.la libfsdpckpt.la $(JANSSON_LIBS)

t_ckpt_reseal_SOURCES = t/ckpt-reseal.c
t_ckpt_reseal_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_ckpt_reseal_LDADD = libutil.la libfsdpckpt.la $(JANSSON_LIBS)

t_job_ring_SOURCES = t/job-ring.c

t_shard_toy_SOURCES = t/shard-toy.c
t_unit_job_t_SOURCES = t/unit/job.c t/tap/tap.h
t_unit_comm_t_SOURCES = t/unit/comm.c t/tap/tap.h

t_unit_catalog_t_SOURCES = t/unit/catalog.c t/tap/tap.h

t_unit_engine_t_SOURCES = t/unit/engine.c t/tap/tap.h

t_unit_codec_t_SOURCES = t/unit/codec.c t/tap/tap.h
t_unit_codec_t_LDADD = libckptcore.la libutil.la
t_unit_box_piece_t_SOURCES = t/unit/box_piece.c t/tap/tap.h
t_unit_box_piece_t_LDADD = libckptcore.la libutil.la

t_unit_convert_t_SOURCES = t/unit/convert.c t/tap/tap.h
t_unit_convert_t_LDADD = libckptcore.la libutil.la

t_unit_grid_t_SOURCES = t/unit/grid.c t/tap/tap.h
t_unit_grid_t_LDADD = libckptcore.la libutil.la

t_unit_layout_t_SOURCES = t/unit/layout.c t/tap/tap.h

t_unit_number_t_SOURCES = t/unit/number.c t/tap/tap.h
t_unit_number_t_LDADD = libckptcore.la libutil.la

t_unit_select_t_SOURCES = t/unit/select.c t/tap/tap.h
t_unit_select_t_LDADD = libutil.la libckptcore.la

t_unit_digest_t_SOURCES = t/unit/digest.c t/tap/tap.h
t_unit_kernels_t_SOURCES = t/unit/kernels.c t/tap/tap.h
t_unit_shard_t_SOURCES = t/unit/shard.c t/tap/tap.h
t_unit_sum_tree_t_SOURCES = t/unit/sum_tree.c t/tap/tap.h
t_unit_llmc_t_SOURCES = t/unit/llmc.c t/tap/tap.h

t_unit_safetensors_t_SOURCES = t/unit/safetensors.c t/tap/tap.h
t_unit_safetensors_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) \
	$(CRYPTO_CFLAGS)
t_unit_safetensors_t_LDADD = libckptcore.la libutil.la $(JANSSON_LIBS) \
	$(CRYPTO_LIBS)
t_unit_save_t_SOURCES = t/unit/save.c t/tap/tap.h

# The model kit; its kernels need nothing of the runtime.
NN_TEST_CFLAGS = $(AM_CFLAGS) -Wno-psabi
NN_TEST_LDADD = libnn.la libckptcore.la libutil.la
t_unit_attention_t_SOURCES = t/unit/attention.c t/tap/tap.h
t_unit_attention_t_CFLAGS = $(NN_TEST_CFLAGS)
t_unit_attention_t_LDADD = $(NN_TEST_LDADD)
t_unit_data_t_SOURCES = t/unit/data.c t/tap/tap.h
t_unit_data_t_LDADD = $(NN_TEST_LDADD)
t_unit_gpt2_t_SOURCES = t/unit/gpt2.c t/tap/tap.h
t_unit_gpt2_t_CFLAGS = $(NN_TEST_CFLAGS)
t_unit_gpt2_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_layers_t_SOURCES = t/unit/layers.c t/tap/tap.h
t_unit_layers_t_CFLAGS = $(NN_TEST_CFLAGS)
t_unit_layers_t_LDADD = $(NN_TEST_LDADD)
EXTRA_PROGRAMS += t/bench-ckpt t/bench-gpt2
t_bench_ckpt_SOURCES = t/bench-ckpt.c
t_bench_ckpt_LDADD = libckptcore.la libutil.la
t_bench_gpt2_SOURCES = t/bench-gpt2.c
t_bench_gpt2_CFLAGS = $(NN_TEST_CFLAGS)
t_unit_matmul_t_SOURCES = t/unit/matmul.c t/tap/tap.h
t_unit_matmul_t_CFLAGS = $(NN_TEST_CFLAGS)
t_unit_matmul_t_LDADD = $(NN_TEST_LDADD)

t_unit_tools_t_SOURCES = t/unit/tools.c t/tap/tap.h
t_unit_tools_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_tools_t_LDADD = libtools.la libckptcore.la libutil.la

t_unit_util_t_SOURCES = t/unit/util.c t/tap/tap.h
t_unit_util_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_util_t_LDADD = libutil.la libckptcore.la

TESTS = $(check_PROGRAMS) $(dist_check_SCRIPTS)

EXTRA_DIST += \
	t/README.md \
	t/lsan.supp \
	t/sharness.d/01-setup.sh \
	t/sharness.d/02-mpi.sh \
	t/sharness.d/03-slurm.sh \
	t/sharness.d/04-ckpt.sh \
	t/sharness.d/04-train.sh \
	t/sharness.d/05-chain.sh \
	t/sharness.d/06-ranks.sh \
	t/sharness.d/fault.sh
# End of EXTRA_DIST

clean-local:
	-rm -rf "trash directory".* test-results t/"trash directory".* \
		t/test-results

# All tests, or those of PROVE_TESTS, under prove: ends with its one line.
PROVE_TESTS = $(TESTS)
PROVE_FLAGS = --timer --failures
prove:
	@$(AM_TESTS_ENVIRONMENT) \
	for t in $(PROVE_TESTS); do \
		test -e "$$t" && echo "$$t" || echo "$(srcdir)/$$t"; \
	done | prove --exec '' $(PROVE_FLAGS) -

check-programs: $(check_PROGRAMS) $(check_LTLIBRARIES)
check-prove: all
	@$(MAKE) check-programs
	@$(MAKE) prove

print-tests:
	@printf '%s\n' $(check_PROGRAMS) $(dist_check_SCRIPTS)

print-programs:
	@printf '%s\n' $(bin_PROGRAMS)

print-headers:
	@printf '%s\n' $(include_HEADERS)

.PHONY: check-programs check-prove print-headers print-programs print-tests \
	prove

# The HDF5 formats.
check_PROGRAMS += \
	t/unit/box.t \
	t/unit/hdf5.t \
	t/unit/hdf5_apart.t \
	t/unit/hdf5_name.t \
	t/unit/hdf5_plain.t
# End of the HDF5 formats' programs

t_unit_box_t_SOURCES = t/unit/box.c t/tap/tap.h
t_unit_box_t_LDADD = libckptcore.la libutil.la
t_unit_hdf5_t_SOURCES = t/unit/hdf5.c t/unit/ckpt_spec.h t/tap/tap.h
t_unit_hdf5_t_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS)
t_unit_hdf5_t_LDADD = libckptcore.la libutil.la $(HDF5_LIBS)
t_unit_hdf5_apart_t_SOURCES = t/unit/hdf5_apart.c t/tap/tap.h
t_unit_hdf5_apart_t_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS)
t_unit_hdf5_apart_t_LDADD = libckptcore.la libutil.la $(HDF5_LIBS)
t_unit_hdf5_plain_t_SOURCES = t/unit/hdf5_plain.c t/unit/ckpt_spec.h \
	t/tap/tap.h
t_unit_hdf5_plain_t_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS)
t_unit_hdf5_plain_t_LDADD = libckptcore.la libutil.la $(HDF5_LIBS)
t_unit_hdf5_name_t_SOURCES = t/unit/hdf5_name.c t/tap/tap.h
t_unit_hdf5_name_t_LDADD = libckptcore.la libutil.la

EXTRA_DIST += \
	t/dcp-zstd.py \
	t/hdf5-any.py \
	t/read-checkpoint.py \
	t/torch-state.py \
	t/data/ckpt-v1/chunk-w3/index.h5 \
	t/data/ckpt-v1/chunk-w3/manifest.json \
	t/data/ckpt-v1/chunk-w3/shard-00000.h5 \
	t/data/ckpt-v1/chunk-w3/shard-00001.h5 \
	t/data/ckpt-v1/chunk-w3/shard-00002.h5 \
	t/data/ckpt-v1/full-w2/index.h5 \
	t/data/ckpt-v1/full-w2/manifest.json \
	t/data/ckpt-v1/full-w2/shard-00000.h5 \
	t/data/ckpt-v1/full-w2/shard-00001.h5 \
	t/data/ckpt-v1/hybrid-w4/index.h5 \
	t/data/ckpt-v1/hybrid-w4/manifest.json \
	t/data/ckpt-v1/hybrid-w4/shard-00000.h5 \
	t/data/ckpt-v1/hybrid-w4/shard-00001.h5 \
	t/data/ckpt-v1/hybrid-w4/shard-00002.h5 \
	t/data/ckpt-v1/hybrid-w4/shard-00003.h5 \
	t/data/ckpt-v1/plain.h5 \
	t/data/ckpt-v1/sums.txt \
	t/data/ckpt-v1/values.h5 \
	t/data/ckpt-v1/values.json \
	t/data/fuzz
# End of the golden files
noinst_PROGRAMS += t/ckpt-golden
t_ckpt_golden_SOURCES = t/ckpt-golden.c
t_ckpt_golden_LDADD = libckptcore.la libutil.la $(CRYPTO_LIBS)

# Preloaded by t2201.
check_LTLIBRARIES += t/libfault.la
t_libfault_la_SOURCES = t/fault.c
t_libfault_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
t_libfault_la_LIBADD = -ldl
t_libfault_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

# Preloaded by t3019.
check_LTLIBRARIES += t/liblustre.la
t_liblustre_la_SOURCES = t/lustre.c
t_liblustre_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
t_liblustre_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

# Preloaded by t3014.
check_LTLIBRARIES += t/libclone.la
t_libclone_la_SOURCES = t/clone.c
t_libclone_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
t_libclone_la_LIBADD = -ldl
t_libclone_la_LDFLAGS = -module -avoid-version -shared -rpath /nowhere

# Files of torch.save.
check_PROGRAMS += \
	t/unit/pickle.t \
	t/unit/zip.t
# End of the programs of torch.save

t_unit_pickle_t_SOURCES = t/unit/pickle.c t/tap/tap.h
t_unit_pickle_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_pickle_t_LDADD = libckptcore.la libutil.la $(JANSSON_LIBS)
t_unit_zip_t_SOURCES = t/unit/zip.c t/tap/tap.h
t_unit_zip_t_LDADD = libckptcore.la libutil.la

# Fuzz targets: replayed here on a corpus; with libFuzzer by t/fuzz/build.sh.
FUZZ_LDADD = libckptcore.la libutil.la
noinst_PROGRAMS += \
	t/fuzz/pack \
	t/fuzz/replay-dcp \
	t/fuzz/replay-dir \
	t/fuzz/replay-file \
	t/fuzz/replay-pickle
t_fuzz_pack_SOURCES = t/fuzz/pack.c
t_fuzz_pack_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_fuzz_pack_LDADD = libutil.la libckptcore.la $(JANSSON_LIBS)
t_fuzz_replay_dcp_SOURCES = t/fuzz/fuzz-dcp.c t/fuzz/fuzz.h t/fuzz/replay.c \
	t/fuzz/use.c
t_fuzz_replay_dcp_LDADD = $(FUZZ_LDADD)
t_fuzz_replay_dir_SOURCES = t/fuzz/crc.c t/fuzz/fuzz-dir.c t/fuzz/fuzz.h \
	t/fuzz/replay.c t/fuzz/use.c
t_fuzz_replay_dir_LDADD = $(FUZZ_LDADD)
t_fuzz_replay_file_SOURCES = t/fuzz/crc.c t/fuzz/fuzz-file.c t/fuzz/fuzz.h \
	t/fuzz/replay.c t/fuzz/use.c
t_fuzz_replay_file_LDADD = $(FUZZ_LDADD)
t_fuzz_replay_pickle_SOURCES = t/fuzz/fuzz-pickle.c t/fuzz/fuzz.h \
	t/fuzz/replay.c
t_fuzz_replay_pickle_LDADD = $(FUZZ_LDADD)
