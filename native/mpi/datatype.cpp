#include "mpi/datatype.h"

#include <cstring>
#include <vector>

namespace hocket::mpi {
namespace {

int copy(Handle, int, void*, void* value, void* copied, int* flag) {
    std::memcpy(copied, &value, sizeof value);
    *flag = 1;
    return 0;
}
int no_delete(Handle, int, void*, void*) { return 0; }

int key_of(const Library& mpi) {
    static const int key = [&] {
        int made = 0;
        mpi.Type_create_keyval(reinterpret_cast<void*>(copy), reinterpret_cast<void*>(no_delete), &made, nullptr);
        return made;
    }();
    return key;
}

bool is_predefined(const Library& mpi, Handle type) {
    int integers = 0, addresses = 0, types = 0, combiner = 0;
    return mpi.Type_get_envelope(type, &integers, &addresses, &types, &combiner) == 0 &&
           combiner == mpi.abi.combiners[kNamed];
}

// The arguments that a type was made with.
struct Contents {
    std::vector<int> integers;
    std::vector<i64> addresses;
    std::vector<Handle> types;
};

Contents contents(const Library& mpi, Handle type, int integers, int addresses, int types) {
    Contents found{std::vector<int>(u64(integers)), std::vector<i64>(u64(addresses)), std::vector<Handle>(u64(types))};
    const u32 width = mpi.abi.handle_bytes;
    std::vector<char> handles(u64(types) * width);
    mpi.Type_get_contents(type, integers, addresses, types, found.integers.data(), found.addresses.data(),
                          handles.data());
    for (u64 t = 0; t < found.types.size(); ++t) std::memcpy(&found.types[t], &handles[t * width], width);
    return found;
}

// Whether the bytes of an element lie in the order of its signature, without gaps, from `at` on, which goes on to their
// end.
bool follows(const Library& mpi, Handle type, i64& at);

bool repeats(const Library& mpi, Handle type, i64 times, i64& at) {
    i64 lower = 0, extent = 0, size = 0, inner = 0;
    if (times <= 0) return true;
    if (!follows(mpi, type, inner) || mpi.Type_size_x(type, &size) != 0) return false;
    if (times > 1 && (mpi.Type_get_extent(type, &lower, &extent) != 0 || extent != size)) return false;
    at += times * size;
    return true;
}

// Blocks of a type, each of a length, at a displacement in bytes.
bool blocks(const Library& mpi, Handle type, i64 length, i64 displacement, i64& at) {
    return length <= 0 || (displacement == at && repeats(mpi, type, length, at));
}

bool follows_made(const Library& mpi, u32 combiner, const Contents& made, i64& at) {
    const std::vector<int>& n = made.integers;
    const Handle base = made.types[0];
    i64 lower = 0, extent = 0, begin = at;
    mpi.Type_get_extent(base, &lower, &extent);
    bool good = true;
    switch (combiner) {
        case kDup:
        case kResized:
            return follows(mpi, base, at);
        case kContiguous:
            return repeats(mpi, base, n[0], at);
        case kVector:
        case kHvector: {
            const i64 stride = combiner == kVector ? n[2] * extent : made.addresses[0];
            for (int b = 0; b < n[0] && good; ++b) good = blocks(mpi, base, n[1], begin + b * stride, at);
            return good;
        }
        case kIndexed:
        case kHindexed:
            for (int b = 0; b < n[0] && good; ++b) {
                const u64 i = u64(b);
                const i64 place = combiner == kIndexed ? n[1 + u64(n[0]) + i] * extent : made.addresses[i];
                good = blocks(mpi, base, n[1 + i], begin + place, at);
            }
            return good;
        case kIndexedBlock:
            for (int b = 0; b < n[0] && good; ++b) good = blocks(mpi, base, n[1], begin + n[2 + u64(b)] * extent, at);
            return good;
        case kStruct:
            for (int b = 0; b < n[0] && good; ++b) {
                const u64 i = u64(b);
                good = blocks(mpi, made.types[i], n[1 + i], begin + made.addresses[i], at);
            }
            return good;
        default:
            return false;
    }
}

bool follows(const Library& mpi, Handle type, i64& at) {
    int integers = 0, addresses = 0, types = 0, code = 0;
    if (mpi.Type_get_envelope(type, &integers, &addresses, &types, &code) != 0) return false;
    u32 combiner = 0;
    while (combiner < kCombiners && mpi.abi.combiners[combiner] != code) ++combiner;
    if (combiner == kNamed) {
        i64 lower = 0, extent = 0, size = 0;
        if (mpi.Type_size_x(type, &size) != 0 || mpi.Type_get_extent(type, &lower, &extent) != 0) return false;
        at += size;
        return size == extent;
    }
    if (combiner == kCombiners || types == 0) return false;
    Contents made = contents(mpi, type, integers, addresses, types);
    const bool good = follows_made(mpi, combiner, made, at);
    for (Handle& each : made.types) {  // those that are not predefined are the caller's to free
        int i = 0, a = 0, t = 0, made_by = 0;
        mpi.Type_get_envelope(each, &i, &a, &t, &made_by);
        if (t != 0) mpi.Type_free(&each);
    }
    return good;
}

// Of any type that MPI knows.
Datatype found_of(const Library& mpi, Handle type) {
    i64 size = 0, lower = 0, extent = 0, at = 0;
    if (mpi.Type_size_x(type, &size) != 0 || size < 0) return {0, false};
    mpi.Type_get_extent(type, &lower, &extent);
    return {u64(size), lower == 0 && extent == size && follows(mpi, type, at) && at == size};
}

void note(const Library& mpi, Handle type, Datatype found) {
    mpi.Type_set_attr(type, key_of(mpi), reinterpret_cast<void*>(found.bytes << 1 | u64(found.packed)));
}

}  // namespace

Datatype datatype(const Library& mpi, Handle type) {
    if (const Library::Type* const known = mpi.type(type); known != nullptr && !known->padded)
        return {known->bytes, true};
    int is_set = 0;
    void* noted = nullptr;
    if (mpi.Type_get_attr(type, key_of(mpi), &noted, &is_set) == 0 && is_set != 0) {
        const u64 word = reinterpret_cast<u64>(noted);
        return {word >> 1, (word & 1) != 0};
    }
    Datatype found = found_of(mpi, type);
    if (is_predefined(mpi, type)) note(mpi, type, found);
    else found.packed = false;
    return found;
}

void committed(const Library& mpi, const void* type) {
    Handle handle = 0;
    std::memcpy(&handle, type, mpi.abi.handle_bytes);
    if (!is_predefined(mpi, handle)) note(mpi, handle, found_of(mpi, handle));
}

}  // namespace hocket::mpi
