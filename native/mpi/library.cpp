#include "mpi/library.h"

#include <dlfcn.h>
#include <link.h>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace hocket::mpi {
namespace {

constexpr u32 bit(Operator op) { return u32(1) << u32(op); }
constexpr u32 kOrder = bit(Operator::max) | bit(Operator::min);
constexpr u32 kArithmetic = bit(Operator::sum) | bit(Operator::prod);
constexpr u32 kLogic = bit(Operator::land) | bit(Operator::lor) | bit(Operator::lxor);
constexpr u32 kBits = bit(Operator::band) | bit(Operator::bor) | bit(Operator::bxor);
constexpr u32 kPlaces = bit(Operator::minloc) | bit(Operator::maxloc);

// By Family.
constexpr u32 kAllowed[] = {kOrder | kArithmetic | kLogic | kBits,
                            kOrder | kArithmetic | kBits,
                            kOrder | kArithmetic | kBits,
                            kOrder | kArithmetic,
                            kArithmetic,
                            kLogic,
                            kBits,
                            kPlaces,
                            0};

// The type of a size that is to be combined as another one is: Fortran's default types have the sizes of a compiler's
// options. kTypes where there is none.
u32 resized(u32 code, u64 bytes) {
    static constexpr u32 kinds[][4] = {{type_code("int8"), type_code("int16"), type_code("int32"), type_code("int64")},
                                       {type_code("float32"), type_code("float64"), kTypes, kTypes},
                                       {type_code("complex64"), type_code("complex128"), kTypes, kTypes}};
    if (kTypeBytes[code] == bytes) return code;
    for (const auto& kind : kinds)
        for (const u32 each : kind)
            if (each == code)
                for (const u32 other : kind)
                    if (other < kTypes && kTypeBytes[other] == bytes) return other;
    return kTypes;
}

// Notes a library that is called as one of MPI is; ours is not.
int note_name(dl_phdr_info* info, size_t, void* found) {
    const char* const slash = std::strrchr(info->dlpi_name, '/');
    if (std::strncmp(slash != nullptr ? slash + 1 : info->dlpi_name, "libmpi", 6) == 0)
        static_cast<std::vector<std::string>*>(found)->emplace_back(info->dlpi_name);
    return 0;
}

// A library of MPI that is loaded; null if there is none. Not by RTLD_NEXT: a program may have opened its own for
// itself alone, as mpi4py does. None is opened while the loader lists them: it holds a lock that dlopen takes last.
void* loaded_library() {
    std::vector<std::string> names;
    ::dl_iterate_phdr(note_name, &names);
    for (const std::string& name : names) {
        void* const library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        if (library != nullptr && ::dlsym(library, "PMPI_Allreduce") != nullptr) return library;
    }
    return nullptr;
}

}  // namespace

bool allows(Family family, u32 op) { return kAllowed[u32(family)] >> op & 1; }

Library::Library() : library_(loaded_library()) {
    if (library_ == nullptr) throw std::invalid_argument("there is no MPI library in this process");
#define HOCKET_MPI_FIND(name, signature)                                                        \
    name.plain = reinterpret_cast<signature##Function<int>*>(::dlsym(library_, "PMPI_" #name)); \
    name.large = reinterpret_cast<signature##Function<i64>*>(::dlsym(library_, "PMPI_" #name "_c"));
    HOCKET_MPI_COLLECTIVES(HOCKET_MPI_FIND)
#undef HOCKET_MPI_FIND
#define HOCKET_MPI_FIND(name, ...) name = reinterpret_cast<name##Function*>(::dlsym(library_, "PMPI_" #name));
    HOCKET_MPI_OTHERS(HOCKET_MPI_FIND)
    HOCKET_MPI_OPTIONAL(HOCKET_MPI_FIND)
#undef HOCKET_MPI_FIND
    recognise();
#define HOCKET_MPI_NEED(name, ...) \
    if (name == nullptr) vendor = Vendor::kOther;
    HOCKET_MPI_OTHERS(HOCKET_MPI_NEED)
#undef HOCKET_MPI_NEED
    if (vendor != Vendor::kOther) list();
}

// Open MPI by its objects, the standard ABI by the name of its library, the MPICH family by what the library says.
void Library::recognise() {
    char text[8192] = "";  // as long as MPI_MAX_LIBRARY_VERSION_STRING is anywhere
    int length = 0;
    if (Get_library_version != nullptr) Get_library_version(text, &length);
    version.assign(text, std::strcspn(text, "\n"));
    if (object("ompi_mpi_comm_world") != 0) {
        vendor = Vendor::kOpenMpi;
        abi = {.handle_bytes = 8,
               .world = object("ompi_mpi_comm_world"),
               .no_communicator = object("ompi_mpi_comm_null"),
               .no_type = object("ompi_mpi_datatype_null"),
               .errors_return = object("ompi_mpi_errors_return"),
               .in_place = reinterpret_cast<void*>(1),
               .any_source = -1,
               .any_tag = -1,
               .error_other = 16,
               .ignored_status = nullptr,
               .combiners = {0, 1, 2, 3, 5, 6, 8, 9, 11, 17}};
        return;
    }
    const bool intel = std::strstr(text, "Intel") != nullptr;
    if (!intel && std::strstr(text, "MPICH") == nullptr) return;
    vendor = intel ? Vendor::kIntel : Vendor::kMpich;
    Dl_info where{};
    ::dladdr(reinterpret_cast<void*>(Allreduce.plain), &where);
    if (where.dli_fname != nullptr && std::strstr(where.dli_fname, "libmpi_abi") != nullptr)
        abi = {.handle_bytes = 8,
               .world = 0x101,
               .no_communicator = 0x100,
               .no_type = 0x200,
               .errors_return = 0x143,
               .in_place = reinterpret_cast<void*>(1),
               .any_source = -1,
               .any_tag = -2,
               .error_other = 16,
               .ignored_status = nullptr,
               .combiners = {101, 102, 103, 104, 105, 106, 107, 108, 110, 116}};
    else
        abi = {.handle_bytes = 4,
               .world = 0x44000000,
               .no_communicator = 0x04000000,
               .no_type = 0x0c000000,
               .errors_return = 0x54000001,
               .in_place = reinterpret_cast<void*>(-1),
               .any_source = -2,
               .any_tag = -1,
               .error_other = 15,
               .ignored_status = reinterpret_cast<void*>(1),
               .combiners = {1, 2, 3, 4, 6, 7, 9, 10, 12, 18}};
}

// An object of Open MPI. One that a program names itself may lie in the program, where the library uses it too.
Handle Library::object(const char* name) const {
    void* const global = ::dlsym(RTLD_DEFAULT, name);
    return reinterpret_cast<Handle>(global != nullptr ? global : ::dlsym(library_, name));
}

void Library::list() {
    const auto handle = [&](const char* symbol, Handle mpich, Handle standard) {
        if (vendor == Vendor::kOpenMpi) return object(symbol);
        return abi.handle_bytes == 4 ? mpich : standard;
    };
#define HOCKET_MPI_ADD(family, type, symbol, mpich, standard) \
    static_assert(type_code(#type) < kTypes, #type);          \
    add(handle("ompi_mpi_" #symbol, mpich, standard), Family::family, type_code(#type));
    HOCKET_MPI_TYPES(HOCKET_MPI_ADD)
#undef HOCKET_MPI_ADD
#define HOCKET_MPI_ADD(name, mpich, standard) ops_[u32(Operator::name)] = handle("ompi_mpi_op_" #name, mpich, standard);
    HOCKET_MPI_OPERATORS(HOCKET_MPI_ADD)
#undef HOCKET_MPI_ADD
    byte = handle("ompi_mpi_byte", 0x4c00010d, 0x247);
    integer = handle("ompi_mpi_int", 0x4c000405, 0x209);
    min = ops_[u32(Operator::min)];
}

// A handle of the MPICH family says the size of what it is; to ask of a type that a library was built without ends the
// program.
void Library::add(Handle handle, Family family, u32 code) {
    i64 bytes = abi.handle_bytes == 4 ? i64(handle >> 8 & 0xff) : 0;
    if (handle == 0 || (abi.handle_bytes == 8 && Type_size_x(handle, &bytes) != 0)) return;
    const bool padded = family == Family::kPair && bytes != kTypeBytes[code];
    if (family != Family::kPair) code = resized(code, u64(bytes));
    else if (bytes > kTypeBytes[code]) return;
    if (code == kTypes) return;
    u64 at = hash(handle);
    while (types_[at % kSlots].handle != 0) ++at;
    types_[at % kSlots] = {handle, family, code, kTypeBytes[code], padded};
}

u32 Library::op(Handle handle) const {
    u32 found = 0;
    while (found < kOperators && (ops_[found] != handle || handle == 0)) ++found;
    return found;
}

}  // namespace hocket::mpi
