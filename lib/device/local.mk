libfsdpcore_la_SOURCES += \
	lib/device/cpu.c \
	lib/device/device.h \
	lib/device/usage.c
