/*
 * The tools as functions: each does everything that the program of that name does, in this
 * process, and returns its exit status, or ends the process.  Call one of them, once per process,
 * before any other thread exists.
 */
#ifndef FM_TOOLS_H
#define FM_TOOLS_H

int fm_bench_main(int argc, char **argv);
int fm_family_main(int argc, char **argv);
int fm_pack_main(int argc, char **argv);
int fm_rank_main(int argc, char **argv);
int fm_recover_main(int argc, char **argv);
int fm_train_main(int argc, char **argv);
int fm_verify_main(int argc, char **argv);

#endif
