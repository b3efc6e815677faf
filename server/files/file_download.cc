#include "server/files/file_download.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/log.h"

namespace tandem::server {
namespace {

constexpr int64_t kPieceBytes = 256 << 10;
// After this many pieces, other tasks of the thread have their turn.
constexpr int kPiecesPerTurn = 16;

}  // namespace

void FileDownload::Start(FileStore& store, UniqueFd fd, int64_t offset, int64_t n_bytes,
                         Response head, const ResponseWriter& writer) {
  const std::shared_ptr<FileDownload> download(new FileDownload(
      store, std::move(fd), offset, n_bytes, writer.StartBody(std::move(head), n_bytes)));
  // The answer holds this callback, and thereby the download, until it is complete or its client
  // has left.
  download->stream_.OnBackpressure(
      [download](bool is_paused) { download->OnBackpressure(is_paused); });
  store.Post([download] { download->Pump(); });
}

void FileDownload::OnBackpressure(bool is_paused) {
  const std::lock_guard lock(mutex_);
  is_paused_ = is_paused;
  if (is_paused || is_pumping_) return;
  is_pumping_ = store_.Post([self = shared_from_this()] { self->Pump(); });
}

void FileDownload::Pump() {
  for (int i = 0; i < kPiecesPerTurn; ++i) {
    {
      const std::lock_guard lock(mutex_);
      if (is_paused_ || stream_.disconnected()) {
        is_pumping_ = false;
        return;
      }
    }
    if (!SendPiece()) return;
  }
  store_.Post([self = shared_from_this()] { self->Pump(); });
}

// Returns false if nothing is left to send.
bool FileDownload::SendPiece() {
  piece_.resize(static_cast<size_t>(std::min(left_, kPieceBytes)));
  ssize_t n = 0;
  do {
    n = ::pread(fd_.get(), piece_.data(), piece_.size(), offset_);
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    // The answer is incomplete and its head is sent, so the connection is reset.
    spdlog::error("file_unreadable offset={} errno={}", offset_, n < 0 ? errno : 0);
    stream_.GiveUp();
    return false;
  }
  offset_ += n;
  left_ -= n;
  stream_.Send(std::string_view(piece_).substr(0, static_cast<size_t>(n)));
  return left_ > 0;
}

}  // namespace tandem::server
