#include "server/http/output_queue.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "server/http/strand_timer.h"

namespace tandem::server {
namespace {

// Limit of one encrypted batch, which counts as sent only when all of it was written.
constexpr size_t kEncryptBytes = 64 << 10;

// Bytes in the kernel's buffer that the client has not acknowledged.
int UnreadByClient(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace

OutputQueue::OutputQueue(StrandSocket& socket, std::optional<TlsSession>& tls,
                         std::chrono::milliseconds write_timeout, Owner owner)
    : socket_(socket),
      tls_(tls),
      write_timeout_(write_timeout),
      owner_(std::move(owner)),
      write_timer_(socket.get_executor()) {}

void OutputQueue::Push(std::string bytes, std::shared_ptr<ResponseChannel> channel) {
  if (is_closed_) return;
  bytes_ += bytes.size();
  parts_.push_back(Part{std::move(bytes), 0, std::move(channel)});
  WriteMore();
}

// Fills cipher_; false if there is nothing to send now.
bool OutputQueue::Encrypt() {
  if (cipher_sent_ < cipher_.size()) return true;
  cipher_sent_ = 0;
  if (tls_->state() != TlsSession::State::kHandshake) {
    for (const Part& part : parts_) {
      const std::string_view rest = std::string_view(part.bytes).substr(part.sent);
      const std::string_view piece = rest.substr(0, kEncryptBytes - encrypted_bytes_);
      tls_->Send(piece);
      encrypted_bytes_ += piece.size();
      if (encrypted_bytes_ == kEncryptBytes) break;
    }
  }
  cipher_ = tls_->TakeOutput();
  return !cipher_.empty();
}

void OutputQueue::WriteMore() {
  if (is_writing_ || is_closed_) return;
  std::array<net::const_buffer, 8> buffers;
  if (tls_) {
    if (!Encrypt()) return;
    buffers[0] = net::buffer(cipher_) + cipher_sent_;
  } else {
    if (parts_.empty()) return;
    for (size_t i = 0; i < std::min(buffers.size(), parts_.size()); ++i) {
      buffers[i] = net::buffer(parts_[i].bytes) + parts_[i].sent;
    }
  }
  is_writing_ = true;
  ArmWriteTimer();
  socket_.async_write_some(buffers, [this, owner = owner_.keep_alive()](
                                        const boost::system::error_code& error, size_t n) {
    if (!HasMemoryFor([&] { OnWritten(error, n); })) owner_.on_stalled();
  });
}

// A partial write is progress and restarts the write timeout. So are acknowledged bytes: the kernel
// accepts more only after much of its buffer is free.
void OutputQueue::ArmWriteTimer() {
  const int unread = UnreadByClient(socket_.native_handle());
  ArmTimer(write_timer_, write_timeout_, [this, unread, owner = owner_.keep_alive()] {
    if (is_closed_) return;
    const bool advances = UnreadByClient(socket_.native_handle()) < unread;
    if (advances && HasMemoryFor([&] { ArmWriteTimer(); })) return;
    owner_.on_stalled();
  });
}

void OutputQueue::OnWritten(const boost::system::error_code& error, size_t n) {
  is_writing_ = false;
  if (is_closed_) return;
  if (error) return owner_.on_failed();
  if (tls_) {
    cipher_sent_ += n;
    n = cipher_sent_ < cipher_.size() ? 0 : std::exchange(encrypted_bytes_, 0);
  }
  bytes_ -= n;
  while (n > 0) {
    Part& part = parts_.front();
    const size_t of_part = std::min(n, part.bytes.size() - part.sent);
    part.sent += of_part;
    n -= of_part;
    if (part.channel) part.channel->Sent(of_part);
    if (part.sent == part.bytes.size()) parts_.pop_front();
  }
  WriteMore();
  if (is_writing_) return;

  write_timer_.cancel();
  if (parts_.empty()) owner_.on_sent();  // otherwise parts wait for the handshake
}

void OutputQueue::Close() {
  is_closed_ = true;
  parts_.clear();
  write_timer_.cancel();
}

}  // namespace tandem::server
