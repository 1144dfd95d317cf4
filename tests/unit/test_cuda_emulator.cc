/*
 * Test that the emulator of tests/unit/cuda_emulator.h is strict about when copies arrive and which
 * threads meet: errors that a GPU shows only sometimes end the program or give wrong numbers.
 */
#include "tests/unit/cuda_emulator_ptx.h"

#include <sys/wait.h>
#include <unistd.h>

static int failures;

static const emu_dim one_block = {1, 1, 1};

static void report(bool good, const char *what)
{
    failures += !good;
    printf("%s %s\n", good ? "ok  " : "FAIL", what);
}

static void dies(const char *what, std::function<void()> wrong)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        wrong();
        _exit(0);
    }
    waitpid(child, &status, 0);
    report(WIFSIGNALED(status), what);
}

/* The number of 200 runs in which a thread finds what it copied, if it waits for the copy or does
 * not. */
static int copies_seen(bool wait)
{
    static const uint8_t from[16] = {1, 2, 3};
    int seen = 0;
    for (int i = 0; i < 200; i++)
        emu_launch(one_block, 1, 2048, [&]() {
            copy16(EMU_BASE, from, true);
            copies_end();
            if (wait)
                copies_wait<0>();
            seen += !memcmp(emu_at(EMU_BASE, 16), from, 16);
        });
    return seen;
}

static void copies_are_strict()
{
    int early = copies_seen(false);
    report(early > 0 && early < 200, "a copy that nothing waits for arrives early or late");
    report(copies_seen(true) == 200, "a copy has arrived after the wait");
}

int main(void)
{
    copies_are_strict();
    dies("a barrier that half of the block reaches is caught", []() {
        emu_launch(one_block, 64, 0, []() {
            if (threadIdx.x < 32)
                __syncthreads();
        });
    });
    dies("a matrix at an odd address is caught", []() {
        emu_launch(one_block, 32, 2048, []() {
            uint32_t r[4];
            load_matrices(r, EMU_BASE + 8);
        });
    });
    dies("an address past shared memory is caught",
         []() { emu_launch(one_block, 1, 2048, []() { emu_at(EMU_BASE + 4096, 16); }); });
    printf("%d failures\n", failures);
    return failures != 0;
}
