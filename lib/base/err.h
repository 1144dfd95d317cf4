/*
 * This room, lib/base, is the foundation of all other rooms: error messages, checked sizes and
 * memory, number types, random numbers, threads and a clock.  It depends only on the C
 * library, pthreads and Random123, and includes no other room.  It is in lib/ although formats/ and
 * kernels/ include it too, because the top level of the tree is fixed.  In reading order: err, mem,
 * dtype, scaled (codes with scales), rng, pool, signals, fatal, clock, trace (events, for
 * debugging), isa, vector; for text: names (sorted records), modules (names in
 * quantization_config), utf8, printable, units.
 *
 * Errors.  A function that can fail for an external reason (a file, a device, an option) returns
 * FM_OK or one of the codes below.  On failure it also writes one complete sentence to the caller's
 * struct fm_err.  A programming error is an assert, which is enabled in every build.
 *
 * The codes are the exit statuses of the tools, so no translation is needed.  fm(7) lists those
 * that are worth a retry: 69, 71, 74, 75, 79.
 */
#ifndef FM_BASE_ERR_H
#define FM_BASE_ERR_H

enum fm_code {
    FM_OK = 0,
    FM_EDIFF = 1,    /* the check ran and found a mismatch */
    FM_EUSAGE = 2,   /* the command line is wrong */
    FM_EFORMAT = 65, /* malformed, hostile or truncated input */
    FM_ENOENT = 66,  /* an input is missing */
    FM_EDEVICE = 69, /* the device or instruction set is not available */
    FM_EBUG = 70,    /* an internal error was detected */
    FM_ENOMEM = 71,  /* out of memory */
    FM_ECREATE = 73, /* cannot create the output, or it exists */
    FM_EIO = 74,     /* read, write, fsync or close failed */
    FM_ESAVED = 75,  /* interrupted, state saved: run the same command again */
    FM_EPERM = 77,   /* permission denied */
    FM_ECONFIG = 78, /* a model or option that is well formed but not supported */
    FM_ELOCKED = 79, /* another process is using this file */
    FM_EPIPE = 141   /* the reader of our output closed the pipe */
};

#define FM_ERR_TEXT_BYTES 1024

/*
 * What the user can do about a failure, if a tool has an option for it.  The rooms where errors
 * occur do not use option names, so they set only a kind of advice; cmd/cli.c adds the words: "'x'
 * exists" with FM_ADVISE_REPLACE is printed as "'x' exists; use --force to replace it".
 */
enum fm_advice {
    FM_ADVISE_NONE,
    FM_ADVISE_LESS_MEMORY, /* use less memory or smaller batches */
    FM_ADVISE_FEWER_THREADS,
    FM_ADVISE_FLOAT32, /* compute in float32 */
    FM_ADVISE_REPLACE, /* replace the file that exists */
    FM_ADVISE_CARRY, /* a carried file is a link: replace it with a copy, or name it in an option */
    FM_ADVISE_DECOMPRESS,
    FM_ADVISE_ROWS,            /* divide a long text into rows of JSON */
    FM_ADVISE_TEXT_FIELD,      /* name the field of a row that holds its text */
    FM_ADVISE_OTHER_TOKENIZER, /* encode the text with another command, or supply tokens */
    FM_ADVISE_TOKEN_TYPE,      /* state the type of raw tokens */
    FM_ADVISE_TEXT,            /* supply the file as text */
    FM_ADVISE_TOKENS_OR_TEXT,  /* supply another file */
    FM_ADVICES
};

/* Zero it (`struct fm_err err = {0}`) before the first call. */
struct fm_err {
    int code;
    enum fm_advice advice; /* set it after the sentence: fm_fail clears it */
    char text[FM_ERR_TEXT_BYTES];
};

#if defined(__GNUC__)
#define FM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define FM_PRINTF(f, a)
#endif

/*
 * Set code and sentence; return code.  The sentence is lower case, has no full stop, and names
 * file, value, limit and remedy if they are known.  Control bytes, which a terminal would
 * interpret, are replaced by '?'.
 */
int fm_fail(struct fm_err *err, int code, const char *fmt, ...) FM_PRINTF(3, 4);

/*
 * Like fm_fail, but chooses the code from errno and appends strerror(errno): ENOENT/ENOTDIR 66,
 * EACCES/EPERM/EROFS 77, ENOMEM 71, EPIPE 141, EEXIST 73, else 74.
 */
int fm_fail_errno(struct fm_err *err, const char *fmt, ...) FM_PRINTF(2, 3);

/* Add advice to the error that was set last; returns err->code. */
int fm_advise(struct fm_err *err, enum fm_advice advice);

/* Prefix the existing sentence with "context: "; returns err->code. */
int fm_within(struct fm_err *err, const char *fmt, ...) FM_PRINTF(2, 3);

#endif
