/* Predefined types and operators: elements of given values, and what the operators make of them. */
#pragma once

#include <float.h>
#include <math.h>
#include <wchar.h>

#include "check.h"

enum kind { SIGNED, UNSIGNED, FLOATING, COMPLEX, TRUTH, BYTES, PAIR, OPAQUE };

/* `half`: bytes of a complex number's parts, of a pair's value. `at`: where a pair's index lies. */
struct type {
    const char* name;
    MPI_Datatype handle;
    size_t size;
    enum kind kind;
    size_t half, at;
    enum kind of;
};

struct op {
    const char* name;
    MPI_Op handle;
};

enum { MAX, MIN, SUM, PROD, LAND, LOR, LXOR, BAND, BOR, BXOR, MAXLOC, MINLOC, OPERATORS };

static struct op operators[OPERATORS];

struct float_int {
    float value;
    int index;
};
struct double_int {
    double value;
    int index;
};
struct long_int {
    long value;
    int index;
};
struct int_int {
    int value;
    int index;
};
struct short_int {
    short value;
    int index;
};
struct long_double_int {
    long double value;
    int index;
};

enum { TYPES = 45 };
static struct type types[TYPES];
static int type_count;

#define ADD(handle_, c_, kind_) \
    types[type_count++] = (struct type) { #handle_, handle_, sizeof(c_), kind_, sizeof(c_) / 2, 0, kind_ }
#define ADD_PAIR(handle_, c_, of_)                                                                                  \
    types[type_count++] = (struct type) {                                                                           \
        #handle_, handle_, sizeof(struct c_), PAIR, sizeof(((struct c_*)0)->value), offsetof(struct c_, index), of_ \
    }

static inline void declare_operators(void) {
#define OP(name) operators[name] = (struct op){#name, MPI_##name}
    OP(MAX), OP(MIN), OP(SUM), OP(PROD), OP(LAND), OP(LOR), OP(LXOR), OP(BAND), OP(BOR), OP(BXOR), OP(MAXLOC),
        OP(MINLOC);
#undef OP
}

static inline void declare_types(void) {
    ADD(MPI_SIGNED_CHAR, signed char, SIGNED);
    ADD(MPI_SHORT, short, SIGNED);
    ADD(MPI_INT, int, SIGNED);
    ADD(MPI_LONG, long, SIGNED);
    ADD(MPI_LONG_LONG, long long, SIGNED);
    ADD(MPI_INT8_T, int8_t, SIGNED);
    ADD(MPI_INT16_T, int16_t, SIGNED);
    ADD(MPI_INT32_T, int32_t, SIGNED);
    ADD(MPI_INT64_T, int64_t, SIGNED);
    ADD(MPI_UNSIGNED_CHAR, unsigned char, UNSIGNED);
    ADD(MPI_UNSIGNED_SHORT, unsigned short, UNSIGNED);
    ADD(MPI_UNSIGNED, unsigned, UNSIGNED);
    ADD(MPI_UNSIGNED_LONG, unsigned long, UNSIGNED);
    ADD(MPI_UNSIGNED_LONG_LONG, unsigned long long, UNSIGNED);
    ADD(MPI_UINT8_T, uint8_t, UNSIGNED);
    ADD(MPI_UINT16_T, uint16_t, UNSIGNED);
    ADD(MPI_UINT32_T, uint32_t, UNSIGNED);
    ADD(MPI_UINT64_T, uint64_t, UNSIGNED);
    ADD(MPI_AINT, MPI_Aint, SIGNED);
    ADD(MPI_OFFSET, MPI_Offset, SIGNED);
    ADD(MPI_COUNT, MPI_Count, SIGNED);
    ADD(MPI_FLOAT, float, FLOATING);
    ADD(MPI_DOUBLE, double, FLOATING);
    ADD(MPI_LONG_DOUBLE, long double, FLOATING);
    ADD(MPI_C_FLOAT_COMPLEX, float _Complex, COMPLEX);
    ADD(MPI_C_DOUBLE_COMPLEX, double _Complex, COMPLEX);
    ADD(MPI_C_LONG_DOUBLE_COMPLEX, long double _Complex, COMPLEX);
    ADD(MPI_C_BOOL, _Bool, TRUTH);
    ADD(MPI_BYTE, char, BYTES);
    ADD_PAIR(MPI_FLOAT_INT, float_int, FLOATING);
    ADD_PAIR(MPI_DOUBLE_INT, double_int, FLOATING);
    ADD_PAIR(MPI_LONG_INT, long_int, SIGNED);
    ADD_PAIR(MPI_2INT, int_int, SIGNED);
    ADD_PAIR(MPI_SHORT_INT, short_int, SIGNED);
    ADD_PAIR(MPI_LONG_DOUBLE_INT, long_double_int, FLOATING);
    ADD(MPI_CHAR, char, OPAQUE);
    ADD(MPI_WCHAR, wchar_t, OPAQUE);
    ADD(MPI_PACKED, char, OPAQUE);
    struct type triple = {"three ints", MPI_DATATYPE_NULL, 3 * sizeof(int), OPAQUE, 0, 0, OPAQUE};
    MPI_Type_contiguous(3, MPI_INT, &triple.handle);
    MPI_Type_commit(&triple.handle);
    types[type_count++] = triple;
    declare_operators();
}

static inline int allowed(const struct type* type, int op) {
    int loc = op == MAXLOC || op == MINLOC, bits = op == BAND || op == BOR || op == BXOR;
    int logical = op == LAND || op == LOR || op == LXOR;
    switch (type->kind) {
        case SIGNED:
        case UNSIGNED: /* logical operators are not for MPI_AINT, MPI_OFFSET and MPI_COUNT */
            return !loc &&
                   !(logical && (type->handle == MPI_AINT || type->handle == MPI_OFFSET || type->handle == MPI_COUNT));
        case FLOATING:
            return op <= PROD;
        case COMPLEX:
            return op == SUM || op == PROD;
        case TRUTH:
            return logical;
        case BYTES:
            return bits;
        case PAIR:
            return loc;
        default:
            return 0;
    }
}

/* An element: `i` of integers, `re` and `im` of other numbers, `index` of pairs. Integers of all sizes are kept with
   their sign extended, and unsigned ones with zeros. */
struct value {
    int64_t i;
    long double re, im;
    int index;
};

static inline int64_t fitting(const struct type* type, size_t size, int64_t i) {
    int unused = (int)(8 * (8 - size));
    return type->kind == SIGNED || type->kind == PAIR ? (int64_t)((uint64_t)i << unused) >> unused
                                                      : (int64_t)((uint64_t)i << unused >> unused);
}

static inline void put_float(void* at, size_t size, long double value) {
    float f = (float)value;
    double d = (double)value;
    if (size == sizeof(float)) memcpy(at, &f, sizeof f);
    else if (size == sizeof(double)) memcpy(at, &d, sizeof d);
    else memcpy(at, &value, 10);
}

static inline long double get_float(const void* at, size_t size) {
    float f;
    double d;
    long double l = 0;
    if (size == sizeof(float)) return memcpy(&f, at, sizeof f), f;
    if (size == sizeof(double)) return memcpy(&d, at, sizeof d), d;
    return memcpy(&l, at, 10), l;
}

static inline void put(const struct type* type, unsigned char* at, struct value value) {
    memset(at, 0, type->size);
    switch (type->kind) {
        case FLOATING:
            put_float(at, type->size, value.re);
            break;
        case COMPLEX:
            put_float(at, type->half, value.re);
            put_float(at + type->half, type->half, value.im);
            break;
        case PAIR:
            if (type->of == FLOATING) put_float(at, type->half, value.re);
            else memcpy(at, &value.i, type->half);
            memcpy(at + type->at, &value.index, sizeof(int));
            break;
        case OPAQUE:
            for (size_t k = 0; k < type->size; k++) at[k] = (unsigned char)(value.i >> (8 * (k % 8)));
            break;
        default:
            memcpy(at, &value.i, type->size);
    }
}

static inline struct value get(const struct type* type, const unsigned char* at) {
    struct value value = {0, 0, 0, 0};
    switch (type->kind) {
        case FLOATING:
            value.re = get_float(at, type->size);
            break;
        case COMPLEX:
            value.re = get_float(at, type->half);
            value.im = get_float(at + type->half, type->half);
            break;
        case PAIR:
            if (type->of == FLOATING) value.re = get_float(at, type->half);
            else memcpy(&value.i, at, type->half), value.i = fitting(type, type->half, value.i);
            memcpy(&value.index, at + type->at, sizeof(int));
            break;
        case OPAQUE:
            memcpy(&value.i, at, type->size < 8 ? type->size : 8);
            break;
        default:
            memcpy(&value.i, at, type->size), value.i = fitting(type, type->size, value.i);
    }
    return value;
}

static inline int64_t made_integer(const struct type* type, int op, uint64_t bits, int rank) {
    int64_t truth = type->kind == TRUTH ? 1 : (int64_t)(1 + bits / 4 % 100);
    int64_t ones = 0x0101010101010101; /* every byte of an integer takes part in a sum, and no sum overflows */
    switch (op) {
        case SUM:
            return (type->kind == SIGNED ? (int64_t)(bits % 15) - 7 : (int64_t)(bits % 15)) * ones;
        case PROD:
            return (type->kind == SIGNED ? (int64_t[]){1, 2, -1}[bits % 3] : (int64_t)(1 + bits % 2)) *
                   (rank ? 1 : ones);
        case LAND:
            return bits % 4 ? truth : 0;
        case LOR:
            return bits % 4 ? 0 : truth;
        case LXOR:
            return bits % 2 ? truth : 0;
        default:
            return (int64_t)(type->handle == MPI_OFFSET ? bits >> 1 : bits); /* Open MPI takes it as unsigned */
    }
}

/* Element i of a rank, for an operator, or any element where there is none (-1). */
static inline struct value made(const struct type* type, int op, uint64_t seed, int rank, size_t i) {
    uint64_t bits = mixed(seed + mixed((uint64_t)rank * 1000003u + i));
    struct value value = {0, 0, 0, 0};
    unsigned char element[64];
    switch (type->kind) {
        case FLOATING:
        case COMPLEX:
            value.re =
                op == PROD ? 0.75L + (long double)(bits % 1000) / 1999 : ((long double)(bits % 20001) - 10000) / 7;
            if (type->kind == FLOATING) value.re *= bits >> 63 ? -1 : 1;
            else value.im = op == PROD ? 0.3L : ((long double)(bits / 20001 % 20001) - 10000) / 7;
            break;
        case TRUTH:
            value.i = made_integer(type, op < 0 ? LXOR : op, bits, rank);
            break;
        case PAIR:
            value.re = value.i = (int64_t)(bits % 5) - 2, value.index = (int)(bits >> 20 & 0xff) % 50;
            break;
        case OPAQUE:
            value.i = (int64_t)bits;
            break;
        default:
            value.i = fitting(type, type->size, made_integer(type, op, bits, rank));
    }
    put(type, element, value);
    return get(type, element);
}

static inline struct value combined(const struct type* type, int op, struct value a, struct value b) {
    int floating = type->kind == FLOATING || (type->kind == PAIR && type->of == FLOATING);
    int less = floating ? a.re < b.re : type->kind == UNSIGNED ? (uint64_t)a.i < (uint64_t)b.i : a.i < b.i;
    int same = floating ? a.re == b.re : a.i == b.i;
    struct value c = a;
    switch (op) {
        case MAX:
            return less ? b : a;
        case MIN:
            return less ? a : b;
        case SUM:
            c.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i), c.re = a.re + b.re, c.im = a.im + b.im;
            break;
        case PROD:
            c.i = (int64_t)((uint64_t)a.i * (uint64_t)b.i);
            c.re = a.re * b.re - a.im * b.im, c.im = a.re * b.im + a.im * b.re;
            break;
        case LAND:
            c.i = a.i && b.i;
            break;
        case LOR:
            c.i = a.i || b.i;
            break;
        case LXOR:
            c.i = !a.i != !b.i;
            break;
        case BAND:
            c.i = a.i & b.i;
            break;
        case BOR:
            c.i = a.i | b.i;
            break;
        case BXOR:
            c.i = a.i ^ b.i;
            break;
        default:
            if (!same) return less == (op == MAXLOC) ? b : a;
            c.index = a.index < b.index ? a.index : b.index;
    }
    if (type->kind == SIGNED || type->kind == UNSIGNED) c.i = fitting(type, type->size, c.i);
    return c;
}

static inline long double absolute(struct value value) { return hypotl(value.re, value.im); }

/* Whether the operator rounds on this type, so that the order of a sum shows. */
static inline int rounds(const struct type* type, int op) {
    return (type->kind == FLOATING || type->kind == COMPLEX) && (op == SUM || op == PROD);
}

/* What ranks elements' sum or product may differ by from another order's: p eps sum|x|, or that of a product. */
static inline long double bound(const struct type* type, int op, uint64_t seed, int ranks, size_t i) {
    size_t part = type->kind == COMPLEX ? type->half : type->size;
    long double epsilon = part == sizeof(float) ? FLT_EPSILON : part == sizeof(double) ? DBL_EPSILON : LDBL_EPSILON;
    long double sum = 0, product = 1;
    for (int rank = 0; rank < ranks; rank++) {
        long double size = absolute(made(type, op, seed, rank, i));
        sum += size, product *= size;
    }
    return ranks * epsilon * (op == SUM ? sum : product * (type->kind == COMPLEX ? 4 : 1));
}

static inline int agree(const struct type* type, int op, struct value a, struct value b, long double within) {
    if (rounds(type, op)) return fabsl(a.re - b.re) <= within && fabsl(a.im - b.im) <= within;
    return a.i == b.i && a.re == b.re && a.im == b.im && a.index == b.index;
}

static inline void fill(const struct type* type, int op, uint64_t seed, int rank, size_t from, unsigned char* at,
                        size_t count) {
    for (size_t i = 0; i < count; i++) put(type, at + i * type->size, made(type, op, seed, rank, from + i));
}

/* The first of `count` elements, which begin with element `from`, that is not what the ranks' elements make; count if
   all are. */
static inline size_t first_wrong(const struct type* type, int op, uint64_t seed, int ranks, size_t from,
                                 const unsigned char* at, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct value want = made(type, op, seed, 0, from + i);
        for (int rank = 1; rank < ranks; rank++) want = combined(type, op, want, made(type, op, seed, rank, from + i));
        struct value got = get(type, at + i * type->size);
        if (agree(type, op, got, want, 0)) continue;
        if (!rounds(type, op) || !agree(type, op, got, want, bound(type, op, seed, ranks, from + i))) return i;
    }
    return count;
}

/* The same of elements that one rank made, for data that is only moved. */
static inline size_t first_moved_wrong(const struct type* type, uint64_t seed, int rank, size_t from,
                                       const unsigned char* at, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!agree(type, -1, get(type, at + i * type->size), made(type, -1, seed, rank, from + i), 0)) return i;
    return count;
}
