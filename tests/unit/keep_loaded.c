/* Linked into sanitized MPI tools: libraries stay loaded, so that leak reports name them and
 * tests/mpi.supp can suppress the leaks of MPI. */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
