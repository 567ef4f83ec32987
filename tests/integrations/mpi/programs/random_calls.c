/* Random calls from a seed: random_calls SEED CALLS write|compare FOLDER.

   Each result is checked, and written to a file of the rank, or compared with what an earlier run wrote there: bit by
   bit where the operator is exact, else within p eps sum|x|. Messages and collectives that do not block are under way
   meanwhile. All ranks draw the same numbers. */
#include "calls.h"
#include "elements.h"

enum { SLOTS = 4, COMMS = COMMUNICATORS + 1 };

static uint64_t seed, state;
static FILE* file;
static int writing;
static MPI_Comm comms[COMMS];

static uint64_t drawn(uint64_t below) {
    state = mixed(state);
    return (state >> 16) % below;
}

/* Numbers of elements of all sizes, zero and one among them; `most` bytes at most. */
static size_t drawn_count(size_t size, size_t most) {
    size_t bits = drawn(21), count = drawn((uint64_t)1 << bits);
    return drawn(12) == 0 ? drawn(2) : count * size > most ? most / size : count;
}

/* ---- what goes on meanwhile */

static struct slot {
    MPI_Request request;
    int kind, from, to;
    size_t n;
    uint64_t seed;
    unsigned char *in, *out;
} slots[SLOTS];

enum { FREE, MESSAGE, REDUCTION, BROADCAST, EMPTY };

static MPI_Comm aside;

static void finished(struct slot* slot) {
    if (slot->kind == FREE) return;
    MPI_Wait(&slot->request, MPI_STATUS_IGNORE);
    struct type* type = &types[2]; /* MPI_INT */
    if ((slot->kind == MESSAGE && world_rank == slot->to) || slot->kind == BROADCAST)
        CHECK(first_moved_wrong(type, slot->seed, slot->from, 0, slot->out, slot->n) == slot->n,
              "what came meanwhile, kind %d", slot->kind);
    if (slot->kind == REDUCTION)
        CHECK(first_wrong(type, SUM, slot->seed, world_size, 0, slot->out, slot->n) == slot->n, "Iallreduce meanwhile");
    free(slot->in), free(slot->out);
    slot->kind = FREE;
}

static void started(struct slot* slot) {
    finished(slot);
    struct type* type = &types[2];
    *slot = (struct slot){MPI_REQUEST_NULL,
                          MESSAGE + (int)drawn(4),
                          (int)drawn((uint64_t)world_size),
                          0,
                          drawn_count(4, 400000),
                          drawn(1 << 30),
                          NULL,
                          NULL};
    slot->to = (slot->from + 1 + (int)drawn((uint64_t)world_size)) % world_size;
    if (slot->kind == MESSAGE && slot->from == slot->to) slot->kind = EMPTY;
    int synchronous = drawn(2), tag = (int)(slot - slots);
    slot->in = malloc(4 * slot->n + 1), slot->out = malloc(4 * slot->n + 1);
    fill(type, slot->kind == REDUCTION ? SUM : -1, slot->seed, world_rank, 0, slot->in, slot->n);
    if (slot->kind == BROADCAST && world_rank == slot->from) memcpy(slot->out, slot->in, 4 * slot->n);
    int n = (int)slot->n;
    switch (slot->kind) {
        case MESSAGE:
            if (world_rank == slot->from)
                (synchronous ? MPI_Issend : MPI_Isend)(slot->in, n, MPI_INT, slot->to, tag, MPI_COMM_WORLD,
                                                       &slot->request);
            if (world_rank == slot->to)
                MPI_Irecv(slot->out, n, MPI_INT, slot->from, tag, MPI_COMM_WORLD, &slot->request);
            break;
        case REDUCTION:
            MPI_Iallreduce(slot->in, slot->out, n, MPI_INT, MPI_SUM, aside, &slot->request);
            break;
        case BROADCAST:
            MPI_Ibcast(slot->out, n, MPI_INT, slot->from, aside, &slot->request);
            break;
        default:
            MPI_Ibarrier(aside, &slot->request);
    }
}

/* ---- results */

/* Bytes between the fields of elements are nobody's. */
static void without_padding(const struct type* type, unsigned char* data, size_t count) {
    if (type->kind == OPAQUE) return;
    for (size_t i = 0; i < count; i++) put(type, data + i * type->size, get(type, data + i * type->size));
}

static void told_or_compared(int call, const char* what, const struct type* type, int op, uint64_t from_seed, int ranks,
                             size_t from, size_t count, struct buffer* out) {
    int exact = op < 0 || !rounds(type, op);
    without_padding(type, out->data, out->bytes / type->size);
    uint64_t hash = 14695981039346656037u, before;
    for (size_t i = 0; i < out->bytes && exact; i++) hash = (hash ^ out->data[i]) * 1099511628211u;
    if (writing) {
        fwrite(exact ? (void*)&hash : (void*)out->data, exact ? 8 : out->bytes, 1, file);
        return;
    }
    if (exact) {
        int read = fread(&before, 8, 1, file) == 1;
        CHECK(read && before == hash, "call %d, %s of %zu x %s: other bits than before", call, what, count, type->name);
        return;
    }
    unsigned char* old = malloc(out->bytes + 1);
    CHECK(fread(old, 1, out->bytes, file) == out->bytes, "call %d: the file ends", call);
    for (size_t i = 0; i < count; i++) {
        struct value a = get(type, old + i * type->size), b = get(type, out->data + i * type->size);
        if (agree(type, op, a, b, 0) || agree(type, op, a, b, bound(type, op, from_seed, ranks, from + i))) continue;
        CHECK(0, "call %d, %s of %zu x %s, %s: element %zu", call, what, count, type->name, operators[op].name, i);
        break;
    }
    free(old);
}

/* ---- calls */

struct call {
    int number, rank, ranks, root, in_place, op;
    size_t count;
    const struct type* type;
    MPI_Comm comm;
    uint64_t seed;
};

static void reduced(struct call c) {
    int kind = (int)drawn(4), counts[MOST];
    static const char* names[] = {"Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block"};
    do c.op = (int)drawn(OPERATORS), c.type = &types[drawn((uint64_t)type_count)];
    while (!allowed(c.type, c.op) || (c.type->handle == MPI_LONG_DOUBLE_INT && is("Intel")));
    c.count = drawn_count(c.type->size, rounds(c.type, c.op) ? 40000 : 400000);
    size_t all = 0, from = 0, mine = c.count, size = c.type->size;
    for (int i = 0; i < c.ranks; i++) {
        counts[i] = (int)(kind == 3 ? c.count : i ? drawn(c.count + 1) : c.count);
        from += kind >= 2 && i < c.rank ? (size_t)counts[i] : 0, all += (size_t)counts[i];
    }
    /* MPICH ends where a part would move over itself (collectives.c) */
    for (int i = 1, begin = counts[0]; kind == 2 && i < c.ranks; begin += counts[i++]) c.in_place &= counts[i] <= begin;
    if (kind < 2) all = c.count;
    else mine = (size_t)counts[c.rank];
    struct buffer in = buffer_of(all * size, 0), out = buffer_of(all * size, 0);
    fill(c.type, c.op, c.seed, c.rank, 0, in.data, all);
    int at_root = kind != 1 || c.rank == c.root, placed = c.in_place && at_root;
    if (placed) memcpy(out.data, in.data, all * size);
    const void* given = placed ? MPI_IN_PLACE : in.data;
    MPI_Op op = operators[c.op].handle;
    switch (kind) {
        case 0:
            EITHER(Allreduce, given, out.data, c.count, c.type->handle, op, c.comm);
            break;
        case 1:
            EITHER(Reduce, given, out.data, c.count, c.type->handle, op, c.root, c.comm);
            break;
        case 2:
            reduce_scatter(given, out.data, counts, c.type->handle, op, c.comm);
            break;
        default:
            EITHER(Reduce_scatter_block, given, out.data, c.count, c.type->handle, op, c.comm);
    }
    if (!at_root) mine = 0;
    CHECK(first_wrong(c.type, c.op, c.seed, c.ranks, from, out.data, mine) == mine,
          "call %d, %s%s of %zu x %s, %s%s on %d ranks", c.number, names[kind], large ? "_c" : "", mine, c.type->name,
          operators[c.op].name, placed ? ", in place" : "", c.ranks);
    CHECK(guarded(&in) && guarded(&out), "call %d, %s: beyond the buffers", c.number, names[kind]);
    out.bytes = mine * size; /* beyond, what an MPI leaves of data in place is its own */
    told_or_compared(c.number, names[kind], c.type, c.op, c.seed, c.ranks, from, mine, &out);
    drop(&in), drop(&out);
}

/* Where one rank's data for another begins, in a buffer where all ranks' have their places in reversed order with gaps.
 */
struct layout {
    int counts[MOST], places[MOST], all;
};

static struct layout drawn_layout(int ranks, size_t most, int rank, uint64_t bits, int symmetric) {
    struct layout made = {.all = 0};
    for (int i = ranks - 1; i >= 0; i--) {
        int low = i < rank ? i : rank, high = i < rank ? rank : i;
        uint64_t mine = mixed(bits + (symmetric ? (uint64_t)(low * 100 + high) : (uint64_t)(rank * 100 + i)));
        made.counts[i] = (int)(mine % (most + 1)), made.places[i] = made.all + 1, made.all += made.counts[i] + 1;
    }
    return made;
}

static void moved(struct call c) {
    static const char* names[] = {"Bcast", "Allgather", "Allgatherv", "Gather", "Scatter", "Alltoall", "Alltoallv"};
    int kind = (int)drawn(7);
    uint64_t bits = drawn(1 << 30);
    c.type = &types[drawn((uint64_t)type_count)];
    if (kind == 3 && is("MPICH") && c.ranks > 3) c.type = &types[2]; /* collectives.c says why */
    c.count = drawn_count(c.type->size, 200000);
    size_t size = c.type->size, n = c.count, ranks = (size_t)c.ranks;
    struct layout here = drawn_layout(c.ranks, n, c.rank, bits, c.in_place), there = here;
    if (kind == 2) { /* all see the same counts */
        here = drawn_layout(c.ranks, n, 0, bits, 0);
    } else if (!c.in_place) {
        there.all = 0;
        for (int i = c.ranks - 1; i >= 0; i--) {
            there.counts[i] = drawn_layout(c.ranks, n, i, bits, 0).counts[c.rank];
            there.places[i] = there.all + 1, there.all += there.counts[i] + 1;
        }
    }
    size_t mine = kind == 2 ? (size_t)here.counts[c.rank] : n, given = kind >= 4 ? n * ranks : mine, got = n;
    if (kind == 6) given = (size_t)here.all, got = (size_t)there.all;
    if (kind == 1 || kind == 3 || kind == 5) got = n * ranks;
    if (kind == 2) got = (size_t)here.all;
    struct buffer in = buffer_of(given * size, 0), out = buffer_of(got * size, 0);
    fill(c.type, -1, c.seed, c.rank, 0, in.data, given);
    int placed = c.in_place && kind != 0 && (c.rank == c.root || (kind != 3 && kind != 4));
    if (placed && (kind == 1 || kind == 3)) memcpy(out.data + (size_t)c.rank * n * size, in.data, n * size);
    if (placed && kind == 2) memcpy(out.data + (size_t)here.places[c.rank] * size, in.data, mine * size);
    if ((placed && kind >= 5) || (kind == 0 && c.rank == c.root)) memcpy(out.data, in.data, given * size);
    const void* from = placed ? MPI_IN_PLACE : in.data;
    MPI_Datatype type = c.type->handle;
    switch (kind) {
        case 0:
            EITHER(Bcast, out.data, n, type, c.root, c.comm);
            break;
        case 1:
            EITHER(Allgather, from, n, type, out.data, n, type, c.comm);
            break;
        case 2:
            allgatherv(from, (int)mine, type, out.data, here.counts, here.places, type, c.comm);
            break;
        case 3:
            EITHER(Gather, from, n, type, out.data, n, type, c.root, c.comm);
            break;
        case 4:
            EITHER(Scatter, in.data, n, type, placed ? MPI_IN_PLACE : out.data, n, type, c.root, c.comm);
            break;
        case 5:
            EITHER(Alltoall, from, n, type, out.data, n, type, c.comm);
            break;
        default:
            alltoallv(from, here.counts, here.places, type, out.data, there.counts, there.places, type, c.comm);
    }
    CHECK(guarded(&in) && guarded(&out), "call %d, %s: beyond the buffers", c.number, names[kind]);
    for (int i = 0; i < c.ranks; i++) { /* of each rank's data, where it lies and which it is */
        size_t at = (size_t)i * n, first = 0, count = n;
        if (kind == 0 || kind == 4) at = 0, first = kind == 4 ? (size_t)c.rank * n : 0;
        if (kind == 2) at = (size_t)here.places[i], count = (size_t)here.counts[i];
        if (kind == 5) first = (size_t)c.rank * n;
        if (kind == 6) {
            at = (size_t)there.places[i], count = (size_t)there.counts[i];
            first = (size_t)drawn_layout(c.ranks, n, i, bits, c.in_place).places[c.rank];
        }
        if (((kind == 0 || kind == 4) && i != c.root) || (kind == 3 && c.rank != c.root) || (kind == 4 && placed))
            continue;
        CHECK(first_moved_wrong(c.type, c.seed, i, first, out.data + at * size, count) == count,
              "call %d, %s%s of %zu x %s%s on %d ranks: from %d", c.number, names[kind], large ? "_c" : "", count,
              c.type->name, placed ? ", in place" : "", c.ranks, i);
    }
    told_or_compared(c.number, names[kind], c.type, -1, c.seed, c.ranks, 0, got, &out);
    drop(&in), drop(&out);
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    if (argc < 5) return 2;
    seed = strtoull(argv[1], NULL, 10), writing = !strcmp(argv[3], "write");
    int calls = atoi(argv[2]);
    char name[4096];
    snprintf(name, sizeof name, "%s/%d", argv[4], world_rank);
    file = fopen(name, writing ? "wb" : "rb");
    if (!file) return 2;
    declare_types();
    communicators(comms);
    comms[COMMUNICATORS] = MPI_COMM_SELF;
    MPI_Comm_dup(MPI_COMM_WORLD, &aside);
    for (int number = 0; number < calls; number++) {
        state = mixed(seed + (uint64_t)number * 977);
        if (drawn(3) == 0) started(&slots[drawn(SLOTS)]);
        if (drawn(5) == 0) finished(&slots[drawn(SLOTS)]);
        struct call c = {.number = number, .comm = comms[drawn(COMMS)], .in_place = (int)drawn(2), .seed = state};
        MPI_Comm_rank(c.comm, &c.rank), MPI_Comm_size(c.comm, &c.ranks);
        c.root = (int)(drawn(1 << 20) % (uint64_t)c.ranks), large = (int)drawn(2);
        uint64_t kind = drawn(20);
        if (kind == 0) MPI_Barrier(c.comm);
        else if (kind < 10) reduced(c);
        else moved(c);
    }
    for (int i = 0; i < SLOTS; i++) finished(&slots[i]);
    MPI_Comm_free(&aside), free_communicators(comms);
    fclose(file);
    return end();
}
