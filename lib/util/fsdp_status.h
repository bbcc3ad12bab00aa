/*
 * Status codes and error text shared by every room of the project.
 *
 * A function that can fail returns fsdp_status_t and takes an optional
 * fsdp_error_t as its last argument.  The function that first decides which
 * error it is fills the text; callers pass both up unchanged.
 */
#ifndef FSDP_STATUS_H
#define FSDP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_API __attribute__((visibility("default")))

/* Values are append-only and never reused: they appear in logs and tests. */
typedef enum {
    FSDP_OK = 0,

    /* The call cannot be carried out; nothing else is affected. */
    FSDP_ERR_INVALID_PARAM = -1,
    FSDP_ERR_NO_MEMORY = -2,
    FSDP_ERR_OVERFLOW = -3,
    FSDP_ERR_UNSUPPORTED = -4,
    FSDP_ERR_BAD_STATE = -5, /* a call out of order */
    FSDP_ERR_CONFIG = -6,    /* settings that do not fit each other */
    FSDP_ERR_CANCELLED = -7, /* the caller's callback asked to stop */

    /* A file or checkpoint cannot be used. */
    FSDP_ERR_IO = -20,
    FSDP_ERR_CORRUPT = -21,   /* it is damaged, or not what it claims to be */
    FSDP_ERR_NOT_FOUND = -22, /* no such file, checkpoint or tensor */
    FSDP_ERR_EXISTS = -23,    /* the target is there already */
    FSDP_ERR_BAD_DATA = -24,  /* training text or tokens cannot be used */

    /* The job cannot go on. */
    FSDP_ERR_PEER_LOST = -40,   /* a rank is gone or did not come in time */
    FSDP_ERR_NO_LAUNCHER = -41, /* no usable rendezvous */
    FSDP_ERR_MISMATCH = -42,    /* the ranks do not do the same thing */
    FSDP_ERR_SIGNALLED = -43    /* SIGTERM came while waiting for peers */
} fsdp_status_t;

/* The programs' exit codes; EXIT STATUS in each man page says the same. */
typedef enum {
    FSDP_EXIT_DONE = 0,
    FSDP_EXIT_DIFFERS = 1,
    FSDP_EXIT_TROUBLE = 2,
    FSDP_EXIT_USAGE = 64,
    FSDP_EXIT_BAD_DATA = 65,
    FSDP_EXIT_UNAVAILABLE = 69,
    FSDP_EXIT_IO = 74,
    FSDP_EXIT_AGAIN = 75,
    FSDP_EXIT_CONFIG = 78,
    FSDP_EXIT_HOLD = 93
} fsdp_exit_t;

typedef struct {
    fsdp_status_t status;
    int sys_errno;  /* errno of the failing call, or 0 */
    int rank;       /* the rank that failed, or -1 */
    char text[500]; /* one line, no newline: what failed, on what, the cure */
} fsdp_error_t;

/**
 * Fill @a err and return its status, so that a caller can write
 * `return fsdp_error_set(err, FSDP_ERR_IO, "cannot open %s: %m", path);`.
 * errno is stored in @a err and left as it was.
 *
 * @param err     May be NULL: then only the status is returned.
 * @param status  Not FSDP_OK.
 */
__attribute__((format(printf, 3, 4))) FSDP_API fsdp_status_t fsdp_error_set(
    fsdp_error_t *err, fsdp_status_t status, const char *fmt, ...);

/* The name of a status, such as "corrupt"; "unknown" for any other value. */
FSDP_API const char *fsdp_status_name(fsdp_status_t status);

/* The exit code that a program ends with on this status. */
FSDP_API fsdp_exit_t fsdp_status_exit(fsdp_status_t status);

#ifdef __cplusplus
}
#endif

#endif
