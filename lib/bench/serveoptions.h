/* What a measurement of the serving loop may be asked for. */
#ifndef FM_SERVEOPTIONS_H
#define FM_SERVEOPTIONS_H

#include <stdint.h>

#include "lib/bench/kerneloptions.h"

struct fm_servebench_options {
    const char *shape;         /* a name of lib/bench/shapes.c, or "H,I,E,K"; NULL: default */
    const char *budgets;       /* "0,0.2,0.4"; 0 comes first in any case */
    const char *family;        /* a bundle or stage stream whose shape and masks are taken */
    const char *dtype;         /* "bf16", "f32": of weights and cache */
    int layers;                /* 0: as many of the model's as memory takes */
    int batch, prompt, decode; /* sequences, tokens of each that go in, that come out */
    int repeat;                /* rounds */
};

#endif
