#include "server/blobs/object_blobs.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/disk_full.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/objects/object_client.h"
#include "engine/objects/object_tree.h"
#include "engine/objects/transfer.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashedPiece = size_t{1} << 20;
// Requests wait for these transfers, so a store that does not answer fails within seconds.
constexpr int kMostAttempts = 3;
constexpr int kConnections = 4;  // of one transfer
constexpr const char* kSumsSuffix = ".sha256";

void IgnoreBytes(uint64_t) {}

std::string HashOfFile(const fs::path& path) {
  struct stat status {};
  const engine::FileDescriptor file = engine::OpenRegularFile(path, status);
  std::vector<std::byte> piece(kHashedPiece);
  engine::Sha256 hash;
  for (int64_t begin = 0; begin < status.st_size;) {
    const auto n = std::min<int64_t>(status.st_size - begin, std::ssize(piece));
    const std::span<std::byte> bytes(piece.data(), static_cast<size_t>(n));
    engine::ReadAllAt(file, bytes, begin, path);
    hash.Update(bytes);
    begin += n;
  }
  return engine::ToHex(hash.Finish());
}

// "<hash>  <name>" per line, in the order of the names.
std::string SumsOf(const fs::path& dir) {
  std::string sums;
  for (const auto& [name, bytes] : engine::FilesToPublish(dir)) {
    sums += HashOfFile(dir / name) + "  " + name + "\n";
  }
  return sums;
}

// The first line that differs; for messages.
std::string FirstDifference(const std::string& expected, const std::string& found) {
  std::istringstream a(expected);
  std::istringstream b(found);
  std::string line;
  for (std::string other; std::getline(a, line) && std::getline(b, other) && line == other;) {
  }
  return line.substr(std::min<size_t>(line.size(), line.find("  ") + 2));
}

void RemoveFetched(const fs::path& to) {
  std::error_code ignored;
  fs::remove(to, ignored);
  fs::remove(to.string() + ".incomplete", ignored);
}

// The error that a client of the server gets. It must not read as a refusal of its own rights.
// `transfer` names what was done, with its URL.
Error ForCaller(const Error& error, const std::string& transfer) {
  if (error.code() == ErrorCode::kDataLoss) return error;
  if (error.code() == ErrorCode::kIo) {
    const char* advice =
        error.reason() == kDiskFullReason ? "; free space there, or lower --blob-cache" : "";
    return Error(ErrorCode::kIo, transfer + ": " + error.what() + advice)
        .WithReason(error.reason());
  }
  return Error(ErrorCode::kUnavailable, std::string("the blob store failed: ") + error.what())
      .WithReason(kBlobStoreUnavailableReason);
}

}  // namespace

ObjectBlobs::ObjectBlobs(engine::ObjectUrl url, engine::ObjectOptions options)
    : url_(std::move(url)), options_(std::move(options)) {
  if (url_.bucket.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--blob-store " + url_.Text() +
                                                 " has no bucket: use s3://BUCKET/PREFIX or "
                                                 "gs://BUCKET/PREFIX");
  }
}

std::string ObjectBlobs::KeyOf(std::string_view name) const {
  return engine::AsPrefix(url_.key) + std::string(name);
}

std::string ObjectBlobs::UrlOf(const std::string& name) const { return (url_ / name).Text(); }

void ObjectBlobs::Use(const char* what, const std::string& name,
                      const std::function<void(engine::ObjectStore& store)>& action) const {
  const auto error = ErrorOf([&] {
    engine::ObjectStore store(url_, options_, stop_.get_token());
    action(store);
  });
  if (!error) return;
  if (error->code() == ErrorCode::kCancelled) throw Error(*error);  // the server stops
  const Error told = ForCaller(*error, std::string(what) + " of " + UrlOf(name));
  LogEvent(
      spdlog::level::err, "blob_store_failed",
      {{"action", std::string(what)}, {"url", UrlOf(name)}, {"reason", std::string(told.what())}});
  throw Error(told);
}

// Each upload is one whose process ended: a blob is uploaded once, and a job has one owner.
void ObjectBlobs::AbortUploads(engine::ObjectClient& client, const std::string& prefix) const {
  for (const engine::UnfinishedUpload& upload : client.UnfinishedUploads(prefix)) {
    client.AbortUpload(upload.key, upload.id);
  }
}

std::string ObjectBlobs::Put(const std::string& name, const fs::path& file) {
  std::string hash;
  Use("upload", name, [&](engine::ObjectStore& store) {
    hash = HashOfFile(file);
    engine::UploadFiles(store, {{file, KeyOf(name)}}, IgnoreBytes);
  });
  return hash;
}

void ObjectBlobs::Fetch(const std::string& name, const BlobContent& content, const fs::path& to) {
  Use("fetch", name, [&](engine::ObjectStore& store) {
    engine::ObjectClient client(store);
    const auto refuse = [&](const std::string& why) {
      RemoveFetched(to);
      throw Error(ErrorCode::kDataLoss, UrlOf(name) + " " + why +
                                            ": restore the object, or delete the file and upload "
                                            "it again");
    };
    const std::optional<engine::ObjectInfo> info = client.Find(KeyOf(name));
    if (!info) return refuse("does not exist");
    if (info->size != static_cast<uint64_t>(content.bytes)) {
      return refuse("has " + std::to_string(info->size) + " bytes, not " +
                    std::to_string(content.bytes));
    }
    engine::FetchObjects(store, {{*info, to}}, IgnoreBytes);
    const std::string found = HashOfFile(to);
    if (found != content.sha256) {
      refuse("has the SHA-256 " + found + ", not " + content.sha256);
    }
  });
}

void ObjectBlobs::Remove(const std::string& name) {
  Use("remove", name, [&](engine::ObjectStore& store) {
    engine::ObjectClient client(store);
    AbortUploads(client, KeyOf(name));
    client.Delete(KeyOf(name));
  });
}

void ObjectBlobs::PutTree(const std::string& name, const fs::path& dir) {
  Use("upload", name, [&](engine::ObjectStore& store) {
    engine::ObjectClient client(store);
    const std::string prefix = KeyOf(name) + "/";
    AbortUploads(client, prefix);
    const std::string sums = SumsOf(dir);
    engine::PublishTree(store, dir, prefix, engine::IfObjects::kReplace, IgnoreBytes);
    client.Put(KeyOf(name) + kSumsSuffix, sums);
  });
}

void ObjectBlobs::FetchTree(const std::string& name, const fs::path& dir) {
  std::error_code absent;
  if (fs::exists(dir, absent)) return;
  Use("fetch", name, [&](engine::ObjectStore& store) {
    constexpr size_t kMaxSumsBytes = size_t{64} << 20;
    engine::ObjectClient client(store);
    const std::optional<std::string> sums = client.Read(KeyOf(name) + kSumsSuffix, kMaxSumsBytes);
    if (!sums) {
      throw Error(ErrorCode::kDataLoss, UrlOf(name) + " is not complete: it has no " + kSumsSuffix +
                                            " object; restore the store, or run the job again");
    }
    engine::RemoveStaleTemporaries(dir.parent_path(), dir.filename().string());
    const auto is_there = ErrorOf({ErrorCode::kAlreadyExists}, [&] {
      engine::PublishDirectory(dir, [&](const fs::path& temporary) {
        engine::FetchTree(store, KeyOf(name) + "/", temporary, IgnoreBytes);
        const std::string found = SumsOf(temporary);
        if (found == *sums) return;
        throw Error(ErrorCode::kDataLoss, UrlOf(name) + " differs from its hashes, first in " +
                                              EscapeJson(FirstDifference(*sums, found)) +
                                              ": restore the store, or run the job again");
      });
    });
    if (is_there && !fs::exists(dir)) throw Error(*is_there);
  });
}

void ObjectBlobs::RemoveBelow(const std::string& name) {
  Use("remove", name, [&](engine::ObjectStore& store) {
    engine::ObjectClient client(store);
    const std::string prefix = KeyOf(name) + "/";
    AbortUploads(client, prefix);
    for (const engine::ObjectInfo& info : client.List(prefix, engine::kMaxTreeFiles)) {
      client.Delete(info.key);
    }
  });
}

std::shared_ptr<BlobStore> OpenBlobStore(const std::string& url) {
  const std::optional<engine::ObjectUrl> parsed = engine::ParseObjectUrl(url);
  if (!parsed) {
    throw Error(ErrorCode::kInvalidArgument,
                "--blob-store must be s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, got '" + url + "'");
  }
  engine::ObjectOptions options = engine::ObjectOptionsFromEnvironment(*parsed);
  options.http.max_attempts = kMostAttempts;
  options.http.connections = kConnections;
  return std::make_shared<ObjectBlobs>(*parsed, std::move(options));
}

}  // namespace tandem::server
