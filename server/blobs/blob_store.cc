#include "server/blobs/blob_store.h"

#include "engine/base/error.h"

namespace tandem::server {
namespace {

class Directory : public BlobStore {
 public:
  bool is_remote() const override { return false; }
  std::string Put(const std::string&, const std::filesystem::path&) override { return ""; }
  void Fetch(const std::string& name, const BlobContent&,
             const std::filesystem::path& to) override {
    throw Error(ErrorCode::kDataLoss, name + " is not at " + to.string() +
                                          ": restore it from a backup, or delete it and upload it "
                                          "again");
  }
  void Remove(const std::string&) override {}
  void PutTree(const std::string&, const std::filesystem::path&) override {}
  void FetchTree(const std::string&, const std::filesystem::path&) override {}
  void RemoveBelow(const std::string&) override {}
  std::string UrlOf(const std::string&) const override { return ""; }
  void Stop() override {}
};

}  // namespace

std::shared_ptr<BlobStore> SharedDirectory() { return std::make_shared<Directory>(); }

}  // namespace tandem::server
