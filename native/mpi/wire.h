// A wire over an MPI library, on a communicator that nobody else uses.
#pragma once

#include "mpi/library.h"
#include "transport/wire.h"

namespace hocket::mpi {

class MpiWire {
  public:
    // `communicator`: where its handle is. Throws std::invalid_argument where there is no MPI library, or
    // it is not one that is known.
    explicit MpiWire(const void* communicator);

    // Whether MPI has ended, so that nothing can be sent any more.
    bool is_over() const;
    // Good while this lives.
    Wire wire() { return {this, send, receive, take, test, drop, describe}; }

  private:
    static int send(void* self, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    static int receive(void* self, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    static int take(void* self, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found);
    static int test(void* self, Ticket& ticket, bool& done);
    static void drop(void* self, Ticket& ticket);
    static std::string describe(void* self, int error);

    const Library& mpi_ = underneath();
    Handle communicator_ = 0;
};

}  // namespace hocket::mpi
