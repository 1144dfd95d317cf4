/*
 * The untrained models in golden/, at least one of every family, with dimensions that are not round
 * numbers: the directories golden/odd-*, so that a new one needs no line here.
 */
#ifndef FM_TESTS_MODELS_H
#define FM_TESTS_MODELS_H

#include <assert.h>
#include <glob.h>
#include <stddef.h>

#define MODELS_MAX 128
#define MODELS_FOLDER "golden/"

/* Their names, in alphabetical order; there are MODELS. */
static const char *odd_models[MODELS_MAX];
#define MODELS models_find()

static inline size_t models_find(void)
{
    static glob_t found; /* holds the names */
    if (found.gl_pathc == 0) {
        int rc = glob(MODELS_FOLDER "odd-*", 0, NULL, &found);
        assert(rc == 0 && found.gl_pathc > 0 && found.gl_pathc <= MODELS_MAX);
        for (size_t i = 0; i < found.gl_pathc; i++)
            odd_models[i] = found.gl_pathv[i] + sizeof MODELS_FOLDER - 1;
    }
    return found.gl_pathc;
}

#endif
