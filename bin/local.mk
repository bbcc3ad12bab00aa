# The programs: one file each, thin over the public headers.

# libcli is what they share.
noinst_LTLIBRARIES += libcli.la

libcli_la_SOURCES = \
	bin/cli.c \
	bin/cli.h \
	bin/progress.c \
	bin/progress.h \
	bin/table.c \
	bin/table.h
# End of libcli_la_SOURCES

libcli_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
libcli_la_LIBADD = $(JANSSON_LIBS) -lpthread -lm

# libtools is what the checkpoint tools share besides.
noinst_LTLIBRARIES += libtools.la

libtools_la_SOURCES = \
	bin/stats.c \
	bin/stats.h \
	bin/tool.c \
	bin/tool.h \
	bin/view.c \
	bin/view.h \
	lib/job/launch.c \
	lib/job/launch.h
# End of libtools_la_SOURCES

libtools_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
libtools_la_LIBADD = libcli.la

ckpt_tool_LDADD = libtools.la libfsdpckpt.la libutil.la
ckpt_tool_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)

bin_PROGRAMS += \
	bin/fsdp-consolidate \
	bin/fsdp-convert \
	bin/fsdp-diff \
	bin/fsdp-latest \
	bin/fsdp-ls \
	bin/fsdp-prune \
	bin/fsdp-reshard \
	bin/fsdp-verify
# End of bin_PROGRAMS

bin_fsdp_consolidate_SOURCES = bin/fsdp-consolidate.c bin/convert.c bin/convert.h \
	bin/convert_rules.c
bin_fsdp_consolidate_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_consolidate_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_convert_SOURCES = bin/fsdp-convert.c bin/convert.c bin/convert.h \
	bin/convert_rules.c
bin_fsdp_convert_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_convert_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_reshard_SOURCES = bin/fsdp-reshard.c bin/convert.c bin/convert.h \
	bin/convert_rules.c
bin_fsdp_reshard_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_reshard_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_diff_SOURCES = bin/fsdp-diff.c
bin_fsdp_diff_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_diff_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_latest_SOURCES = bin/fsdp-latest.c
bin_fsdp_latest_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_latest_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_prune_SOURCES = bin/fsdp-prune.c
bin_fsdp_prune_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_prune_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_ls_SOURCES = bin/fsdp-ls.c
bin_fsdp_ls_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_ls_LDADD = $(ckpt_tool_LDADD)

bin_fsdp_verify_SOURCES = bin/fsdp-verify.c
bin_fsdp_verify_CPPFLAGS = $(ckpt_tool_CPPFLAGS)
bin_fsdp_verify_LDADD = $(ckpt_tool_LDADD)

bin_PROGRAMS += bin/fsdp-train

bin_fsdp_train_SOURCES = \
	bin/fsdp-train.c \
	bin/train.h \
	bin/train_config.c \
	bin/train_loop.c \
	bin/train_replay.c \
	bin/train_report.c \
	bin/train_sample.c \
	bin/train_setup.c
# End of bin_fsdp_train_SOURCES

bin_fsdp_train_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
bin_fsdp_train_LDADD = libcli.la libnn.la libfsdp.la libfsdpckpt.la \
	libutil.la $(JANSSON_LIBS) -lm
