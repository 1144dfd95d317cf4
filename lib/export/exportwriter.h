/*
 * Writes a planned export as a directory or as a tar stream.  The bytes of a planned tensor are
 * made from the bundle and checked at the same time: every segment of an expert, and every other
 * tensor, has a digest in the bundle.
 */
#ifndef FM_EXPORTWRITER_H
#define FM_EXPORTWRITER_H

#include "lib/export/plan.h"
#include "lib/run/run.h"

/* Write all files of the plan: as the new directory run->outputs.path, whole or not at all, or,
 * if that is "-", as a tar stream on standard output.  Also uses threads, force, progress and
 * stop of run. */
int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err);

/* Peak bytes of the plan and buffers, for a directory or for a stream. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *plan, bool stream);

/* ---- the bytes of a tensor ---- */

/* Bytes of a tensor that one task fills: enough to amortise a system call and a seek, and few
 * enough that each thread needs little memory. */
#define FM_FILL_PIECE ((uint64_t)4 << 20)

/*
 * Write bytes [from, from + size) of a tensor to dst; both ends are cuts.  The family is open with
 * FM_OPENED_WEIGHTS, unless the tensor is numbers, which need no weights.  If it is also open with
 * FM_OPENED_CHECKSUMS, FM_EFORMAT names the expert and the channels that do not match their digest.
 * A copy (fm_planned_copy) has one digest for all its bytes, which the caller compares
 * in the end.
 */
int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err);
/* The next cut after `from`, which is 0 or a cut: if possible at most `limit` bytes further.
 * Experts are cut only at the end of a block, a segment, or without checksums a channel group; what
 * is filled as a whole is not cut. */
uint64_t fm_fill_cut(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                     uint64_t from, uint64_t limit);
/* Whether a block is computed as a whole: it is rounded, or belongs to no channel. */
bool fm_fill_alone(const struct fm_exportplan *p, const struct fm_planned_block *b);
/* A tensor that is wider in the export: its own rows, one after another and with
 * padding after each.  The padding is the byte `blank`, or repeats the last `again` bytes. */
struct fm_widened {
    struct fm_box own, padding; /* rows are groups */
    struct fm_form narrow, wide;
    size_t again;
    int blank;
};
struct fm_widened fm_fill_widened(const struct fm_planned_tensor *t);
void fm_fill_widen(char *to, const char *own, const struct fm_widened *w);

#endif
