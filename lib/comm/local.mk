libfsdpcore_la_SOURCES += lib/comm/comm.h
