#pragma once

#include <string>
#include <vector>

#include "server/database/database.h"

namespace tandem::server {

// The objects of the blob store that no row of `files` names: those of uploads at work and those of
// deleted files. An entry exists before its object does and until the object is gone, so a killed
// replica leaves no unknown object. Every upload has a new name. The lock of FileStore
// guards it. Throws as Database.
class BlobGarbage {
 public:
  // `replica` names this process. The database must outlive it.
  BlobGarbage(Database& database, std::string replica)
      : database_(database), replica_(std::move(replica)) {}

  // An upload begins: the entry is this replica's.
  void Begin(const std::string& name);
  // Ends the entry of an upload, in the transaction that lists the file. Throws kUnavailable if
  // another replica has taken this one for gone: the object may have been removed.
  void Keep(const std::string& name);
  // The object has no owner any more. Never throws: after a failure the entry stays this replica's,
  // and the next one that finds this one gone removes the object.
  void Abandon(const std::string& name) noexcept;
  // Adds an object without an owner.
  void Add(const std::string& name);
  // Entries without a living owner. An upload of one of them can end no more.
  std::vector<std::string> Claim();
  // The object is gone.
  void Forget(const std::string& name);

 private:
  void Run(const char* sql, const std::string& name);

  Database& database_;
  const std::string replica_;
};

}  // namespace tandem::server
