/* meshes: the settings of a step on so many ranks, and the search for the fastest that fit. Who
 * plans them calls from as many threads as it likes; what is found does not depend on that. */
#ifndef TENON_MESHES_H
#define TENON_MESHES_H

#include "chunk_choose.h"

enum { MESHES_BEST = 10, MESH_SETTINGS = 8 }; /* of the outcome; of one mesh, at most */

/* A mesh, with what is gathered again and computed again, and what it came to. */
typedef struct MeshSetting {
    const char *mesh, *reshard, *recompute;
    int group;         /* settings of one mesh have the same */
    char refused[400]; /* why there is no such step; "": there is */
    /* by meshes_bound */
    double bound;    /* seconds: no plan is faster */
    double estimate; /* seconds: the bound of some of the forms that a choice may take; without a
                        choice as `bound` */
    int64_t least;   /* bytes: no plan needs less; 0: nobody asked */
    /* by who plans it */
    bool planned, fits;
    bool counted;                   /* by the search: one thread would have planned it */
    bool twin;                      /* it came to what another setting is */
    bool solved;                    /* its forms are the solver's, not those of the recipes */
    bool apart;                     /* its collectives are not joined, where that was chosen */
    int64_t peak, need;             /* bytes of the plan; with its library's reserve */
    double sec, comm, exposed, own; /* own: no schedule of it is faster */
} MeshSetting;

/* Settings that the command fixes; NULL: all are tried. */
typedef struct MeshAsked {
    int64_t ranks, limit; /* limit: bytes; 0: none */
    int64_t rows;         /* of a microbatch: no more ranks share it; 0: any number may */
    const char *reshard, *recompute;
} MeshAsked;

typedef struct MeshSettings {
    MeshSetting *list;
    int count, cap, ngroup;
    struct MeshPlace *place; /* room for a search's order */
} MeshSettings;

/* All of them: ranks as a product of dp, fsdp and tp, those of one mesh beside each other. */
MeshSettings meshes_all(Arena *a, const MeshAsked *asked);

/* Fills the bounds of the n settings of one mesh. w: the passes of its whole graph, which have just
 * begun. Fails where the mesh is refused. */
void meshes_bound(PassWalk *w, const PlanFor *to, MeshSetting *s, int n);

/* A search through those that may fit, by their bounds. */
typedef struct MeshSearch {
    MeshSettings all;
    int64_t limit;
    int count, next, given; /* next: in the order; given: out, to be planned */
    int refused, over; /* settings that are refused, and whose least bytes are above the limit */
} MeshSearch;

MeshSearch meshes_start(const MeshSettings *all, int64_t limit);
/* The next setting to be planned; NULL: none that is left can be among the best. */
MeshSetting *meshes_next(MeshSearch *s);

/* The outcome, once all that was given out is planned. */
typedef struct MeshOutcome {
    const MeshSetting *best[MESHES_BEST]; /* by seconds */
    int nbest;
    int planned, unfit, slower; /* settings planned; of these too large; left out by their bound */
    int saved;                  /* left out, as their mesh fits with all saved */
    int guessed;                /* left out by an estimate from other plans */
    int64_t least;              /* of those that are too large the least bytes; 0: there are none */
} MeshOutcome;

MeshOutcome meshes_outcome(const MeshSearch *s);

#endif
