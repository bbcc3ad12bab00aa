noinst_LTLIBRARIES += libutil.la

libutil_la_SOURCES = \
	lib/util/buffer.c \
	lib/util/buffer.h \
	lib/util/check.h \
	lib/util/clock.h \
	lib/util/crc.c \
	lib/util/crc.h \
	lib/util/crew.c \
	lib/util/crew.h \
	lib/util/digest.c \
	lib/util/digest.h \
	lib/util/dir.c \
	lib/util/dir.h \
	lib/util/io.c \
	lib/util/io.h \
	lib/util/json_text.c \
	lib/util/json_text.h \
	lib/util/map.c \
	lib/util/map.h \
	lib/util/nearest.c \
	lib/util/nearest.h \
	lib/util/select.c \
	lib/util/select.h \
	lib/util/simd.c \
	lib/util/simd.h \
	lib/util/size.c \
	lib/util/size.h \
	lib/util/slice.c \
	lib/util/slice.h \
	lib/util/text.h
# End of libutil_la_SOURCES

libutil_la_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
libutil_la_LIBADD = $(ISAL_LIBS) $(JANSSON_LIBS)
