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
