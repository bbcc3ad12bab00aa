libfsdpcore_la_SOURCES +=
