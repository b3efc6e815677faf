#include "server/cli/stores/stored_target.h"

#include <string>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/objects/object_tree.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

int64_t BytesBelow(const fs::path& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return static_cast<int64_t>(fs::file_size(path));
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

std::string WithoutSlash(std::string key) {
  while (key.ends_with('/')) key.pop_back();
  return key;
}

}  // namespace

StoredTarget::StoredTarget(const engine::ObjectUrl& url, bool is_file, bool overwrite,
                           const fs::path& work_dir, std::stop_token stop)
    : url_{url.kind, url.bucket, WithoutSlash(url.key)},
      is_file_(is_file),
      overwrite_(overwrite),
      stop_(std::move(stop)) {
  if (url_.key.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                url.Text() + " names a whole bucket: give the output a name in it");
  }
  if (work_dir.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no folder for the output before its upload: set XDG_CACHE_HOME or HOME");
  }
  // One folder for each URL, so that the same command finds the work of a killed one.
  fs::path dir = work_dir / "uploads" / (url_.kind == engine::StoreKind::kS3 ? "s3" : "gs") /
                 url_.bucket / fs::path(url_.key).parent_path();
  local_ = dir / fs::path(url_.key).filename();
  if (!engine::IsSafeObjectName(url_.key)) {
    throw Error(ErrorCode::kInvalidArgument, url_.Text() + " cannot be the name of an output");
  }
  engine::ObjectStore store(url_, stop_);
  engine::ObjectClient client(store);
  if (!overwrite_ && is_file_ && client.Find(url_.key)) {
    throw Error(ErrorCode::kAlreadyExists,
                url_.Text() + " already exists: choose another name, or allow --overwrite");
  }
  if (!is_file_) {
    WithContext(
        [](const Error& error) {
          return Error(error.code(), std::string(error.what()) +
                                         (error.code() == ErrorCode::kAlreadyExists
                                              ? ": choose another name, or allow --overwrite"
                                              : ""));
        },
        [&] {
          engine::CheckTreePlace(
              client, engine::AsPrefix(url_.key),
              overwrite_ ? engine::IfObjects::kReplace : engine::IfObjects::kRefuse);
        });
  }
  MakeDirectories(dir);
}

void StoredTarget::Publish() {
  engine::ObjectStore store(url_, stop_);
  ProgressTask task("uploading " + url_.Text(), "bytes", BytesBelow(local_));
  const auto on_bytes = [&](uint64_t n) { task.Add(static_cast<int64_t>(n)); };
  if (is_file_) {
    engine::UploadFiles(store, {{local_, url_.key}}, on_bytes);
  } else {
    engine::PublishTree(store, local_, engine::AsPrefix(url_.key),
                        overwrite_ ? engine::IfObjects::kReplace : engine::IfObjects::kRefuse,
                        on_bytes);
  }
  spdlog::info("objects_uploaded url=\"{}\"", EscapeJson(url_.Text()));
  std::error_code ignored;
  fs::remove_all(local_, ignored);
}

}  // namespace tandem::server
