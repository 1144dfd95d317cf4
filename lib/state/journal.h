/*
 * This room, lib/state: arrays on disk during a run.  store keeps records that need not fit into
 * memory; journal saves the state of a run so that it can resume.  In reading order: store,
 * journal.
 *
 * State files of long runs: arrays in a safetensors file that is written completely or not at all,
 * with a digest of everything that determines the result, and one of the arrays.  After a kill at
 * any moment, the same command resumes from the last saved state.
 */
#ifndef FM_JOURNAL_H
#define FM_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/comm/comm.h"
#include "lib/state/store.h"

#define FM_JOURNAL_ITEMS_MAX 32
#define FM_JOURNAL_NAME 31 /* bytes of an array's name, at most */

/* One array; if data is NULL, all records of a store, one after another. */
struct fm_journal_item {
    const char *name;
    enum fm_dtype dtype;
    uint64_t count; /* elements */
    void *data;
    const struct fm_store *store;
};

/* Digest of a text with everything that determines a run's result; print doubles with %.17g. */
int fm_journal_params(struct fm_digest *params, struct fm_err *err, const char *fmt, ...)
    FM_PRINTF(3, 4);

/* True if the file is a state of `tool`, with any options. */
bool fm_journal_is_own(const char *path, const char *tool);

/* Write the state of `tool` ("fm-train"), replacing an older one; FM_ECREATE if a file that is not
 * such a state has that name.  All ranks must call it; rank 0 writes its own arrays. */
int fm_journal_save(struct fm_comm *comm, const char *path, const char *tool,
                    const struct fm_digest *params, const struct fm_journal_item *item,
                    size_t items, struct fm_err *err);

/* A state file, open for reading on rank 0, which broadcasts what it reads. */
struct fm_journal {
    struct fm_comm *comm;
    struct fm_file file;
    struct fm_safetensors st;
    struct {
        char name[FM_JOURNAL_NAME + 1];
        uint64_t count;
    } has[FM_JOURNAL_ITEMS_MAX];
};

/*
 * All ranks must call fm_journal_open and fm_journal_read, and get the same result.  *found is
 * false, with FM_OK, if there is no file, or path is NULL.  FM_ECONFIG if it belongs to a different
 * tool or different parameters; FM_EFORMAT if it is not a state file of this version.
 */
int fm_journal_open(struct fm_journal *j, struct fm_comm *comm, const char *path, const char *tool,
                    const struct fm_digest *params, bool *found, struct fm_err *err);
void fm_journal_close(struct fm_journal *j); /* zeroed struct is fine */

/* The number of elements of an array; 0 if there is no array of that name. */
uint64_t fm_journal_count(const struct fm_journal *j, const char *name);

/* Read all arrays of the file; items must be in the order in which they were saved.  FM_EFORMAT if
 * a dtype or count differs from the file's, or if the bytes are not those that were saved. */
int fm_journal_read(const struct fm_journal *j, const struct fm_journal_item *item, size_t items,
                    struct fm_err *err);

/* Remove a state file of `tool`; does nothing if path is NULL, does not exist, or is any other
 * file. */
int fm_journal_remove(const char *path, const char *tool, struct fm_err *err);

/*
 * When to save: the interval is twenty times the cost of a save, limited to 1 to 20 seconds.  So
 * saving takes about a twentieth of the time, and a kill loses little.  Times are seconds of
 * lib/base/clock.h.
 */
struct fm_journal_clock {
    double saved; /* end of the last save */
    double cost;  /* its duration */
};
bool fm_journal_due(const struct fm_journal_clock *clock);
/* Call after a save that began at `began`. */
void fm_journal_saved(struct fm_journal_clock *clock, double began);

#endif
