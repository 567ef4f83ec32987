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
    return its.mpi_.Irecv(data, int(bytes), its.mpi_.byte, int(rank), int(tag), its.communicator_, &ticket.word);
}

// Not by a receive from any source: over UCX, MPICH 5.0.2 never completes one that finds its message already there.
int MpiWire::take(void* self, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found) {
    const MpiWire& its = *static_cast<const MpiWire*>(self);
    int flag = 0;
    Handle message = 0;
    const int error = its.mpi_.Improbe(its.mpi_.abi.any_source, int(tag), its.communicator_, &flag, &message,
                                       its.mpi_.abi.ignored_status);
    found = error == 0 && flag != 0;
    return found ? its.mpi_.Imrecv(data, int(bytes), its.mpi_.byte, &message, &ticket.word) : error;
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
