# libfsdpcore holds the objects, for the library and for unit tests.
noinst_LTLIBRARIES += libfsdpcore.la
lib_LTLIBRARIES += libfsdp.la

include_HEADERS += lib/fsdp.h

libfsdpcore_la_SOURCES = lib/fsdp.h
include $(top_srcdir)/lib/job/local.mk
include $(top_srcdir)/lib/comm/local.mk
include $(top_srcdir)/lib/device/local.mk
include $(top_srcdir)/lib/shard/local.mk

libfsdpcore_la_CPPFLAGS = $(AM_CPPFLAGS) -DFSDP_MODULE_DIR='"$(pkglibdir)"' \
	 $(PMIX_CFLAGS) $(JANSSON_CFLAGS)
libfsdpcore_la_LIBADD = $(PMIX_LIBS) $(JANSSON_LIBS) -lpthread -ldl -lm

libfsdp_la_SOURCES =
libfsdp_la_LIBADD = libfsdpcore.la libfsdpckpt.la libutil.la
libfsdp_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 -no-undefined \
	-Wl,--version-script=$(top_srcdir)/lib/libfsdp.map
EXTRA_DIST += lib/libfsdp.map
