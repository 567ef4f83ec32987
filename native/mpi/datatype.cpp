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

// How a type was made: by what, and with how many arguments of each kind. A type that was made with an MPI_Count for
// every count has those in place of integers and addresses, and only functions that know them may be asked.
struct Envelope {
    i64 integers = 0, addresses = 0, counts = 0, types = 0;
    int combiner = 0;
};

bool envelope(const Library& mpi, Handle type, Envelope& found) {
    if (mpi.Type_get_envelope_c != nullptr)
        return mpi.Type_get_envelope_c(type, &found.integers, &found.addresses, &found.counts, &found.types,
                                       &found.combiner) == 0;
    int integers = 0, addresses = 0, types = 0;
    const bool good = mpi.Type_get_envelope(type, &integers, &addresses, &types, &found.combiner) == 0;
    found.integers = integers;
    found.addresses = addresses;
    found.types = types;
    return good;
}

bool is_predefined(const Library& mpi, Handle type) {
    Envelope found;
    return envelope(mpi, type, found) && found.combiner == mpi.abi.combiners[kNamed];
}

// The arguments themselves. `numbers`: all that are no types, which are in the same order for either kind of counts.
struct Contents {
    std::vector<i64> numbers;
    std::vector<Handle> types;
};

Contents contents(const Library& mpi, Handle type, const Envelope& given) {
    const u32 width = mpi.abi.handle_bytes;
    std::vector<int> integers(u64(given.integers));
    std::vector<i64> addresses(u64(given.addresses)), counts(u64(given.counts));
    std::vector<char> handles(u64(given.types) * width);
    if (mpi.Type_get_contents_c != nullptr)
        mpi.Type_get_contents_c(type, given.integers, given.addresses, given.counts, given.types, integers.data(),
                                addresses.data(), counts.data(), handles.data());
    else
        mpi.Type_get_contents(type, int(given.integers), int(given.addresses), int(given.types), integers.data(),
                              addresses.data(), handles.data());
    Contents found{{integers.begin(), integers.end()}, std::vector<Handle>(u64(given.types))};
    for (const auto* const more : {&addresses, &counts})
        found.numbers.insert(found.numbers.end(), more->begin(), more->end());
    for (u64 t = 0; t < found.types.size(); ++t) std::memcpy(&found.types[t], &handles[t * width], width);
    return found;
}

// An element of a type. `follows`: its bytes lie in the order of its signature, without gaps, from its address on.
struct Element {
    i64 size = 0, extent = 0;
    bool follows = false;

    // Whether so many, beginning at `at`, lie so behind what ends at `end`, which goes on to their end.
    bool repeats(i64 times, i64 at, i64& end) const {
        if (times <= 0) return true;
        if (!follows || at != end || (times > 1 && extent != size)) return false;
        end += times * size;
        return true;
    }
    // Whether so many blocks of so many, each `stride` behind the one before, lie so from the first address on.
    bool steps(i64 blocks, i64 times, i64 stride, i64& end) const {
        if (!repeats(times, 0, end)) return false;
        const bool good = blocks == 1 || end == 0 || stride == end;
        end *= blocks;
        return good;
    }
};

Element element(const Library& mpi, Handle type);

// Whether the element of a type that was made of others follows; `end`: the bytes of it that do.
bool follows(const Library& mpi, u32 combiner, const Contents& made, i64& end) {
    const std::vector<i64>& n = made.numbers;
    Handle last = made.types[0];
    Element base = element(mpi, last);
    if (combiner == kDup || combiner == kResized) return base.repeats(1, 0, end);
    const u64 count = u64(n[0]);
    bool good = true;
    for (u64 b = 0; b < count && good; ++b) switch (combiner) {
            case kContiguous:
                return base.repeats(n[0], 0, end);
            case kVector:
                return base.steps(n[0], n[1], n[2] * base.extent, end);
            case kHvector:
                return base.steps(n[0], n[1], n[2], end);
            case kIndexed:
                good = base.repeats(n[1 + b], n[1 + count + b] * base.extent, end);
                break;
            case kHindexed:
                good = base.repeats(n[1 + b], n[1 + count + b], end);
                break;
            case kIndexedBlock:
                good = base.repeats(n[1], n[2 + b] * base.extent, end);
                break;
            default:  // kStruct
                if (made.types[b] != last) base = element(mpi, last = made.types[b]);
                good = base.repeats(n[1 + b], n[1 + count + b], end);
        }
    return good;
}

Element element(const Library& mpi, Handle type) {
    Element found;
    Envelope given;
    i64 lower = 0, end = 0;
    if (mpi.Type_size_x(type, &found.size) != 0 || mpi.Type_get_extent(type, &lower, &found.extent) != 0 ||
        !envelope(mpi, type, given))
        return found;
    u32 combiner = 0;
    while (combiner < kCombiners && mpi.abi.combiners[combiner] != given.combiner) ++combiner;
    if (combiner == kNamed) found.follows = found.size == found.extent;
    if (combiner == kNamed || combiner == kCombiners || given.types == 0) return found;
    Contents made = contents(mpi, type, given);
    found.follows = follows(mpi, combiner, made, end) && end == found.size;
    for (Handle& each : made.types) {  // those that are not predefined are the caller's to free
        Envelope its;
        if (envelope(mpi, each, its) && its.types != 0) mpi.Type_free(&each);
    }
    return found;
}

// Of any type that MPI knows.
Datatype found_of(const Library& mpi, Handle type) {
    const Element found = element(mpi, type);
    return {u64(found.size), found.follows && found.extent == found.size};
}

void keep(const Library& mpi, Handle type, Datatype found) {
    mpi.Type_set_attr(type, key_of(mpi), reinterpret_cast<void*>(found.bytes << 1 | u64(found.packed)));
}

}  // namespace

Datatype datatype(const Library& mpi, Handle type) {
    if (const Library::Type* const known = mpi.type(type); known != nullptr && !known->padded)
        return {known->bytes, true};
    int is_set = 0;
    void* kept = nullptr;
    if (mpi.Type_get_attr(type, key_of(mpi), &kept, &is_set) == 0 && is_set != 0) {
        const u64 word = reinterpret_cast<u64>(kept);
        return {word >> 1, (word & 1) != 0};
    }
    Datatype found = found_of(mpi, type);
    if (is_predefined(mpi, type)) keep(mpi, type, found);
    else found.packed = false;
    return found;
}

void examine(const Library& mpi, const void* type) {
    Handle handle = 0;
    std::memcpy(&handle, type, mpi.abi.handle_bytes);
    if (!is_predefined(mpi, handle)) keep(mpi, handle, found_of(mpi, handle));
}

}  // namespace hocket::mpi
