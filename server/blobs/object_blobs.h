#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

#include "engine/objects/object_options.h"
#include "engine/objects/object_url.h"
#include "server/blobs/blob_store.h"

namespace tandem::engine {
class ObjectClient;
class ObjectStore;
}  // namespace tandem::engine

namespace tandem::server {

// Blobs below a prefix of an object store. A blob `files/ID` is the object PREFIX/files/ID. A tree
// `jobs/ID/adapter` is a tree of PublishTree below PREFIX/jobs/ID/adapter/, and the object
// PREFIX/jobs/ID/adapter.sha256 beside it holds the hashes of its files, as sha256sum prints them.
class ObjectBlobs : public BlobStore {
 public:
  // Throws kInvalidArgument for a URL without a bucket. `options` are those of the URL.
  ObjectBlobs(engine::ObjectUrl url, engine::ObjectOptions options);

  bool is_remote() const override { return true; }
  std::string Put(const std::string& name, const std::filesystem::path& file) override;
  void Fetch(const std::string& name, const BlobContent& content,
             const std::filesystem::path& to) override;
  void Remove(const std::string& name) override;
  void PutTree(const std::string& name, const std::filesystem::path& dir) override;
  void FetchTree(const std::string& name, const std::filesystem::path& dir) override;
  void RemoveBelow(const std::string& name) override;
  std::string UrlOf(const std::string& name) const override;
  void Stop() override { stop_.request_stop(); }

 private:
  std::string KeyOf(std::string_view name) const;
  void AbortUploads(engine::ObjectClient& client, const std::string& prefix) const;
  // Runs `action` with a store of its own: a failed transfer stops the other connections of its
  // store. Turns errors into those of BlobStore, and logs them.
  void Use(const char* what, const std::string& name,
           const std::function<void(engine::ObjectStore& store)>& action) const;

  const engine::ObjectUrl url_;
  const engine::ObjectOptions options_;
  std::stop_source stop_;
};

// The store of `--blob-store`, with keys from the environment. Throws kInvalidArgument.
std::shared_ptr<BlobStore> OpenBlobStore(const std::string& url);

}  // namespace tandem::server
