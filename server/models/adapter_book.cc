#include "server/models/adapter_book.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/durable_dirs.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

std::string TreeOf(const SharedAdapter& adapter) { return "adapters/" + adapter.fingerprint; }

}  // namespace

std::string AdapterBook::PathOf(const SharedAdapter& adapter) {
  if (!blobs_->is_remote()) return adapter.path;
  MakeDirectories(dir_);
  const std::filesystem::path path = dir_ / adapter.fingerprint;
  blobs_->FetchTree(TreeOf(adapter), path);
  return path.string();
}

void AdapterBook::Put(const SharedAdapter& adapter) {
  blobs_->PutTree(TreeOf(adapter), adapter.path);
  const std::lock_guard lock(mutex_);
  Transaction transaction(database_, "adapters");
  {
    Query query = database_.Prepare(
        "INSERT INTO adapters (name, base, path, fingerprint, created_at) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET base = excluded.base, path = excluded.path, "
        "fingerprint = excluded.fingerprint, created_at = excluded.created_at");
    query.Bind(std::string_view(adapter.name)).Bind(std::string_view(adapter.base));
    query.Bind(std::string_view(adapter.path)).Bind(std::string_view(adapter.fingerprint));
    query.Bind(adapter.created_at);
    query.Next();
  }
  WriteLockFile();
  transaction.Commit();
}

void AdapterBook::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(database_, "adapters");
  {
    Query query = database_.Prepare("DELETE FROM adapters WHERE name = ?");
    query.Bind(std::string_view(name));
    query.Next();
  }
  WriteLockFile();
  transaction.Commit();
}

std::vector<SharedAdapter> AdapterBook::List() {
  const std::lock_guard lock(mutex_);
  return ListLocked();
}

std::vector<SharedAdapter> AdapterBook::ListLocked() {
  Query query = database_.Prepare(
      "SELECT name, base, path, fingerprint, created_at FROM adapters ORDER BY name");
  std::vector<SharedAdapter> adapters;
  while (query.Next()) {
    SharedAdapter& adapter = adapters.emplace_back();
    adapter.name = query.Text();
    adapter.base = query.Text();
    adapter.path = query.Text();
    adapter.fingerprint = query.Text();
    adapter.created_at = query.Int();
  }
  return adapters;
}

// Within the transaction, so that two replicas write one after the other.
void AdapterBook::WriteLockFile() {
  if (lock_file_.empty()) return;
  nlohmann::ordered_json file = {{"format", "tandem-adapters"}, {"version", 1}};
  file["adapters"] = nlohmann::ordered_json::array();
  for (const SharedAdapter& adapter : ListLocked()) {
    file["adapters"].push_back({{"name", adapter.name},
                                {"base", adapter.base},
                                {"path", adapter.path},
                                {"sha256", adapter.fingerprint}});
  }
  const std::string text =
      file.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  engine::WriteFileAtomically(lock_file_, text + "\n");
}

}  // namespace tandem::server
