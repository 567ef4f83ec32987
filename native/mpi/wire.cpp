#include "mpi/wire.h"

#include <cstring>
#include <stdexcept>

namespace hocket::mpi {

MpiWire::MpiWire(const void* communicator) {
    if (mpi_.vendor == Vendor::kOther) throw std::invalid_argument("this MPI is not known: " + mpi_.version);
    std::memcpy(&communicator_, communicator, mpi_.abi.handle_bytes);
}

bool MpiWire::is_over() const {
    int over = 0;
    mpi_.Finalized(&over);
    return over != 0;
}

int MpiWire::send(void* self, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
    const MpiWire& its = *static_cast<const MpiWire*>(self);
    return its.mpi_.Isend(data, int(bytes), its.mpi_.byte, int(rank), int(tag), its.communicator_, &ticket.word);
}

int MpiWire::receive(void* self, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket) {
    const MpiWire& its = *static_cast<const MpiWire*>(self);
    const int source = rank == kAnyRank ? its.mpi_.abi.any_source : int(rank);
    return its.mpi_.Irecv(data, int(bytes), its.mpi_.byte, source, int(tag), its.communicator_, &ticket.word);
}

int MpiWire::test(void* self, Ticket& ticket, bool& done) {
    const Library& mpi = static_cast<const MpiWire*>(self)->mpi_;
    int flag = 0;
    const int error = mpi.Test(&ticket.word, &flag, mpi.abi.ignored_status);
    done = flag != 0;
    return error;
}

void MpiWire::drop(void* self, Ticket& ticket) {
    const Library& mpi = static_cast<const MpiWire*>(self)->mpi_;
    if (static_cast<const MpiWire*>(self)->is_over()) return;
    mpi.Cancel(&ticket.word);
    mpi.Request_free(&ticket.word);
}

std::string MpiWire::describe(void* self, int error) {
    char text[1024] = "";  // as long as MPI_MAX_ERROR_STRING is anywhere
    int length = 0;
    static_cast<const MpiWire*>(self)->mpi_.Error_string(error, text, &length);
    return text;
}

}  // namespace hocket::mpi
