#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>

#include "engine/objects/object_url.h"

namespace tandem::server {

// The output of a command on an object store. The command writes a local file or directory, which
// is then uploaded and removed. A file is one object. A directory is a tree (object_tree.h), so
// readers find it whole or are told that it is not.
class StoredTarget {
 public:
  // Looks at the store now, before hours of work: throws kAlreadyExists when something is there and
  // `overwrite` is false, and what ObjectClient throws. `work_dir` is for the local output.
  StoredTarget(const engine::ObjectUrl& url, bool is_file, bool overwrite,
               const std::filesystem::path& work_dir, std::stop_token stop);

  // Where the command writes.
  const std::filesystem::path& local() const { return local_; }
  // Uploads the local output and removes it.
  void Publish();

 private:
  const engine::ObjectUrl url_;
  const bool is_file_;
  const bool overwrite_;
  const std::stop_token stop_;
  std::filesystem::path local_;
};

}  // namespace tandem::server
