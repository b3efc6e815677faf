#pragma once

// Private to this room: includes Boost.

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/net.h"
#include "server/http/response_channel.h"
#include "server/http/tls.h"

namespace tandem::server {

// What waits to be sent to one client, and the one write that is pending. Encrypts where there is a
// TLS session, tells channels what has left, and gives up on a client that takes nothing. Lives on
// the strand of its socket.
class OutputQueue {
 public:
  // Called on the strand, never from within a call of this class but for keep_alive.
  struct Owner {
    std::function<std::shared_ptr<void>()> keep_alive;  // held while a write or timer is pending
    std::function<void()> on_sent;                      // everything has left
    std::function<void()> on_failed;                    // the client cannot be reached any more
    std::function<void()> on_stalled;                   // nothing left for the write timeout
  };

  // `tls` belongs to the reading side as well; while it shakes hands, parts wait.
  OutputQueue(StrandSocket& socket, std::optional<TlsSession>& tls,
              std::chrono::milliseconds write_timeout, Owner owner);

  // `channel` is told as these bytes leave; null: nobody.
  void Push(std::string bytes, std::shared_ptr<ResponseChannel> channel = nullptr);
  // Goes on after a change of the TLS session: it has something to say, or lets parts through.
  void WriteMore();
  // Drops what waits. A write that is pending ends with its socket, and nobody is told.
  void Close();

  bool empty() const { return parts_.empty(); }
  size_t bytes() const { return bytes_; }  // handed over and not sent
  bool is_writing() const { return is_writing_; }

 private:
  struct Part {
    std::string bytes;
    size_t sent = 0;
    std::shared_ptr<ResponseChannel> channel;
  };

  bool Encrypt();
  void ArmWriteTimer();
  void OnWritten(const boost::system::error_code& error, size_t n);

  StrandSocket& socket_;
  std::optional<TlsSession>& tls_;
  const std::chrono::milliseconds write_timeout_;
  const Owner owner_;
  StrandTimer write_timer_;
  std::deque<Part> parts_;
  size_t bytes_ = 0;
  std::string cipher_;  // on its way to the client
  size_t cipher_sent_ = 0;
  size_t encrypted_bytes_ = 0;  // of parts_, that are in cipher_
  bool is_writing_ = false;
  bool is_closed_ = false;
};

}  // namespace tandem::server
