/* Every taken collective on all predefined types and operators, communicators, roots and sizes, in place and not, each
   result checked element by element.

   collectives STRIDE FIRST: of all cases, counted through, every STRIDE-th from FIRST on. */
#include "calls.h"
#include "elements.h"

static long stride, first, number;
static MPI_Comm comm;
static const char* where;
static int rank, ranks;

enum { SIZES = 6, LARGEST = 300000 };
static const size_t sizes[SIZES] = {0, 1, 3, 1000, 100003, LARGEST};

/* Whether the next case is one of the sample; every second one takes the form for large counts. */
static int taken(void) {
    long mine = number++;
    if (mine % stride != first % stride) return 0;
    large = (mine / stride) % 2;
    return 1;
}

static uint64_t seed(void) { return mixed((uint64_t)number); }

#define RIGHT(call, wrong, count, type, form)                                                            \
    do {                                                                                                 \
        size_t at_ = (wrong);                                                                            \
        CHECK(at_ == (count), "%s%s of %zu x %s, %s, %s: element %zu is wrong", call, large ? "_c" : "", \
              (size_t)(count), (type)->name, form, where, at_);                                          \
    } while (0)

struct both {
    struct buffer in, out, copy;
};

/* A buffer that was filled with what this rank gives, and one for `count` elements; a shift of whole elements. */
static struct both both_of(const struct type* type, int op, size_t given, size_t count) {
    size_t shift = (size_t)(number % 5) * type->size;
    size_t bytes = given * type->size;
    struct both made = {buffer_of(bytes, shift), buffer_of(count * type->size, shift), buffer_of(bytes, 0)};
    fill(type, op, seed(), rank, 0, made.in.data, given);
    memcpy(made.copy.data, made.in.data, bytes);
    return made;
}

static void over(struct both* both, const struct type* type, const char* call) {
    CHECK(!memcmp(both->in.data, both->copy.data, both->in.bytes), "%s of %s, %s changed what was given", call,
          type->name, where);
    CHECK(guarded(&both->in) && guarded(&both->out), "%s of %s, %s: beyond the buffers", call, type->name, where);
    drop(&both->in), drop(&both->out), drop(&both->copy);
}

/* ---- reductions */

static void all_reduce(const struct type* type, int op, size_t count, int in_place) {
    struct both b = both_of(type, op, count, count);
    if (in_place) memcpy(b.out.data, b.in.data, count * type->size);
    EITHER(Allreduce, in_place ? MPI_IN_PLACE : b.in.data, b.out.data, count, type->handle, operators[op].handle, comm);
    RIGHT("Allreduce", first_wrong(type, op, seed(), ranks, 0, b.out.data, count), count, type, operators[op].name);
    over(&b, type, "Allreduce");
}

static void reduce(const struct type* type, int op, size_t count, int in_place, int root) {
    struct both b = both_of(type, op, count, count);
    int at_root = rank == root;
    if (in_place && at_root) memcpy(b.out.data, b.in.data, count * type->size);
    const void* in = in_place && at_root ? MPI_IN_PLACE : b.in.data;
    EITHER(Reduce, in, at_root ? b.out.data : NULL, count, type->handle, operators[op].handle, root, comm);
    if (at_root)
        RIGHT("Reduce", first_wrong(type, op, seed(), ranks, 0, b.out.data, count), count, type, operators[op].name);
    else CHECK(untouched(&b.out, 0, b.out.bytes), "Reduce wrote to a rank that is not the root");
    over(&b, type, "Reduce");
}

/* The count of a rank: different ones, some zero. None is larger than where its part begins, but for the first:
   MPICH 5.0.2 ends where Reduce_scatter in place would have to move a rank's part over itself. */
static size_t part(size_t count, int of) { return of % 3 == 2 || !count ? 0 : count + 1 - (size_t)(of % 2); }

static void reduce_scatter_some(const struct type* type, int op, size_t count, int in_place, int block) {
    int counts[MOST];
    size_t from = 0, all = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = (int)(block ? count : part(count, i));
        from += i < rank ? (size_t)counts[i] : 0, all += (size_t)counts[i];
    }
    size_t mine = (size_t)counts[rank];
    struct both b = both_of(type, op, all, in_place ? all : mine);
    if (in_place) memcpy(b.out.data, b.in.data, all * type->size);
    const void* in = in_place ? MPI_IN_PLACE : b.in.data;
    if (block) EITHER(Reduce_scatter_block, in, b.out.data, mine, type->handle, operators[op].handle, comm);
    else reduce_scatter(in, b.out.data, counts, type->handle, operators[op].handle, comm);
    const char* call = block ? "Reduce_scatter_block" : "Reduce_scatter";
    RIGHT(call, first_wrong(type, op, seed(), ranks, from, b.out.data, mine), mine, type, operators[op].name);
    over(&b, type, call);
}

static void reductions(void) {
    int intel = is("Intel"); /* 2021.18 reduces 1000 MPI_LONG_DOUBLE_INT wrongly on three ranks */
    for (int t = 0; t < type_count; t++)
        for (int op = 0; op < OPERATORS; op++) {
            if (!allowed(&types[t], op) || (intel && types[t].handle == MPI_LONG_DOUBLE_INT)) continue;
            for (int s = 0; s < SIZES; s++) {
                if (s >= 4 && (t + op) % (s == 4 ? 13 : 29)) continue; /* large ones of some types */
                for (int in_place = 0; in_place < 2; in_place++) {
                    if (taken()) all_reduce(&types[t], op, sizes[s], in_place);
                    if (taken()) reduce_scatter_some(&types[t], op, sizes[s], in_place, 0);
                    if (taken()) reduce_scatter_some(&types[t], op, sizes[s], in_place, 1);
                    for (int root = 0; root < ranks; root++)
                        if (taken()) reduce(&types[t], op, sizes[s], in_place, root);
                }
            }
        }
}

/* ---- data that is moved */

static void broadcast(const struct type* type, size_t count, int root) {
    struct both b = both_of(type, -1, count, count);
    if (rank == root) memcpy(b.out.data, b.in.data, count * type->size);
    EITHER(Bcast, b.out.data, count, type->handle, root, comm);
    RIGHT("Bcast", first_moved_wrong(type, seed(), root, 0, b.out.data, count), count, type, "");
    over(&b, type, "Bcast");
}

static void all_gather(const struct type* type, size_t count, int in_place) {
    struct both b = both_of(type, -1, count, count * (size_t)ranks);
    size_t bytes = count * type->size;
    if (in_place) memcpy(b.out.data + (size_t)rank * bytes, b.in.data, bytes);
    MPI_Datatype from = in_place ? MPI_DATATYPE_NULL : type->handle;
    EITHER(Allgather, in_place ? MPI_IN_PLACE : b.in.data, in_place ? 0 : count, from, b.out.data, count, type->handle,
           comm);
    for (int i = 0; i < ranks; i++)
        RIGHT("Allgather", first_moved_wrong(type, seed(), i, 0, b.out.data + (size_t)i * bytes, count), count, type,
              "");
    over(&b, type, "Allgather");
}

/* Parts lie in the reversed order, with a gap of two elements before each. */
static void all_gather_v(const struct type* type, size_t count, int in_place) {
    int counts[MOST], places[MOST], end = 0;
    for (int i = ranks - 1; i >= 0; i--) counts[i] = (int)part(count, i), places[i] = end + 2, end += counts[i] + 2;
    size_t mine = (size_t)counts[rank];
    struct both b = both_of(type, -1, mine, (size_t)end);
    if (in_place) memcpy(b.out.data + (size_t)places[rank] * type->size, b.in.data, mine * type->size);
    allgatherv(in_place ? MPI_IN_PLACE : b.in.data, (int)mine, type->handle, b.out.data, counts, places, type->handle,
               comm);
    for (int i = 0; i < ranks; i++) {
        const unsigned char* at = b.out.data + (size_t)places[i] * type->size;
        RIGHT("Allgatherv", first_moved_wrong(type, seed(), i, 0, at, (size_t)counts[i]), (size_t)counts[i], type, "");
        CHECK(untouched(&b.out, (places[i] - 2) * (ptrdiff_t)type->size, 2 * type->size), "Allgatherv wrote to a gap");
    }
    over(&b, type, "Allgatherv");
}

/* Where they mean nothing, arguments are those that would be errors. */
static void gather(const struct type* type, size_t count, int in_place, int root) {
    struct both b = both_of(type, -1, count, rank == root ? count * (size_t)ranks : 0);
    size_t bytes = count * type->size;
    int placed = in_place && rank == root;
    if (placed) memcpy(b.out.data + (size_t)rank * bytes, b.in.data, bytes);
    if (rank == root)
        EITHER(Gather, placed ? MPI_IN_PLACE : b.in.data, placed ? 0 : count, placed ? MPI_DATATYPE_NULL : type->handle,
               b.out.data, count, type->handle, root, comm);
    else EITHER(Gather, b.in.data, count, type->handle, NULL, -1, MPI_DATATYPE_NULL, root, comm);
    for (int i = 0; rank == root && i < ranks; i++)
        RIGHT("Gather", first_moved_wrong(type, seed(), i, 0, b.out.data + (size_t)i * bytes, count), count, type, "");
    over(&b, type, "Gather");
}

static void scatter(const struct type* type, size_t count, int in_place, int root) {
    struct both b = both_of(type, -1, count * (size_t)ranks, count);
    int placed = in_place && rank == root;
    if (rank == root)
        EITHER(Scatter, b.in.data, count, type->handle, placed ? MPI_IN_PLACE : b.out.data, placed ? 0 : count,
               placed ? MPI_DATATYPE_NULL : type->handle, root, comm);
    else EITHER(Scatter, NULL, -1, MPI_DATATYPE_NULL, b.out.data, count, type->handle, root, comm);
    if (placed) CHECK(untouched(&b.out, 0, b.out.bytes), "Scatter in place wrote");
    else
        RIGHT("Scatter", first_moved_wrong(type, seed(), root, (size_t)rank * count, b.out.data, count), count, type,
              "");
    over(&b, type, "Scatter");
}

static void all_to_all(const struct type* type, size_t count, int in_place) {
    size_t all = count * (size_t)ranks;
    struct both b = both_of(type, -1, all, all);
    if (in_place) memcpy(b.out.data, b.in.data, all * type->size);
    MPI_Datatype from = in_place ? MPI_DATATYPE_NULL : type->handle;
    EITHER(Alltoall, in_place ? MPI_IN_PLACE : b.in.data, in_place ? 0 : count, from, b.out.data, count, type->handle,
           comm);
    for (int i = 0; i < ranks; i++) {
        const unsigned char* at = b.out.data + (size_t)i * count * type->size;
        RIGHT("Alltoall", first_moved_wrong(type, seed(), i, (size_t)rank * count, at, count), count, type, "");
    }
    over(&b, type, "Alltoall");
}

/* What goes from one rank to another; in place it must be the same both ways. */
static size_t sent(size_t count, int from, int to, int in_place) {
    return part(count, in_place ? from + to : from + 2 * to);
}

static void all_to_all_v(const struct type* type, size_t count, int in_place) {
    int given[MOST], from[MOST], counts[MOST], places[MOST], all = 0, end = 0;
    for (int i = 0; i < ranks; i++) given[i] = (int)sent(count, rank, i, in_place), from[i] = all, all += given[i];
    for (int i = ranks - 1; i >= 0; i--) {
        counts[i] = (int)sent(count, i, rank, in_place), places[i] = end + 1, end += counts[i] + 1;
    }
    struct both b = both_of(type, -1, (size_t)all, (size_t)end);
    if (in_place)
        for (int i = 0; i < ranks; i++)
            memcpy(b.out.data + (size_t)places[i] * type->size, b.in.data + (size_t)from[i] * type->size,
                   (size_t)given[i] * type->size);
    alltoallv(in_place ? MPI_IN_PLACE : b.in.data, given, from, type->handle, b.out.data, counts, places, type->handle,
              comm);
    for (int i = 0; i < ranks; i++) {
        size_t begin = 0;
        for (int to = 0; to < rank; to++) begin += sent(count, i, to, in_place);
        const unsigned char* at = b.out.data + (size_t)places[i] * type->size;
        RIGHT("Alltoallv", first_moved_wrong(type, seed(), i, begin, at, (size_t)counts[i]), (size_t)counts[i], type,
              "");
        CHECK(untouched(&b.out, (places[i] - 1) * (ptrdiff_t)type->size, type->size), "Alltoallv wrote to a gap");
    }
    over(&b, type, "Alltoallv");
}

/* MPICH 5.0.2 refuses to gather types whose elements are large or have holes, from four ranks on. */
static int gathers(const struct type* type) {
    return ranks < 4 || !is("MPICH") || is("Intel") || (type->size <= 8 && type->kind != PAIR);
}

static void moves(void) {
    for (int t = 0; t < type_count; t++)
        for (int s = 0; s < SIZES; s++) {
            if (s >= 4 && t % (s == 4 ? 7 : 13)) continue;
            for (int in_place = 0; in_place < 2; in_place++) {
                if (taken()) all_gather(&types[t], sizes[s], in_place);
                if (taken()) all_gather_v(&types[t], sizes[s], in_place);
                if (taken()) all_to_all(&types[t], sizes[s], in_place);
                if (taken()) all_to_all_v(&types[t], sizes[s], in_place);
                for (int root = 0; root < ranks; root++) {
                    if (taken() && gathers(&types[t])) gather(&types[t], sizes[s], in_place, root);
                    if (taken()) scatter(&types[t], sizes[s], in_place, root);
                    if (!in_place && taken()) broadcast(&types[t], sizes[s], root);
                }
            }
            if (taken()) MPI_Barrier(comm);
        }
}

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    stride = argc > 1 ? atol(argv[1]) : 1, first = argc > 2 ? atol(argv[2]) : 0;
    declare_types();
    MPI_Comm made[COMMUNICATORS];
    communicators(made);
    static const char* names[COMMUNICATORS] = {"on world", "on a dup", "on a split", "on reversed ranks", "on a part"};
    for (int i = 0; i < COMMUNICATORS; i++) {
        comm = made[i], where = names[i];
        MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &ranks);
        number = i; /* other cases are those of the sample on each */
        reductions();
        moves();
    }
    free_communicators(made);
    return end();
}
