#include "server/models/adapter_book.h"

#include <string_view>

namespace tandem::server {

void AdapterBook::Put(const SharedAdapter& adapter) {
  const std::lock_guard lock(mutex_);
  Query query = database_.Prepare(
      "INSERT INTO adapters (name, base, path, fingerprint) VALUES (?, ?, ?, ?) ON CONFLICT (name) "
      "DO UPDATE SET base = excluded.base, path = excluded.path, "
      "fingerprint = excluded.fingerprint");
  query.Bind(std::string_view(adapter.name)).Bind(std::string_view(adapter.base));
  query.Bind(std::string_view(adapter.path)).Bind(std::string_view(adapter.fingerprint));
  query.Next();
}

void AdapterBook::Remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Query query = database_.Prepare("DELETE FROM adapters WHERE name = ?");
  query.Bind(std::string_view(name));
  query.Next();
}

std::vector<SharedAdapter> AdapterBook::List() {
  const std::lock_guard lock(mutex_);
  Query query =
      database_.Prepare("SELECT name, base, path, fingerprint FROM adapters ORDER BY name");
  std::vector<SharedAdapter> adapters;
  while (query.Next()) {
    SharedAdapter& adapter = adapters.emplace_back();
    adapter.name = query.Text();
    adapter.base = query.Text();
    adapter.path = query.Text();
    adapter.fingerprint = query.Text();
  }
  return adapters;
}

}  // namespace tandem::server
