// The MPI that a program was built for: what handles and constants are, by ABI. No mpi.h is read: one binary serves
// all.
//
// Handles are words here, whatever C type they have there: addresses of Open MPI's objects; ints of the MPICH family
// (MPICH, Intel MPI and those that keep to their ABI); small constants of the standard ABI of MPI 5.
#pragma once

#include "device/kernels.h"

namespace hocket::mpi {

using Handle = u64;
using i64 = long long;

// What MPI's operators may do with a predefined type (MPI 4.1, section 6.9.2).
enum class Family : u32 { kInteger, kFortranInteger, kAddress, kFloating, kComplex, kLogical, kByte, kPair, kNone };

// Families of predefined types, their numbers in native/device/kernels.h, and what they are called: the symbol of Open
// MPI behind ompi_mpi_, the handle of the MPICH family, that of the standard ABI. Of Fortran's default types the size
// is the library's. Those of no family, and types that are not here, can be moved, not combined.
// clang-format off
#define HOCKET_MPI_TYPES(X) \
    X(kInteger, int8, signed_char, 0x4c000118, 0x244) X(kInteger, uint8, unsigned_char, 0x4c000102, 0x245) \
    X(kInteger, int16, short, 0x4c000203, 0x208) X(kInteger, uint16, unsigned_short, 0x4c000204, 0x20c) \
    X(kInteger, int32, int, 0x4c000405, 0x209) X(kInteger, uint32, unsigned, 0x4c000406, 0x20d) \
    X(kInteger, int64, long, 0x4c000807, 0x20a) X(kInteger, uint64, unsigned_long, 0x4c000808, 0x20e) \
    X(kInteger, int64, long_long_int, 0x4c000809, 0x20b) X(kInteger, uint64, unsigned_long_long, 0x4c000819, 0x20f) \
    X(kInteger, int8, int8_t, 0x4c000137, 0x240) X(kInteger, uint8, uint8_t, 0x4c00013b, 0x241) \
    X(kInteger, int16, int16_t, 0x4c000238, 0x248) X(kInteger, uint16, uint16_t, 0x4c00023c, 0x249) \
    X(kInteger, int32, int32_t, 0x4c000439, 0x250) X(kInteger, uint32, uint32_t, 0x4c00043d, 0x251) \
    X(kInteger, int64, int64_t, 0x4c00083a, 0x258) X(kInteger, uint64, uint64_t, 0x4c00083e, 0x259) \
    X(kFortranInteger, int32, integer, 0x4c00041b, 0x219) X(kFortranInteger, int8, integer1, 0x4c00012d, 0x2c1) \
    X(kFortranInteger, int16, integer2, 0x4c00022f, 0x2c9) X(kFortranInteger, int32, integer4, 0x4c000430, 0x2d1) \
    X(kFortranInteger, int64, integer8, 0x4c000831, 0x2d9) \
    X(kAddress, int64, aint, 0x4c000843, 0x201) X(kAddress, int64, offset, 0x4c000844, 0x203) \
    X(kAddress, int64, count, 0x4c000845, 0x202) \
    X(kFloating, float32, float, 0x4c00040a, 0x210) X(kFloating, float64, double, 0x4c00080b, 0x214) \
    X(kFloating, float32, real, 0x4c00041c, 0x21a) X(kFloating, float64, dblprec, 0x4c00081f, 0x21c) \
    X(kFloating, float32, real4, 0x4c000427, 0x2d2) X(kFloating, float64, real8, 0x4c000829, 0x2da) \
    X(kComplex, complex64, c_float_complex, 0x4c000840, 0x212) \
    X(kComplex, complex128, c_double_complex, 0x4c001041, 0x216) \
    X(kComplex, complex64, cxx_cplex, 0x4c000834, 0x213) X(kComplex, complex128, cxx_dblcplex, 0x4c001035, 0x217) \
    X(kComplex, complex64, cplex, 0x4c00081e, 0x21b) X(kComplex, complex128, dblcplex, 0x4c001022, 0x21d) \
    X(kComplex, complex64, complex8, 0x4c000828, 0x2db) X(kComplex, complex128, complex16, 0x4c00102a, 0x2e3) \
    X(kLogical, bool, c_bool, 0x4c00013f, 0x238) X(kLogical, bool, cxx_bool, 0x4c000133, 0x239) \
    X(kLogical, int32, logical, 0x4c00041d, 0x218) \
    X(kByte, uint8, byte, 0x4c00010d, 0x247) X(kNone, uint8, char, 0x4c000101, 0x243) \
    X(kNone, uint8, character, 0x4c00011a, 0x21e) X(kNone, uint8, packed, 0x4c00010f, 0x207) \
    X(kPair, float32_int32, float_int, 0x8c000000, 0x228) X(kPair, float64_int32, double_int, 0x8c000001, 0x229) \
    X(kPair, int64_int32, long_int, 0x8c000002, 0x22a) X(kPair, int16_int32, short_int, 0x8c000003, 0x22c) \
    X(kPair, int32_int32, 2int, 0x4c000816, 0x22b) X(kPair, int32_int32, 2integer, 0x4c000820, 0x232)

// Operators: their names in native/device/kernels.h, which are also Open MPI's behind ompi_mpi_op_, and their handles.
#define HOCKET_MPI_OPERATORS(X) \
    X(max, 0x58000001, 0x23) X(min, 0x58000002, 0x22) X(sum, 0x58000003, 0x21) X(prod, 0x58000004, 0x24) \
    X(land, 0x58000005, 0x30) X(band, 0x58000006, 0x28) X(lor, 0x58000007, 0x31) X(bor, 0x58000008, 0x29) \
    X(lxor, 0x58000009, 0x32) X(bxor, 0x5800000a, 0x2a) X(minloc, 0x5800000b, 0x38) X(maxloc, 0x5800000c, 0x39)
// clang-format on

enum class Vendor : u32 { kOpenMpi, kMpich, kIntel, kOther };

// What MPI_Type_get_envelope says that a type was made by.
enum Combiner : u32 {
    kNamed,
    kDup,
    kContiguous,
    kVector,
    kHvector,
    kIndexed,
    kHindexed,
    kIndexedBlock,
    kStruct,
    kResized
};
constexpr u32 kCombiners = kResized + 1;

// The constants of an ABI that the library needs. `combiners`: by Combiner.
struct Abi {
    u32 handle_bytes;
    Handle world, no_communicator, no_type, errors_return;
    const void* in_place;
    int any_source, any_tag, error_other;
    const void* ignored_status;
    int combiners[kCombiners];
};

}  // namespace hocket::mpi
