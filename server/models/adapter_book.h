#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "server/database/database.h"

namespace tandem::server {

// An adapter that every replica serves.
struct SharedAdapter {
  std::string name;
  std::string base;         // id of a model that every replica serves
  std::string path;         // absolute; the same directory on every replica
  std::string fingerprint;  // of its content
};

// The adapters that were loaded while the replicas run, in their database. Thread-safe. Methods
// throw as Database.
class AdapterBook {
 public:
  explicit AdapterBook(const DatabaseSource& shared) : database_(shared) {}

  void Put(const SharedAdapter& adapter);
  void Remove(const std::string& name);
  std::vector<SharedAdapter> List();  // sorted by name

 private:
  std::mutex mutex_;  // guards database_
  Database database_;
};

}  // namespace tandem::server
