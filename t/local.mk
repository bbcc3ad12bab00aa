# TAP tests: compiled ones in t/unit, shell ones in t/tNNNN-topic.t.
TEST_EXTENSIONS = .t
T_LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) \
	$(top_srcdir)/build-aux/tap-driver.sh
AM_TESTS_ENVIRONMENT = \
	SHARNESS_SH='$(SHARNESS_SH)' FSDP_SRCDIR='$(abs_top_srcdir)' \
	FSDP_BUILDDIR='$(abs_top_builddir)' \
	SHARNESS_TEST_DIRECTORY='$(abs_top_builddir)/t' \
	SHARNESS_BUILD_DIRECTORY='$(abs_top_builddir)'; \
	export SHARNESS_SH FSDP_SRCDIR FSDP_BUILDDIR \
	SHARNESS_TEST_DIRECTORY SHARNESS_BUILD_DIRECTORY;

check_PROGRAMS += \
	t/unit/cli.t \
	t/unit/util.t
# End of check_PROGRAMS

# For each program that says nothing else: the unit tests.
LDADD = libnn.la libfsdpcore.la libckptcore.la libutil.la

t_unit_cli_t_SOURCES = t/unit/cli.c t/tap/tap.h
t_unit_cli_t_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
t_unit_cli_t_LDADD = libcli.la libckptcore.la libutil.la

t_unit_util_t_SOURCES = t/unit/util.c t/tap/tap.h

TESTS = $(check_PROGRAMS) $(dist_check_SCRIPTS)

clean-local:
	-rm -rf "trash directory".* test-results t/"trash directory".* \
		t/test-results

check-prove: all $(check_PROGRAMS)
	$(AM_TESTS_ENVIRONMENT) prove --exec '' --timer $(TESTS)
.PHONY: check-prove
