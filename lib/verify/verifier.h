/*
 * A verification in the making: findings, counts, and the scan of bytes that the checks
 * of bundles and of exports share.  Only lib/verify*.c include this.
 */
#ifndef FM_VERIFIER_H
#define FM_VERIFIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/file/file.h"
#include "formats/file/spool.h"
#include "lib/run/taskgroup.h"
#include "lib/stage/segments.h"
#include "lib/verify/verify.h"

/* One line for the user.  Tasks find in any order; lines come in order of `place`. */
struct fm_finding {
    size_t place, number;
    char *item, *what;
};

struct fm_verifier {
    const struct fm_run_options *run;
    const struct fm_verify_options *options;
    struct fm_verify_report *report;
    int dir; /* of an export: the directory, open throughout, so that all is read from one */
    struct fm_taskgroup tasks;
    pthread_mutex_t lock; /* of everything below, while tasks run */
    struct fm_finding *finding;
    size_t findings, capacity;
    bool differs;           /* bytes are not those of a checksum */
    bool malformed;         /* checksums hold, and the content is invalid */
    int machine;            /* FM_EIO or FM_ENOMEM where an item could not be looked at; else 0 */
    struct fm_err lost;     /* memory for a finding ran out */
    struct fm_spool *spool; /* scans read from here, in order of the bytes; NULL: from files */
    /* Of an export, for the check of its function: (M, E) channels that it computes with; owned. */
    uint32_t *served;
    bool all_resident; /* it has them all, and `served` is the member to start with */
    bool rest_decoded; /* experts are codes, and all else that was codes is their values, rounded */
};

/* The code of a finding that `err` describes: that of the machine's fault, else `otherwise`. */
static inline int fm_verifier_code(const struct fm_err *err, int otherwise)
{
    return err->code == FM_EIO || err->code == FM_ENOMEM ? err->code : otherwise;
}

/* Add a finding: FM_EDIFF where bytes differ, FM_EFORMAT where they are malformed, FM_EIO and
 * FM_ENOMEM where they could not be looked at. */
void fm_verifier_find(struct fm_verifier *v, size_t place, int code, const char *item,
                      const char *fmt, ...) FM_PRINTF(5, 6);

/* n items, `bytes` of them, were looked at. */
void fm_verifier_count(struct fm_verifier *v, uint64_t items, uint64_t bytes);

/* Forget everything found so far, and the counts with it. */
void fm_verifier_forget(struct fm_verifier *v);

/* What a scan found wrong with a span. */
enum fm_scan_fault {
    FM_SCAN_DIFFERS = 1 << 0,   /* it has another digest */
    FM_SCAN_NOT_FINITE = 1 << 1 /* it has a value that is not finite */
};

/*
 * Read [at, at + size) of a file once, in pieces that stay in the cache, and do what is wanted
 * with each: add it to `whole` (not NULL), look for values that are not finite, and compare spans
 * with their digests.  Spans lie one after another and end at `size`; span i has
 * bound[i % bounds + 1] - bound[i % bounds] channels, whose groups have unit_bytes each, which is
 * how the segments of one expert after another lie.
 */
struct fm_scan {
    const struct fm_file *file;
    uint64_t at, size;
    struct fm_hasher *whole;
    int dtype;                      /* a weight dtype, F8_E4M3, or -1: values are not looked at */
    const struct fm_digest *digest; /* (spans) */
    size_t spans;                   /* 0: none is compared, and no value looked at */
    const int32_t *bound;           /* (bounds + 1) from 0; NULL: one span, all of it */
    size_t bounds;
    int group; /* channels of a group */
    uint64_t unit_bytes;
    unsigned char *found; /* (spans) bits of enum fm_scan_fault are set in it */
};
int fm_verifier_scan(struct fm_verifier *v, const struct fm_scan *s, struct fm_err *err);

/*
 * Open a bundle of which only the beginning has come.  The members before the weights have their
 * digests in the manifest, which comes first; those of the weights come last.  So the first are
 * kept and opened while the others are still on their way.  Whatever is not as it should be here is
 * kept whole, and reported by the checks of a file.
 */
int fm_verifier_open_stream(struct fm_bundle *b, struct fm_spool *s, struct fm_err *err);

int fm_verify_bundle(struct fm_verifier *v, struct fm_err *err);
int fm_verify_export(struct fm_verifier *v, struct fm_err *err);
int fm_verify_table(struct fm_verifier *v, struct fm_err *err);
int fm_verify_function(struct fm_verifier *v, struct fm_err *err);

#endif
