// Nonblocking unix sockets with abstract names, and descriptors passed over them.
#pragma once

#include <string>

#include "common/base/fd.h"
#include "common/base/status.h"

namespace fastdecode {

// A stream socket that listens under this abstract name: no file, gone with its descriptor,
// seen by the processes of the same network namespace.
Result<Fd> ListenUnix(const std::string& name);
// The next waiting connection, or kWouldBlock.
Result<Fd> AcceptUnix(int listener);
// Connects at once or not at all.
Result<Fd> DialUnix(const std::string& name);

// Sends the bytes in one piece, and with them a copy of the descriptor.
Status SendDescriptor(int socket, const void* bytes, size_t size, int descriptor);
// Receives exactly these bytes and one descriptor; kWouldBlock if nothing is there yet. Any
// other number of descriptors is kDataLoss, and all are closed.
Result<Fd> ReceiveDescriptor(int socket, void* bytes, size_t size);

}  // namespace fastdecode
