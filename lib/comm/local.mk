libfsdpcore_la_SOURCES += \
	lib/comm/collective.c \
	lib/comm/comm.c \
	lib/comm/comm.h \
	lib/comm/comm_private.h \
	lib/comm/module.c \
	lib/comm/pages.c \
	lib/comm/pages.h \
	lib/comm/self.c
# End of libfsdpcore_la_SOURCES

if HAVE_MPI
pkglib_LTLIBRARIES += fsdp_comm_mpi.la
endif
fsdp_comm_mpi_la_SOURCES = lib/comm/comm.h lib/comm/mpi.c lib/comm/pages.c \
	lib/comm/pages.h lib/util/status.c
fsdp_comm_mpi_la_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
fsdp_comm_mpi_la_LIBADD = $(MPI_LIBS)
fsdp_comm_mpi_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-export-symbols-regex '^fsdp_comm_module$$'
