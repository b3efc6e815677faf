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

// The unsent output of one client, and its one pending write. Encrypts if there is a TLS session,
// reports sent bytes to channels, and detects a client that stops reading. Runs on the io thread.
class OutputQueue {
 public:
  // Called on the io thread. Only keep_alive may be called from within a member function of this
  // class.
  struct Owner {
    std::function<std::shared_ptr<void>()> keep_alive;  // held while a write or timer is pending
    std::function<void()> on_sent;                      // all output was sent
    std::function<void()> on_failed;                    // the connection has failed
    std::function<void()> on_stalled;                   // no progress during write_timeout
  };

  // The reading side shares `tls`. During the handshake, parts wait.
  OutputQueue(StrandSocket& socket, std::optional<TlsSession>& tls,
              std::chrono::milliseconds write_timeout, Owner owner);

  // `channel` is notified as these bytes are sent; null: none.
  void Push(std::string bytes, std::shared_ptr<ResponseChannel> channel = nullptr);
  // Continues after a change of the TLS session: it has output, or its handshake is complete.
  void WriteMore();
  // Drops the waiting output. A pending write ends with its socket, without a notification.
  void Close();

  bool empty() const { return parts_.empty(); }
  size_t bytes() const { return bytes_; }  // queued and not sent
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
  std::string cipher_;  // being written
  size_t cipher_sent_ = 0;
  size_t encrypted_bytes_ = 0;  // bytes of parts_ that cipher_ holds
  bool is_writing_ = false;
  bool is_closed_ = false;
};

}  // namespace tandem::server
