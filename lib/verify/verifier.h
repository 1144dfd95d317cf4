/*
 * A verification in progress: findings, counts, and the scan of bytes that the checks of bundles
 * and of exports share.  Only files of lib/verify include this.
 */
#ifndef FM_VERIFIER_H
#define FM_VERIFIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "formats/file/spool.h"
#include "lib/run/taskgroup.h"
#include "lib/verify/verify.h"

/* One line for the user.  Tasks find faults in any order; lines are printed in order of `place`. */
struct fm_finding {
    size_t place, number;
    char *item, *what;
};

struct fm_verifier {
    const struct fm_run_options *run;
    const struct fm_verify_options *options;
    struct fm_verify_report *report;
    int dir; /* of an export: the directory, kept open so that everything is read from the same
                one */
    struct fm_taskgroup tasks;
    pthread_mutex_t lock; /* guards the findings and the counts of the report */
    struct fm_finding *finding;
    size_t findings, capacity;
    bool differs;           /* bytes differ from a checksum */
    int machine;            /* FM_EIO or FM_ENOMEM if an item could not be checked; else 0 */
    struct fm_err lost;     /* the error if there was no memory for a finding */
    struct fm_spool *spool; /* for a pipe: scans read from it, in order; NULL: from files */
    /* Of an export, for the check of its function: the (M, E) widths that it computes with;
     * owned. */
    uint32_t *served;
    bool all_resident; /* the export has every channel, and `served` is the mask it starts with */
    bool rest_decoded; /* experts are stored as codes; all other codes are decoded and rounded */
};

/* The code of a finding described by `err`: that of err for an I/O or memory error, else
 * `otherwise`. */
static inline int fm_verifier_code(const struct fm_err *err, int otherwise)
{
    return err->code == FM_EIO || err->code == FM_ENOMEM ? err->code : otherwise;
}

/* Add a finding: FM_EDIFF if bytes differ, FM_EFORMAT if they are malformed, FM_EIO or FM_ENOMEM
 * if they could not be checked. */
void fm_verifier_find(struct fm_verifier *v, size_t place, int code, const char *item,
                      const char *fmt, ...) FM_PRINTF(5, 6);

/* Add a finding with this code for an error of a reader, and reset the error; an error of memory or
 * disk ends the check and is returned. */
int fm_verifier_note(struct fm_verifier *v, size_t place, int code, const char *item,
                     struct fm_err *err);

/* Add to the counts of checked items and bytes. */
void fm_verifier_count(struct fm_verifier *v, uint64_t items, uint64_t bytes);

/* Add a file, or a part of one, that is not compared; `what` is not copied. */
void fm_verifier_skip(struct fm_verifier *v, const char *what);

/* Report every finding, in order, and remove them all. */
void fm_verifier_tell(struct fm_verifier *v);

/* Remove all findings and reset the counts. */
void fm_verifier_forget(struct fm_verifier *v);

/* What a scan found wrong with a span. */
enum fm_scan_fault {
    FM_SCAN_DIFFERS = 1 << 0,   /* its digest differs */
    FM_SCAN_NOT_FINITE = 1 << 1 /* it has a value that is not finite */
};

/*
 * Read [at, at + size) of a file once, in pieces that fit the cache.  As requested, add each piece
 * to `whole` (if not NULL), look for values that are not finite, and compare spans with their
 * digests.  Spans are contiguous and end at `size`; span i has bound[i % bounds + 1] - bound[i %
 * bounds] channels, in groups of unit_bytes each: the segments of all experts, expert by expert.
 */
struct fm_scan {
    const struct fm_file *file;
    uint64_t at, size;
    struct fm_hasher *whole;
    int dtype;                      /* a weight dtype, F8_E4M3, or -1: values are not checked */
    const struct fm_digest *digest; /* (spans) */
    size_t spans;                   /* 0: no span is compared, and no value checked */
    const int32_t *bound;           /* (bounds + 1) from 0; NULL: one span of all bytes */
    size_t bounds;
    int group; /* channels of a group */
    uint64_t unit_bytes;
    unsigned char *found; /* (spans) bits of enum fm_scan_fault are set here */
};
int fm_verifier_scan(struct fm_verifier *v, const struct fm_scan *s, struct fm_err *err);

/* ---- a directory, with or without its bundle ---- */

#define FM_VERIFY_CLAIM_MAX ((size_t)16 << 20) /* the largest fm-export.json that is read */

/* fm-export.json of the directory, and the export that it describes. */
struct fm_verify_claim {
    cJSON *json;
    char *text;
    size_t size;
    const struct fm_layout *layout;
    int64_t index;
    double budget;
};

/* Read fm-export.json; FM_EFORMAT if it is malformed, or its schema or layout is unknown.  The
 * other keys are checked with the texts.  Release the claim even after a failure. */
int fm_verify_claim(struct fm_verify_claim *claim, const struct fm_verifier *v, struct fm_err *err);
void fm_verify_claim_release(struct fm_verify_claim *claim);

/* Call `other` with the name of each entry of the directory that is not `known`, in order of
 * names.  Files that a hub, fm-bench or lib/publish adds are skipped, and reported as not
 * compared. */
int fm_verify_claim_others(struct fm_verifier *v, bool (*known)(const void *self, const char *name),
                           void (*other)(void *self, const char *name), void *self,
                           struct fm_err *err);

/* ---- the checks ---- */

int fm_verify_bundle(struct fm_verifier *v, struct fm_err *err);
int fm_verify_export(struct fm_verifier *v, struct fm_err *err);
int fm_verify_table(struct fm_verifier *v, struct fm_err *err);
int fm_verify_function(struct fm_verifier *v, bool plan, struct fm_err *err);

#endif
