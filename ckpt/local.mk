# libckptcore holds the objects, for the library and for unit tests.
noinst_LTLIBRARIES += libckptcore.la
lib_LTLIBRARIES += libfsdpckpt.la

include_HEADERS += \
	ckpt/fsdp_ckpt.h \
	ckpt/fsdp_layout.h \
	lib/util/fsdp_status.h
# End of include_HEADERS

libckptcore_la_SOURCES = \
	ckpt/catalog.c \
	ckpt/catalog.h \
	ckpt/catalog_box.c \
	ckpt/catalog_box.h \
	ckpt/codec.c \
	ckpt/codec.h \
	ckpt/commit.c \
	ckpt/commit.h \
	ckpt/commit_meet.c \
	ckpt/commit_private.h \
	ckpt/convert.c \
	ckpt/convert.h \
	ckpt/convert_choose.c \
	ckpt/convert_ranks.c \
	ckpt/convert_shape.c \
	ckpt/convert_show.c \
	ckpt/cut.c \
	ckpt/cut.h \
	ckpt/diff.c \
	ckpt/diff.h \
	ckpt/diff_pair.c \
	ckpt/diff_values.c \
	ckpt/decode.c \
	ckpt/decode.h \
	ckpt/dtype.c \
	ckpt/engine.c \
	ckpt/engine.h \
	ckpt/engine_finish.c \
	ckpt/engine_sums.c \
	ckpt/engine_sums.h \
	ckpt/files.c \
	ckpt/files.h \
	ckpt/format.c \
	ckpt/format.h \
	ckpt/format_find.c \
	ckpt/format/safetensors.c \
	ckpt/format/safetensors.h \
	ckpt/format/safetensors_write.c \
	ckpt/format/torch.c \
	ckpt/format/torch.h \
	ckpt/format/torch_dir.c \
	ckpt/format/torch_local.c \
	ckpt/format/torch_safetensors.c \
	ckpt/format/torch_save.c \
	ckpt/format/torch_save.h \
	ckpt/fsdp_ckpt.h \
	ckpt/fsdp_layout.h \
	ckpt/gather.c \
	ckpt/gather.h \
	ckpt/keep.c \
	ckpt/layout.c \
	ckpt/link.c \
	ckpt/link.h \
	ckpt/lustre.c \
	ckpt/lustre.h \
	ckpt/nest.c \
	ckpt/nest.h \
	ckpt/number.c \
	ckpt/pickle.c \
	ckpt/pickle.h \
	ckpt/pickle_tree.c \
	ckpt/pickle_tree.h \
	ckpt/plan.c \
	ckpt/plan.h \
	ckpt/ranks.c \
	ckpt/ranks.h \
	ckpt/read.c \
	ckpt/repair.c \
	ckpt/read_check.c \
	ckpt/read_check.h \
	ckpt/rules.c \
	ckpt/rules.h \
	ckpt/rules_apply.c \
	ckpt/rules_bind.c \
	ckpt/rules_builtin.c \
	ckpt/rules_moves.h \
	ckpt/rules_name.c \
	ckpt/rules_piece.c \
	ckpt/rules_use.c \
	ckpt/save.c \
	ckpt/save_message.c \
	ckpt/save_message.h \
	ckpt/target.c \
	ckpt/target.h \
	ckpt/target_grid.c \
	ckpt/target_sync.c \
	ckpt/tensor_hash.c \
	ckpt/tensor_hash.h \
	ckpt/unpack.c \
	ckpt/unpack.h \
	ckpt/value.c \
	ckpt/value.h \
	ckpt/verify.c \
	ckpt/verify.h \
	ckpt/torch_file.c \
	ckpt/torch_file.h \
	ckpt/torch_object.c \
	ckpt/torch_object.h \
	ckpt/torch_sharded.c \
	ckpt/torch_value.c \
	ckpt/torch_write.c \
	ckpt/torch_write.h \
	ckpt/verify_extra.c \
	ckpt/verify_manifest.c \
	ckpt/verify_pass.c \
	ckpt/verify_ranks.c \
	ckpt/verify_zip.c \
	ckpt/zip.c \
	ckpt/zip.h \
	ckpt/zip_write.c \
	ckpt/zip_write.h \
	lib/util/fsdp_status.h \
	lib/util/status.c
# End of libckptcore_la_SOURCES

libckptcore_la_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) $(JANSSON_CFLAGS) \
	$(ISAL_CFLAGS) $(ZSTD_CFLAGS)
libckptcore_la_LIBADD = $(HDF5_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) \
	$(ZSTD_LIBS) -lpthread -lm

libfsdpckpt_la_SOURCES =
libfsdpckpt_la_LIBADD = libckptcore.la libutil.la
libfsdpckpt_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(top_srcdir)/ckpt/libfsdpckpt.map
EXTRA_DIST += ckpt/libfsdpckpt.map

# The HDF5 formats.
libckptcore_la_SOURCES += \
	ckpt/box.c \
	ckpt/box.h \
	ckpt/format/hdf5.c \
	ckpt/format/hdf5_apart.c \
	ckpt/format/hdf5_apart.h \
	ckpt/format/hdf5_check.c \
	ckpt/format/hdf5_check.h \
	ckpt/format/hdf5_file.c \
	ckpt/format/hdf5_file.h \
	ckpt/format/hdf5_frame.c \
	ckpt/format/hdf5_frame.h \
	ckpt/format/hdf5_index.c \
	ckpt/format/hdf5_layout.c \
	ckpt/format/hdf5_layout.h \
	ckpt/format/hdf5_name.c \
	ckpt/format/hdf5_name.h \
	ckpt/format/hdf5_plain.c \
	ckpt/format/hdf5_plain_write.c \
	ckpt/format/hdf5_recover.c \
	ckpt/format/hdf5_recover.h \
	ckpt/format/hdf5_shard.c \
	ckpt/format/hdf5_table.c \
	ckpt/format/hdf5_table.h \
	ckpt/format/hdf5_trailer.c \
	ckpt/format/hdf5_trailer.h \
	ckpt/format/hdf5_util.c \
	ckpt/format/hdf5_util.h \
	ckpt/format/hdf5_value.c \
	ckpt/format/hdf5_value.h \
	ckpt/format/hdf5_write.h \
	ckpt/format/manifest.c \
	ckpt/format/manifest.h
# End of the HDF5 formats

libckptcore_la_SOURCES += \
	ckpt/format/adamw.c \
	ckpt/format/adamw.h \
	ckpt/format/dcp.c \
	ckpt/format/dcp_archive.c \
	ckpt/format/dcp_archive.h \
	ckpt/format/dcp_extra.c \
	ckpt/format/dcp_hf.c \
	ckpt/format/dcp_paths.c \
	ckpt/format/dcp_paths.h \
	ckpt/format/dcp_prepare.c \
	ckpt/format/dcp_reader.c \
	ckpt/format/dcp_reader.h \
	ckpt/format/dcp_write.c \
	ckpt/pickle_value.c \
	ckpt/pickle_write.c \
	ckpt/pickle_write.h \
	ckpt/format/dcp.h \
	ckpt/format/dcp_meta.c \
	ckpt/format/dcp_meta.h \
	ckpt/format/megatron.c \
	ckpt/format/megatron.h

# DeepSpeed and llm.c.
libckptcore_la_SOURCES += \
	ckpt/span.c \
	ckpt/span.h \
	ckpt/format/llmc.c \
	ckpt/format/llmc.h \
	ckpt/format/llmc_write.c \
	ckpt/format/universal.c \
	ckpt/format/universal.h \
	ckpt/format/universal_write.c \
	ckpt/format/zero.c \
	ckpt/format/zero.h \
	ckpt/format/zero_file.c \
	ckpt/format/zero_file.h \
	ckpt/format/zero_stage12.c \
	ckpt/format/zero_stage3.c
# End of DeepSpeed and llm.c
