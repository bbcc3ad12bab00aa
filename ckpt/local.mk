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
	ckpt/commit.h \
	ckpt/dtype.c \
	ckpt/engine.h \
	ckpt/format.h \
	ckpt/fsdp_ckpt.h \
	ckpt/fsdp_layout.h \
	ckpt/layout.c \
	ckpt/number.c \
	ckpt/plan.h \
	lib/util/fsdp_status.h \
	lib/util/status.c
# End of libckptcore_la_SOURCES

libckptcore_la_CPPFLAGS = $(AM_CPPFLAGS) $(HDF5_CFLAGS) $(JANSSON_CFLAGS)
libckptcore_la_LIBADD = $(HDF5_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) -lpthread -lm

libfsdpckpt_la_SOURCES =
libfsdpckpt_la_LIBADD = libckptcore.la libutil.la
libfsdpckpt_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(top_srcdir)/ckpt/libfsdpckpt.map
EXTRA_DIST += ckpt/libfsdpckpt.map
