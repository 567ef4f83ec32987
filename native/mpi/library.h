// The MPI library underneath: found in the process, and called past our own functions of the same names.
#pragma once

#include <string>

#include "mpi/abi.h"

namespace hocket::mpi {

// Functions with an int for every count, and with an MPI_Count (MPI 4), null where the library has none.
template <template <class Count> class Signature> struct Function {
    Signature<int>* plain = nullptr;
    Signature<i64>* large = nullptr;
};

// clang-format off
#define HOCKET_MPI_SIGNATURE(name, ...) template <class Count> using name##Function = int(__VA_ARGS__);
HOCKET_MPI_SIGNATURE(Reduction, const void*, void*, Count, Handle, Handle, Handle)
HOCKET_MPI_SIGNATURE(RootedReduction, const void*, void*, Count, Handle, Handle, int, Handle)
HOCKET_MPI_SIGNATURE(Barrier, Handle)
HOCKET_MPI_SIGNATURE(Broadcast, void*, Count, Handle, int, Handle)
HOCKET_MPI_SIGNATURE(Exchange, const void*, Count, Handle, void*, Count, Handle, Handle)
HOCKET_MPI_SIGNATURE(RootedExchange, const void*, Count, Handle, void*, Count, Handle, int, Handle)
#undef HOCKET_MPI_SIGNATURE
// Displacements are ints where counts are, else addresses.
template <class Count> using GatherVFunction =
    int(const void*, Count, Handle, void*, const Count*, const Count*, Handle, Handle);
template <class Count> using ReduceScatterFunction = int(const void*, void*, const Count*, Handle, Handle, Handle);
template <class Count> using ExchangeVFunction =
    int(const void*, const Count*, const Count*, Handle, void*, const Count*, const Count*, Handle, Handle);

// Those that we take the place of, with both kinds of counts; what else we call; and what older libraries lack.
#define HOCKET_MPI_COLLECTIVES(X) \
    X(Allreduce, Reduction) X(Reduce, RootedReduction) X(Bcast, Broadcast) X(Allgather, Exchange) \
    X(Allgatherv, GatherV) X(Reduce_scatter, ReduceScatter) X(Reduce_scatter_block, Reduction) \
    X(Gather, RootedExchange) X(Scatter, RootedExchange) X(Alltoall, Exchange) X(Alltoallv, ExchangeV) \
    X(Barrier, Barrier)
#define HOCKET_MPI_OTHERS(X) \
    X(Finalize, int()) \
    X(Finalized, int(int*)) \
    X(Comm_rank, int(Handle, int*)) \
    X(Comm_size, int(Handle, int*)) \
    X(Comm_remote_size, int(Handle, int*)) \
    X(Comm_test_inter, int(Handle, int*)) \
    X(Comm_split, int(Handle, int, int, void*)) \
    X(Comm_free, int(void*)) \
    X(Comm_group, int(Handle, void*)) \
    X(Group_free, int(void*)) \
    X(Group_translate_ranks, int(Handle, int, const int*, Handle, int*)) \
    X(Comm_get_name, int(Handle, char*, int*)) \
    X(Comm_call_errhandler, int(Handle, int)) \
    X(Comm_set_errhandler, int(Handle, Handle)) \
    X(Comm_create_keyval, int(void*, void*, int*, void*)) \
    X(Comm_get_attr, int(Handle, int, void*, int*)) \
    X(Comm_set_attr, int(Handle, int, void*)) \
    X(Type_create_keyval, int(void*, void*, int*, void*)) \
    X(Type_get_attr, int(Handle, int, void*, int*)) \
    X(Type_set_attr, int(Handle, int, void*)) \
    X(Type_size_x, int(Handle, i64*)) \
    X(Type_get_extent, int(Handle, i64*, i64*)) \
    X(Type_get_envelope, int(Handle, int*, int*, int*, int*)) \
    X(Type_get_contents, int(Handle, int, int, int, int*, i64*, void*)) \
    X(Type_free, int(void*)) \
    X(Type_commit, int(void*)) \
    X(Gatherv, int(const void*, int, Handle, void*, const int*, const int*, Handle, int, Handle)) \
    X(Iprobe, int(int, int, Handle, int*, const void*)) \
    X(Isend, int(const void*, int, Handle, int, int, Handle, void*)) \
    X(Irecv, int(void*, int, Handle, int, int, Handle, void*)) \
    X(Improbe, int(int, int, Handle, int*, void*, const void*)) \
    X(Imrecv, int(void*, int, Handle, void*, void*)) \
    X(Test, int(void*, int*, const void*)) \
    X(Cancel, int(void*)) \
    X(Request_free, int(void*)) \
    X(Error_string, int(int, char*, int*)) \
    X(Get_library_version, int(char*, int*))
#define HOCKET_MPI_OPTIONAL(X) \
    X(Type_get_envelope_c, int(Handle, i64*, i64*, i64*, i64*, int*)) \
    X(Type_get_contents_c, int(Handle, i64, i64, i64, i64, int*, i64*, i64*, void*))
// clang-format on

struct Library {
    // Finds it. Ends the process where there is none.
    Library();

    Vendor vendor = Vendor::kOther;  // and then no more is known than its functions
    Abi abi{};
    std::string version;                    // the first line of what it says of itself
    Handle byte = 0, integer = 0, min = 0;  // MPI_BYTE, MPI_INT and MPI_MIN
#define HOCKET_MPI_MEMBER(name, signature) Function<signature##Function> name;
    HOCKET_MPI_COLLECTIVES(HOCKET_MPI_MEMBER)
#undef HOCKET_MPI_MEMBER
#define HOCKET_MPI_MEMBER(name, ...)    \
    using name##Function = __VA_ARGS__; \
    name##Function* name = nullptr;
    HOCKET_MPI_OTHERS(HOCKET_MPI_MEMBER)
    HOCKET_MPI_OPTIONAL(HOCKET_MPI_MEMBER)
#undef HOCKET_MPI_MEMBER

    // Where handles are ints, the upper half of a register that holds one means nothing.
    Handle whole(Handle given) const { return abi.handle_bytes == 4 ? u32(given) : given; }

    // What a predefined type is to kernels. `padded`: an element is longer than its values.
    struct Type {
        Handle handle;
        Family family;
        u32 code, bytes;
        bool padded;
    };
    // Null for any other.
    const Type* type(Handle handle) const {
        for (u64 at = hash(handle);; ++at) {
            const Type& found = types_[at % kSlots];
            if (found.handle == handle) return handle == 0 ? nullptr : &found;
            if (found.handle == 0) return nullptr;
        }
    }
    // kOperators for any other.
    u32 op(Handle handle) const;

  private:
    void recognise();
    Handle object(const char* name) const;
    void list();
    void add(Handle handle, Family family, u32 code);

    static constexpr u32 kSlots = 256;  // of a hash table of some 50 types
    static u64 hash(Handle handle) { return (handle ^ handle >> 12) * 0x9e3779b97f4a7c15 >> 32; }

    void* library_ = nullptr;
    Type types_[kSlots]{};
    Handle ops_[kOperators]{};
};

// The library of this process.
inline const Library& underneath() {
    static const Library& found = *new Library;  // for good: a program may end MPI in a destructor
    return found;
}

// Whether MPI lets an operator be applied to types of a family.
bool allows(Family family, u32 op);

}  // namespace hocket::mpi
