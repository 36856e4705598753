/* check_queue: whether a plan's storages, queues and waits are right, by a way of its own. */
#ifndef TENON_TEST_CHECK_QUEUE_H
#define TENON_TEST_CHECK_QUEUE_H

#include "../../src/plan/plan.h"

/* What is wrong with a plan, the first that was found; NULL where all holds. */
const char *check_queue(Arena *a, const Plan *p);

/* The same, but that a wait may be needless. */
const char *check_order(Arena *a, const Plan *p);

/* A copy of p without one of its waits, the k-th of all: which one, in words. NULL where there are
 * not so many. */
Plan *drop_wait(Arena *a, const Plan *p, int k, const char **which);

/* ---- between check_queue.c and check_runs.c ---- */

/* The first fault. */
typedef struct PlanFault {
    Arena *a; /* gone with the check */
    const Plan *p;
    const char *text; /* NULL so far */
} PlanFault;

void fault_add(PlanFault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *fault_step(const PlanFault *f, int step); /* in words */
const char *fault_storage(const PlanFault *f, int storage);

/* Of a plan without fault so far: what its steps read is there, and they are in order. */
void check_runs(PlanFault *f, bool needless);

#endif
