/*
 * A bill of materials: what a bundle or an export was made from and how, for the programs that
 * collect such bills.  CycloneDX 1.6, JSON (https://cyclonedx.org/docs/1.6/json/):
 *
 *   metadata.component    the bundle or export: a machine-learning model, with its parent
 *                         (pedigree.ancestors: name, revision, files), the license of the parent's
 *                         card, the calibration data with their digests (modelCard.modelParameters
 *                         .datasets), and the measured losses (quantitativeAnalysis)
 *   components            its files with SHA-256 digests
 *   formulation           the history: a task for each stage, with options and results
 *
 * It contains no time, no random number and no name of this machine: the serial number is derived
 * from the other bytes, so the same files and bundle give the same bill.
 */
#ifndef FM_BOM_H
#define FM_BOM_H

#include <stdint.h>

#include "lib/run/run.h"

struct fm_bom_options {
    const char *target;     /* a bundle, or the directory of an export */
    const char *bundle;     /* for an export: its bundle, or the beginning of it; else NULL */
    const char *base_model; /* ORG/NAME of the parent; NULL: see fm_bom_report */
};

struct fm_bom_report {
    char *path;       /* path of the bill; free() it */
    char parent[256]; /* ORG/NAME: the name of run->inputs.model if that is a snapshot in a Hugging
                         Face cache; else options->base_model, else what the export or the
                         checkpoint's config.json says, else "unknown" */
    char revision[128];    /* of such a snapshot; "" if unknown */
    uint64_t files, bytes; /* files and bytes read */
    double seconds;
};

/*
 * Write the bill.  It is bom.cdx.json (FM_EXPORT_BOM) in the directory of an export, and
 * FILE.bom.cdx.json next to a bundle; for a bundle in parts, next to the first part, and it lists
 * all parts.  Every file is read once. run->inputs.model, or NULL, is the parent, from which the
 * bundle must have been made. FM_ECREATE if there is a bill already, unless run->outputs.force is
 * set.  FM_EUSAGE if the bundle of an export is not given, FM_ECONFIG if the export was made from
 * another bundle, FM_EFORMAT for malformed files.
 */
int fm_bom_write(const struct fm_run_options *run, const struct fm_bom_options *options,
                 struct fm_bom_report *report, struct fm_err *err);

#endif
