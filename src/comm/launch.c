/* Which launcher started this process, as its environment says, and the module of that launcher's
 * MPI. A program has none of MPI in it, and without a launcher loads none. A module is looked for
 * beside what has this code, the program or libtenon.so, and in the folder `lib/tenon` of an
 * installation. It stays loaded: MPI cannot be started twice. */
#define _GNU_SOURCE /* dladdr1 */
#include "comm.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- launchers ---- */

typedef struct Launcher {
    const char *name;
    const char *rank, *size; /* variables, which such a launcher sets both */
    const char *local;       /* one that counts on each host; may be unset */
    const char *mpi;         /* NULL: what it has started cannot find each other */
    int least;               /* fewer ranks than that are no run of many */
} Launcher;

static const char slurm_local[] = "SLURM_LOCALID";

/* The first whose variables are there; mpirun inside a job of Slurm sets its own beside Slurm's.
 * srun sets those of PMI-2 as mpirun of MPICH does. A shell of Slurm's is a step of one task. */
static const Launcher launchers[] = {
    {"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "openmpi", 1},
    {"mpirun of MPICH or srun --mpi=pmi2", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "mpich", 1},
    {"srun --mpi=pmix", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", slurm_local, "openmpi", 2},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", slurm_local, NULL, 2},
};

static int ranks_of(const Launcher *l)
{
    const char *size = getenv(l->rank) ? getenv(l->size) : NULL;
    char *end;
    long n = size ? strtol(size, &end, 10) : 0;
    return size && !*end && n >= l->least && n <= INT_MAX ? (int)n : 0;
}

static const Launcher *launcher(void)
{
    for (int i = 0; i < LEN(launchers); i++)
        if (ranks_of(&launchers[i]))
            return &launchers[i];
    return NULL;
}

int comm_launched(void)
{
    const Launcher *l = launcher();
    return l ? ranks_of(l) : 0;
}

bool comm_launched_first(void)
{
    const Launcher *l = launcher();
    const char *local = l ? getenv(l->local) : NULL;
    if (l && !local)
        local = getenv(slurm_local);
    if (l && !local)
        local = getenv(l->rank);
    return !local || !strcmp(local, "0");
}

/* The number in a variable; -1: none. */
static int number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long n = text && *text ? strtol(text, &end, 10) : -1;
    return n >= 0 && n <= INT_MAX && !*end ? (int)n : -1;
}

/* The launcher's own variable, or one of its relatives. SLURM_LOCALID is in the environment of a
 * batch script too, where it is 0: it counts where srun alone can have started the ranks. */
int comm_launched_local(void)
{
    static const char *const names[] = {"MV2_COMM_WORLD_LOCAL_RANK", "PMI_LOCAL_RANK",
                                        "PALS_LOCAL_RANKID"};
    const Launcher *l = launcher();
    int local = l ? number_of(l->local) : -1;
    for (int i = 0; l && local < 0 && i < LEN(names); i++)
        local = number_of(names[i]);
    return local;
}

/* ---- modules ---- */

static const char *const mpis[] = {"openmpi", "mpich"};

/* The folder of the program, or of the library, that has this code. */
static void own_folder(char path[static PATH_MAX])
{
    Dl_info info;
    struct link_map *map = NULL;
    dladdr1(launchers, &info, (void **)&map, RTLD_DL_LINKMAP);
    if (!map || !realpath(*map->l_name ? map->l_name : "/proc/self/exe", path))
        strcpy(path, ".");
    else
        *strrchr(path, '/') = 0;
}

/* The folders of modules, relative to that. */
static const char *const folders[] = {"", "/tenon", "/../lib/tenon"};

static bool find(const char *mpi, char path[static PATH_MAX])
{
    char own[PATH_MAX];
    own_folder(own);
    for (int i = 0; i < LEN(folders); i++) {
        int n = snprintf(path, PATH_MAX, "%s%s/tenon-mpi-%s.so", own, folders[i], mpi);
        if (n < PATH_MAX && !access(path, F_OK))
            return true;
    }
    return false;
}

int comm_modules(const char *name[static COMM_MODULES])
{
    char path[PATH_MAX];
    int n = 0;
    for (int i = 0; i < LEN(mpis); i++)
        if (find(mpis[i], path))
            name[n++] = mpis[i];
    return n;
}

static _Noreturn void no_module(Ctx *ctx, const Launcher *l, const char *mpi)
{
    char own[PATH_MAX];
    own_folder(own);
    fail(ctx, TN_USAGE,
         "%s has started this process, and tenon-mpi-%s.so is not in %s, its folder tenon or "
         "../lib/tenon: where an MPI has its compiler (Debian: libopenmpi-dev, libmpich-dev), make "
         "builds that module; TENON_MPI=openmpi|mpich|PATH names another",
         l->name, mpi, own);
}

/* TENON_MPI is an MPI's name or a path. */
static void find_module(Ctx *ctx, const Launcher *l, char path[static PATH_MAX])
{
    const char *mpi = getenv("TENON_MPI");
    if (!mpi || !*mpi)
        mpi = l->mpi;
    if (!mpi)
        fail(ctx, TN_USAGE,
             "%s has started %d processes that cannot find each other: expected --mpi=pmi2 (for "
             "MPICH) or --mpi=pmix (for Open MPI)",
             l->name, ranks_of(l));
    if (strchr(mpi, '/'))
        snprintf(path, PATH_MAX, "%s", mpi);
    else if (!find(mpi, path))
        no_module(ctx, l, mpi);
}

const Transport *comm_mpi(Ctx *ctx)
{
    char path[PATH_MAX];
    const Launcher *l = launcher();
    if (!l)
        fail(ctx, TN_USAGE, "no launcher has started this process: expected mpirun or srun");
    find_module(ctx, l, path);
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!module)
        fail(ctx, TN_USAGE, "cannot load the module of MPI: %s", dlerror());
    const Transport *t = dlsym(module, "tenon_transport");
    if (!t)
        fail(ctx, TN_USAGE, "%s: expected a module of Tenon for MPI, found no tenon_transport",
             path);
    if (t->version != TRANSPORT_VERSION)
        fail(ctx, TN_USAGE, "%s: expected a module of version %d, found %d: build it again", path,
             TRANSPORT_VERSION, t->version);
    return t;
}
