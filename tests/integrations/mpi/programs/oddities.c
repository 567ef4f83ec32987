/* What MPI allows and an interposed library may forget: oddities [NAME ...], by default all, with fewer communicators.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const int lengths[] = {1, 4, 300, 40000};
#define EACH(n) \
    for (size_t n##_ = 0, n; n##_ < sizeof lengths / sizeof *lengths && ((n = (size_t)lengths[n##_]), 1); n##_++)

static int* ints(size_t n) { return calloc(n ? n : 1, sizeof(int)); }

/* Element i of what a rank gives. */
static int given(int rank, size_t i) { return (int)(mixed((uint64_t)rank << 32 | i) & 0xffff); }

static int* filled(int rank, size_t n, size_t step) {
    int* made = ints(n * step);
    for (size_t i = 0; i < n * step; i++) made[i] = i % step ? -1 : given(rank, i / step);
    return made;
}

static int right(const int* found, int rank, size_t from, size_t n, size_t step) {
    for (size_t i = 0; i < n; i++) {
        if (found[i * step] != given(rank, from + i)) return 0;
        for (size_t k = 1; k < step; k++)
            if (found[i * step + k] != -1) return 0;
    }
    return 1;
}

static MPI_Datatype committed(MPI_Datatype type) {
    MPI_Type_commit(&type);
    return type;
}

/* n ints, each followed by a gap of another. */
static MPI_Datatype gappy(size_t n) {
    MPI_Datatype vector, made;
    MPI_Type_vector((int)n, 1, 2, MPI_INT, &vector);
    MPI_Type_create_resized(vector, 0, (MPI_Aint)(2 * n * sizeof(int)), &made);
    MPI_Type_free(&vector);
    return committed(made);
}

static int odd_one(void) { return world_rank == 1 % world_size; }

/* Where ranks' counts or types differ in Allgather, MPIs choose algorithms that do not go together: from three ranks on
   all that were tried end or hang, and Intel MPI 2021.18 is wrong for some kilobytes on two. */
static int gathers(size_t n) { return world_size <= 2 && !(n == 300 && is("Intel")); }

/* ---- type signatures that differ between ranks, or lie differently */

static void bcast_as_bytes(void) {
    EACH(n) for (int root = 0; root < world_size; root++) {
        int* data = filled(root, n, 1);
        if (world_rank != root) memset(data, 0, n * sizeof(int));
        if (world_rank == root) MPI_Bcast(data, (int)n, MPI_INT, root, MPI_COMM_WORLD);
        else MPI_Bcast(data, (int)(n * sizeof(int)), MPI_BYTE, root, MPI_COMM_WORLD);
        CHECK(right(data, root, 0, n, 1), "%zu ints from %d", n, root);
        free(data);
    }
}

static void vector_in_bcast(void) {
    EACH(n) for (int root = 0; root < world_size; root++) {
        MPI_Datatype type = gappy(n);
        size_t step = odd_one() ? 2 : 1;
        int* data = filled(root, n, step);
        for (size_t i = 0; world_rank != root && i < n; i++) data[i * step] = 0;
        if (odd_one()) MPI_Bcast(data, 1, type, root, MPI_COMM_WORLD);
        else MPI_Bcast(data, (int)n, MPI_INT, root, MPI_COMM_WORLD);
        CHECK(right(data, root, 0, n, step), "%zu ints from %d", n, root);
        free(data), MPI_Type_free(&type);
    }
}

static void vector_in_gathers(void) {
    EACH(n) {
        MPI_Datatype type = gappy(n);
        size_t step = odd_one() ? 2 : 1, all = n * (size_t)world_size;
        int *in = filled(world_rank, n, step), *out = ints(all);
        int count = odd_one() ? 1 : (int)n;
        if (gathers(n)) {
            MPI_Allgather(in, count, odd_one() ? type : MPI_INT, out, (int)n, MPI_INT, MPI_COMM_WORLD);
            for (int i = 0; i < world_size; i++) CHECK(right(out + (size_t)i * n, i, 0, n, 1), "Allgather of %zu", n);
        }
        for (int root = 0; root < world_size; root++) {
            memset(out, 0, all * sizeof(int));
            MPI_Gather(in, count, odd_one() ? type : MPI_INT, out, (int)n, MPI_INT, root, MPI_COMM_WORLD);
            for (int i = 0; i < world_size && world_rank == root; i++)
                CHECK(right(out + (size_t)i * n, i, 0, n, 1), "Gather of %zu to %d", n, root);
        }
        free(in), free(out), MPI_Type_free(&type);
    }
}

/* One rank receives into gaps. */
static void vector_received(void) {
    EACH(n) if (gathers(n)) {
        MPI_Datatype type = gappy(n);
        size_t step = odd_one() ? 2 : 1;
        int *in = filled(world_rank, n, 1), *out = ints(n * step * (size_t)world_size);
        memset(out, -1, n * step * (size_t)world_size * sizeof(int));
        if (odd_one()) MPI_Allgather(in, (int)n, MPI_INT, out, 1, type, MPI_COMM_WORLD);
        else MPI_Allgather(in, (int)n, MPI_INT, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++)
            CHECK(right(out + (size_t)i * n * step, i, 0, n, step), "Allgather of %zu", n);
        int *counts = ints((size_t)world_size), *places = ints((size_t)world_size);
        for (int i = 0; i < world_size; i++) counts[i] = odd_one() ? 1 : (int)n, places[i] = odd_one() ? i : i * (int)n;
        memset(out, -1, n * step * (size_t)world_size * sizeof(int));
        MPI_Allgatherv(in, (int)n, MPI_INT, out, counts, places, odd_one() ? type : MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++)
            CHECK(right(out + (size_t)i * n * step, i, 0, n, step), "Allgatherv of %zu", n);
        free(in), free(out), free(counts), free(places), MPI_Type_free(&type);
    }
}

static void vector_in_scatter_and_all_to_all(void) {
    EACH(n) {
        MPI_Datatype type = gappy(n);
        size_t step = odd_one() ? 2 : 1, ranks = (size_t)world_size;
        int *in = filled(world_rank, n * ranks, 1), *out = ints(n * step * ranks);
        for (int root = 0; root < world_size; root++) {
            memset(out, -1, n * step * ranks * sizeof(int));
            if (odd_one()) MPI_Scatter(in, (int)n, MPI_INT, out, 1, type, root, MPI_COMM_WORLD);
            else MPI_Scatter(in, (int)n, MPI_INT, out, (int)n, MPI_INT, root, MPI_COMM_WORLD);
            CHECK(right(out, root, (size_t)world_rank * n, n, step), "Scatter of %zu from %d", n, root);
        }
        memset(out, -1, n * step * ranks * sizeof(int));
        if (odd_one()) MPI_Alltoall(in, (int)n, MPI_INT, out, 1, type, MPI_COMM_WORLD);
        else MPI_Alltoall(in, (int)n, MPI_INT, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++)
            CHECK(right(out + (size_t)i * n * step, i, (size_t)world_rank * n, n, step), "Alltoall of %zu", n);
        free(in), free(out), MPI_Type_free(&type);
    }
}

static void contiguous(void) {
    MPI_Datatype seven, nested, block, twin, steps, hsteps, single;
    MPI_Type_contiguous(7, MPI_INT, &seven);
    MPI_Type_contiguous(2, seven, &nested);
    MPI_Type_create_struct(2, (int[]){7, 7}, (MPI_Aint[]){0, 7 * sizeof(int)}, (MPI_Datatype[]){MPI_INT, MPI_INT},
                           &block);
    MPI_Type_dup(MPI_INT, &twin);
    MPI_Type_vector(5, 3, 3, MPI_INT, &steps);
    MPI_Type_create_hvector(4, 2, 2 * sizeof(int), MPI_INT, &hsteps);
    MPI_Type_vector(1, 6, 100, MPI_INT, &single);
    MPI_Datatype kinds[] = {committed(seven), committed(nested), committed(block), committed(twin),
                            committed(steps), committed(hsteps), committed(single)};
    const int many = sizeof kinds / sizeof *kinds;
    for (int k = 0; k < many; k++) EACH(n) {
            int size;
            MPI_Type_size(kinds[k], &size);
            size_t each = n * (size_t)size / sizeof(int);
            int *in = filled(world_rank, each, 1), *out = ints(each * (size_t)world_size);
            /* the signature is the same, whatever the types are called */
            int same = is("Intel"); /* which does not expect that */
            MPI_Allgather(in, (int)n, kinds[k], out, (int)(same ? n : each), same ? kinds[k] : MPI_INT, MPI_COMM_WORLD);
            for (int i = 0; i < world_size; i++)
                CHECK(right(out + (size_t)i * each, i, 0, each, 1), "Allgather, type %d", k);
            if (odd_one()) MPI_Bcast(in, (int)each, MPI_INT, 0, MPI_COMM_WORLD);
            else MPI_Bcast(in, (int)n, kinds[k], 0, MPI_COMM_WORLD);
            CHECK(right(in, 0, 0, each, 1), "Bcast, type %d", k);
            free(in), free(out);
        }
    for (int k = 0; k < many; k++) MPI_Type_free(&kinds[k]);
}

/* Extents larger and smaller than the data, and a lower bound that is not zero. */
static void resized(void) {
    EACH(n) {
        MPI_Datatype wide, below, column, one;
        MPI_Type_create_resized(MPI_INT, 0, 3 * sizeof(int), &wide);
        MPI_Type_create_resized(MPI_INT, -(MPI_Aint)sizeof(int), 2 * sizeof(int), &below);
        committed(wide), committed(below);
        int *in = filled(world_rank, n, 3), *out = ints(n * (size_t)world_size);
        MPI_Allgather(in, (int)n, wide, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++) CHECK(right(out + (size_t)i * n, i, 0, n, 1), "wide");
        free(in), in = filled(world_rank, n, 2);
        MPI_Allgather(in, (int)n, below, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++) CHECK(right(out + (size_t)i * n, i, 0, n, 1), "below");
        free(in), in = filled(world_rank, n, 1);
        /* each rank gives a column of a matrix with as many columns as ranks */
        MPI_Type_vector((int)n, 1, world_size, MPI_INT, &column);
        MPI_Type_create_resized(column, 0, sizeof(int), &one);
        committed(one);
        MPI_Allgather(in, (int)n, MPI_INT, out, 1, one, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++)
            for (size_t k = 0; k < n; k++)
                CHECK(out[k * (size_t)world_size + (size_t)i] == given(i, k), "column %d", i);
        free(in), free(out);
        MPI_Type_free(&wide), MPI_Type_free(&below), MPI_Type_free(&column), MPI_Type_free(&one);
    }
}

static void bottom(void) {
    EACH(n) {
        int *in = filled(world_rank, n, 1), *out = ints(n * (size_t)world_size);
        MPI_Aint address;
        MPI_Datatype there;
        MPI_Get_address(in, &address);
        MPI_Type_create_hindexed(1, (int[]){(int)n}, &address, MPI_INT, &there);
        committed(there);
        if (gathers(n)) MPI_Allgather(MPI_BOTTOM, 1, there, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size && gathers(n); i++) CHECK(right(out + (size_t)i * n, i, 0, n, 1), "Allgather");
        if (odd_one()) MPI_Bcast(MPI_BOTTOM, 1, there, 0, MPI_COMM_WORLD);
        else MPI_Bcast(in, (int)n, MPI_INT, 0, MPI_COMM_WORLD);
        CHECK(right(in, 0, 0, n, 1), "Bcast");
        free(in), free(out), MPI_Type_free(&there);
    }
}

static void zero(void) {
    int nothing[64] = {0}, one = world_rank, sum = 0;
    MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    for (int c = 0; c < 2; c++) {
        MPI_Comm comm = comms[c];
        MPI_Bcast(NULL, 0, MPI_INT, 0, comm);
        MPI_Allreduce(NULL, NULL, 0, MPI_DOUBLE, MPI_SUM, comm);
        MPI_Reduce(NULL, NULL, 0, MPI_DOUBLE, MPI_MAX, 0, comm);
        MPI_Allgather(NULL, 0, MPI_INT, NULL, 0, MPI_INT, comm);
        MPI_Gather(NULL, 0, MPI_INT, NULL, 0, MPI_INT, 0, comm);
        MPI_Scatter(NULL, 0, MPI_INT, NULL, 0, MPI_INT, 0, comm);
        MPI_Alltoall(NULL, 0, MPI_INT, NULL, 0, MPI_INT, comm);
        MPI_Allgatherv(NULL, 0, MPI_INT, NULL, nothing, nothing, MPI_INT, comm);
        MPI_Alltoallv(&one, nothing, nothing, MPI_INT, &sum, nothing, nothing, MPI_INT, comm);
        MPI_Reduce_scatter(NULL, NULL, nothing, MPI_INT, MPI_SUM, comm);
        MPI_Reduce_scatter_block(NULL, NULL, 0, MPI_INT, MPI_SUM, comm);
        MPI_Barrier(comm);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
        CHECK(sum == (c ? world_rank : world_size * (world_size - 1) / 2), "the sum is %d", sum);
    }
}

/* ---- operators */

static void maximum(void* in, void* out, int* count, MPI_Datatype* type) {
    (void)type;
    for (int i = 0; i < *count; i++)
        if (((int*)in)[i] > ((int*)out)[i]) ((int*)out)[i] = ((int*)in)[i];
}

/* Products of 2x2 matrices: the order of ranks shows. */
static void product(void* in, void* out, int* count, MPI_Datatype* type) {
    (void)type;
    for (int i = 0; i < *count; i++) {
        unsigned *a = (unsigned*)in + 4 * i, *b = (unsigned*)out + 4 * i;
        unsigned c[4] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
                         a[2] * b[1] + a[3] * b[3]};
        memcpy(b, c, sizeof c);
    }
}

static void user_operators(void) {
    MPI_Op most, matrices;
    MPI_Datatype matrix;
    MPI_Op_create(maximum, 1, &most);
    MPI_Op_create(product, 0, &matrices);
    MPI_Type_contiguous(4, MPI_UNSIGNED, &matrix);
    committed(matrix);
    EACH(n) {
        int *in = filled(world_rank, 4 * n, 1), *out = ints(4 * n);
        unsigned* want = (unsigned*)filled(0, 4 * n, 1);
        MPI_Allreduce(in, out, (int)n, MPI_INT, most, MPI_COMM_WORLD);
        for (size_t i = 0; i < n; i++) {
            int largest = 0;
            for (int rank = 0; rank < world_size; rank++) largest = given(rank, i) > largest ? given(rank, i) : largest;
            CHECK(out[i] == largest, "element %zu", i);
        }
        for (int rank = 1, count = (int)n; rank < world_size; rank++) {
            unsigned* next = (unsigned*)filled(rank, 4 * n, 1);
            product(want, next, &count, NULL);
            free(want), want = next;
        }
        MPI_Allreduce(in, out, (int)n, matrix, matrices, MPI_COMM_WORLD);
        CHECK(!memcmp(out, want, 4 * n * sizeof(int)), "Allreduce of %zu matrices", n);
        memset(out, 0, 4 * n * sizeof(int));
        MPI_Reduce(in, out, (int)n, matrix, matrices, world_size - 1, MPI_COMM_WORLD);
        CHECK(world_rank != world_size - 1 || !memcmp(out, want, 4 * n * sizeof(int)), "Reduce of %zu matrices", n);
        free(in), free(out), free(want);
    }
    MPI_Op_free(&most), MPI_Op_free(&matrices), MPI_Type_free(&matrix);
}

/* ---- communicators */

static void works(MPI_Comm comm, const char* which) {
    int rank, ranks, sum = -1, root;
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &ranks);
    int one = rank + 1;
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    CHECK(sum == ranks * (ranks + 1) / 2, "Allreduce on %s comes to %d", which, sum);
    root = rank == ranks - 1 ? 77 : 0;
    MPI_Bcast(&root, 1, MPI_INT, ranks - 1, comm);
    CHECK(root == 77, "Bcast on %s", which);
    int* data = filled(rank, 5000, 1);
    MPI_Allreduce(MPI_IN_PLACE, data, 5000, MPI_INT, MPI_SUM, comm);
    for (size_t i = 0; i < 5000; i += 999) {
        int want = 0;
        for (int k = 0; k < ranks; k++) want += given(k, i);
        CHECK(data[i] == want, "Allreduce of 5000 on %s", which);
    }
    free(data);
    MPI_Barrier(comm);
}

static void intercommunicator(void) {
    if (world_size < 2) return;
    MPI_Comm mine, both, merged;
    int side = world_rank % 2, value, sum, others = side ? (world_size + 1) / 2 : world_size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, 0, &mine);
    MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, 1 - side, 9, &both);
    value = 1;
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, both);
    CHECK(sum == others, "the other side's sum is %d", sum);
    value = side ? 0 : 5;
    MPI_Bcast(&value, 1, MPI_INT, side ? 0 : world_rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
    CHECK(value == 5, "Bcast to the other side");
    int* found = ints((size_t)others);
    MPI_Allgather(&world_rank, 1, MPI_INT, found, 1, MPI_INT, both);
    for (int i = 0; i < others; i++) CHECK(found[i] == 2 * i + 1 - side, "Allgather of the other side");
    MPI_Barrier(both);
    MPI_Intercomm_merge(both, side, &merged);
    works(merged, "a merged one");
    free(found);
    MPI_Comm_free(&merged), MPI_Comm_free(&both), MPI_Comm_free(&mine);
}

static void ways_to_make_communicators(void) {
    MPI_Comm made;
    MPI_Group all, some;
    MPI_Request request;
    int none[1] = {0};
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, (int[]){world_size - 1}, &some);
    MPI_Comm_create(MPI_COMM_WORLD, some, &made);
    if (made != MPI_COMM_NULL) works(made, "Comm_create's"), MPI_Comm_free(&made);
    if (world_rank == world_size - 1)
        MPI_Comm_create_group(MPI_COMM_WORLD, some, 3, &made), works(made, "Comm_create_group's"),
            MPI_Comm_disconnect(&made);
    MPI_Comm_idup(MPI_COMM_WORLD, &made, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    works(made, "Comm_idup's"), MPI_Comm_disconnect(&made);
    CHECK(made == MPI_COMM_NULL, "after Comm_disconnect");
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, MPI_INFO_NULL, &made);
    works(made, "Comm_dup_with_info's"), MPI_Comm_free(&made);
    CHECK(made == MPI_COMM_NULL, "after Comm_free");
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, -world_rank, MPI_INFO_NULL, &made);
    works(made, "Comm_split_type's"), MPI_Comm_free(&made);
    MPI_Cart_create(MPI_COMM_WORLD, 1, &world_size, (int[]){1}, 1, &made);
    MPI_Comm row;
    works(made, "Cart_create's"), MPI_Cart_sub(made, (int[]){1}, &row), works(row, "Cart_sub's");
    MPI_Comm_free(&row), MPI_Comm_free(&made);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 0, none, none, 0, none, none, MPI_INFO_NULL, 0, &made);
    works(made, "Dist_graph_create_adjacent's"), MPI_Comm_free(&made);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank ? 1 : MPI_UNDEFINED, 0, &made);
    if (world_rank) works(made, "one without rank 0"), MPI_Comm_free(&made);
    MPI_Group_free(&some), MPI_Group_free(&all);
    works(MPI_COMM_WORLD, "world"), works(MPI_COMM_SELF, "self");
}

/* Neighbours share communicators, so that no two ranks see them in the same order. */
static void chain(void) {
    MPI_Comm left, right;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank / 2, 0, &left);
    MPI_Comm_split(MPI_COMM_WORLD, (world_rank + 1) / 2, 0, &right);
    for (int i = 0; i < 50; i++)
        works(world_rank % 2 ? left : right, "a pair"), works(world_rank % 2 ? right : left, "a pair");
    MPI_Comm_free(&left), MPI_Comm_free(&right);
}

static int many = 200;

static void many_communicators(void) {
    MPI_Comm made, held[32];
    for (int i = 0; i < many; i++) {
        int one = 1, sum = 0;
        if (i % 10) MPI_Comm_dup(MPI_COMM_WORLD, &made);
        else MPI_Comm_split(MPI_COMM_WORLD, 0, i % 20 ? world_rank : -world_rank, &made);
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, made);
        CHECK(sum == world_size, "communicator %d", i);
        MPI_Comm_free(&made);
    }
    for (int i = 0; i < 32; i++) MPI_Comm_dup(i % 3 ? MPI_COMM_WORLD : MPI_COMM_SELF, &held[i]);
    for (int i = 31; i >= 0; i--) works(held[i], "one of many");
    for (int i = 0; i < 32; i++) MPI_Comm_free(&held[i]);
}

static int copies, deletions;

static int copy(MPI_Comm comm, int key, void* extra, void* in, void* out, int* flag) {
    (void)comm, (void)key, (void)extra;
    *(void**)out = in, *flag = 1, copies++;
    return MPI_SUCCESS;
}

static int deleted(MPI_Comm comm, int key, void* value, void* extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    deletions++;
    return MPI_SUCCESS;
}

static void attributes(void) {
    int key, found;
    void* value;
    MPI_Comm first, second;
    copies = deletions = 0;
    MPI_Comm_create_keyval(copy, deleted, &key, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &first);
    works(first, "one with an attribute");
    MPI_Comm_set_attr(first, key, &key);
    MPI_Comm_dup(first, &second);
    MPI_Comm_get_attr(second, key, &value, &found);
    CHECK(found && value == &key && copies == 1, "%d copies", copies);
    works(second, "one with a copied attribute");
    MPI_Comm_free(&first);
    works(second, "the dup of one that is freed");
    MPI_Comm_delete_attr(second, key);
    MPI_Comm_free(&second);
    CHECK(deletions == 2, "%d deletions", deletions);
    MPI_Comm_free_keyval(&key);
}

/* Runs as Finalize frees COMM_SELF: all of MPI must still work. */
static int last(MPI_Comm comm, int key, void* value, void* extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    works(MPI_COMM_WORLD, "world in Finalize");
    return MPI_SUCCESS;
}

static void in_finalize(void) {
    int key;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, last, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

/* Whoever calls a library gives it a dup, and frees it with messages under way. */
static void freed_early(void) {
    MPI_Comm made;
    MPI_Request request;
    int got = -1, next = (world_rank + 1) % world_size, before = (world_rank + world_size - 1) % world_size;
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    works(made, "one that is freed early");
    MPI_Irecv(&got, 1, MPI_INT, before, 5, made, &request);
    MPI_Send(&world_rank, 1, MPI_INT, next, 5, made);
    MPI_Comm_free(&made);
    works(MPI_COMM_WORLD, "world");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(got == before, "got %d", got);
}

/* ---- calls beside the collectives */

static void non_blocking(void) {
    enum { N = 30000 };
    int *a = filled(world_rank, N, 1), *b = ints(N), *c = filled(0, N, 1);
    MPI_Request requests[3];
    if (world_rank) memset(c, 0, N * sizeof(int));
    MPI_Iallreduce(a, b, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    works(MPI_COMM_WORLD, "world under Iallreduce");
    MPI_Ibcast(c, N, MPI_INT, 0, MPI_COMM_WORLD, &requests[1]);
    works(MPI_COMM_WORLD, "world under Ibcast");
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[2]);
    works(MPI_COMM_WORLD, "world under Ibarrier");
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    CHECK(right(c, 0, 0, N, 1), "Ibcast");
    for (size_t i = 0; i < N; i++) {
        int want = 0;
        for (int k = 0; k < world_size; k++) want += given(k, i);
        CHECK(b[i] == want, "Iallreduce, element %zu", i);
    }
    free(a), free(b), free(c);
}

static void persistent(void) {
#if MPI_VERSION >= 4
    int one = world_rank + 1, sum = 0;
    MPI_Request request;
    MPI_Allreduce_init(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    for (int i = 0; i < 20; i++) {
        sum = 0;
        MPI_Start(&request);
        works(MPI_COMM_WORLD, "world under Allreduce_init's");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(sum == world_size * (world_size + 1) / 2, "start %d", i);
    }
    MPI_Request_free(&request);
#endif
}

/* A receive from anybody must take none of a library's own messages. */
static void from_anybody(void) {
    int got = -1, flag;
    MPI_Request request;
    MPI_Comm fresh;
    MPI_Status status;
    MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &fresh);
    works(fresh, "one that is made under Irecv"), works(MPI_COMM_WORLD, "world under Irecv");
    MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "something came that nobody sent");
    MPI_Barrier(fresh);
    MPI_Send(&world_rank, 1, MPI_INT, (world_rank + 1) % world_size, 123, MPI_COMM_WORLD);
    if (!flag) MPI_Wait(&request, &status);
    CHECK(got == (world_rank + world_size - 1) % world_size && status.MPI_TAG == 123, "got %d", got);
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "a message is left");
    MPI_Comm_free(&fresh);
}

static void others(void) {
    int one = world_rank + 1, sum = 0, *all = ints((size_t)world_size), *counts = ints((size_t)world_size),
        *places = ints((size_t)world_size);
    MPI_Scan(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == one * (one + 1) / 2, "Scan");
    MPI_Exscan(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(!world_rank || sum == one * (one - 1) / 2, "Exscan");
    for (int i = 0; i < world_size; i++) counts[i] = 1, places[i] = world_size - 1 - i;
    MPI_Gatherv(&one, 1, MPI_INT, all, counts, places, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; !world_rank && i < world_size; i++) CHECK(all[world_size - 1 - i] == i + 1, "Gatherv");
    MPI_Scatterv(all, counts, places, MPI_INT, &sum, 1, MPI_INT, 0, MPI_COMM_WORLD);
    CHECK(sum == one, "Scatterv");
    MPI_Datatype* kinds = malloc((size_t)world_size * sizeof *kinds);
    int* in = filled(world_rank, (size_t)world_size, 1);
    for (int i = 0; i < world_size; i++) kinds[i] = MPI_INT, places[i] = i * (int)sizeof(int);
    MPI_Alltoallw(in, counts, places, kinds, all, counts, places, kinds, MPI_COMM_WORLD);
    for (int i = 0; i < world_size; i++) CHECK(all[i] == given(i, (size_t)world_rank), "Alltoallw");
    MPI_Reduce_local(&one, &sum, 1, MPI_INT, MPI_SUM);
    CHECK(sum == 2 * one, "Reduce_local");
    free(in), free(all), free(counts), free(places), free(kinds);
}

/* ---- memory and processes */

/* What is only given may lie where nobody can write. */
static void read_only(void) {
    EACH(n) {
        size_t bytes = n * (size_t)world_size * sizeof(int);
        int *in = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
            *out = ints(n * (size_t)world_size);
        for (size_t i = 0; i < n * (size_t)world_size; i++) in[i] = given(world_rank, i);
        mprotect(in, bytes, PROT_READ);
        int writes = is("MPICH") || is("Intel"); /* to the buffer of Bcast's root */
        for (int root = 0; root < world_size && !writes; root++) {
            MPI_Bcast(world_rank == root ? in : out, (int)n, MPI_INT, root, MPI_COMM_WORLD);
            CHECK(world_rank == root || right(out, root, 0, n, 1), "Bcast");
        }
        MPI_Allgather(in, (int)n, MPI_INT, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        MPI_Alltoall(in, (int)n, MPI_INT, out, (int)n, MPI_INT, MPI_COMM_WORLD);
        for (int i = 0; i < world_size; i++)
            CHECK(right(out + (size_t)i * n, i, (size_t)world_rank * n, n, 1), "Alltoall");
        MPI_Allreduce(in, out, (int)n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        free(out), munmap(in, bytes);
    }
}

/* A rank's child ends as any process does, and the rank goes on. */
static void forked(void) {
    works(MPI_COMM_WORLD, "world before fork");
    fflush(NULL);
    pid_t child = fork();
    if (!child) exit(0); /* with all that is done at exit */
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "the child's status is %d", status);
    CHECK(system("exit 3") == 3 << 8, "system");
    works(MPI_COMM_WORLD, "world after fork");
}

/* No rank leaves a barrier before all have come. */
static void barrier(void) {
    MPI_Win window;
    MPI_Aint size;
    int unit, *count;
    MPI_Win_allocate_shared(world_rank ? 0 : sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &count, &window);
    MPI_Win_shared_query(window, 0, &size, &unit, &count);
    if (!world_rank) *count = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 1; i <= 500; i++) {
        __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(__atomic_load_n(count, __ATOMIC_SEQ_CST) >= i * world_size, "barrier %d", i);
    }
    MPI_Win_free(&window);
}

#define NAMED(name) {#name, name}

static const struct {
    const char* name;
    void (*run)(void);
} oddities[] = {
    NAMED(bcast_as_bytes),
    NAMED(vector_in_bcast),
    NAMED(vector_in_gathers),
    NAMED(vector_received),
    NAMED(vector_in_scatter_and_all_to_all),
    NAMED(contiguous),
    NAMED(resized),
    NAMED(bottom),
    NAMED(zero),
    NAMED(user_operators),
    NAMED(intercommunicator),
    NAMED(ways_to_make_communicators),
    NAMED(chain),
    NAMED(attributes),
    NAMED(freed_early),
    NAMED(non_blocking),
    NAMED(persistent),
    NAMED(from_anybody),
    NAMED(others),
    NAMED(read_only),
    NAMED(forked),
    NAMED(barrier),
    NAMED(many_communicators),
    NAMED(in_finalize),
};

int main(int argc, char** argv) {
    begin(&argc, &argv, MPI_THREAD_SINGLE);
    for (size_t i = 0; i < sizeof oddities / sizeof *oddities; i++) {
        int wanted = argc == 1;
        if (!wanted) many = 2000;
        for (int k = 1; k < argc; k++) wanted |= !strcmp(argv[k], oddities[i].name);
        if (!wanted) continue;
        long before = failures;
        oddities[i].run();
        if (!world_rank || failures > before)
            printf("%s: %s\n", oddities[i].name, failures > before ? "failed" : "done");
        fflush(stdout);
    }
    return end();
}
