#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "server/files/file_store.h"
#include "server/http/response_writer.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

// Sends a range of a file to a client. The store's threads read it as fast as the client takes it.
// The answer keeps this object alive.
class FileDownload : public std::enable_shared_from_this<FileDownload> {
 public:
  // Starts the answer `head`. REQUIRES: n_bytes > 0, and the file has n_bytes from `offset`. The
  // store must outlive the answer.
  static void Start(FileStore& store, UniqueFd fd, int64_t offset, int64_t n_bytes, Response head,
                    const ResponseWriter& writer);

 private:
  FileDownload(FileStore& store, UniqueFd fd, int64_t offset, int64_t n_bytes, BodyStream stream)
      : store_(store),
        fd_(std::move(fd)),
        offset_(offset),
        left_(n_bytes),
        stream_(std::move(stream)) {}

  void OnBackpressure(bool is_paused);
  void Pump();
  bool SendPiece();

  FileStore& store_;
  const UniqueFd fd_;
  int64_t offset_;
  int64_t left_;
  const BodyStream stream_;
  std::string piece_;
  std::mutex mutex_;  // guards the next two
  bool is_paused_ = false;
  bool is_pumping_ = true;
};

}  // namespace tandem::server
