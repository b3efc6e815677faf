#pragma once

#include <sys/types.h>

#include <cstddef>

namespace tandem::bench {

// Asks the kernel to note when bytes arrive at this socket. It begins some milliseconds after the
// first socket of the machine has asked, and ends when the last such socket is closed.
void NoteArrivals(int fd);

struct TimedReceive {
  ssize_t n_bytes = 0;  // as recv(): 0 at the end of the connection, -1 with errno
  // How long the last of these bytes had been in the socket, in seconds; 0 if that is unknown. A
  // thread that waits for a core reads them late, which is no time of the server.
  double age_s = 0;
};

// Receives as recv() does.
TimedReceive ReceiveTimed(int fd, char* buffer, size_t n_bytes);

}  // namespace tandem::bench
