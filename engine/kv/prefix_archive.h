#pragma once

#include <cstddef>

#include "engine/base/ids.h"
#include "engine/io/sha256.h"

namespace tandem::engine {

// Where blocks of cached prefixes live beyond the KV cache. A key and a table name a block's
// content, as in PrefixIndex. Engine thread only. Methods throw std::bad_alloc only, and a caller
// may treat that as a block that is not there.
class PrefixArchive {
 public:
  virtual ~PrefixArchive() = default;

  // Whether Load may find it.
  virtual bool Has(const Sha256Digest& key, size_t table) const = 0;
  // Copies the content of `block` and keeps it if it can. Does nothing if it has the key.
  virtual void Save(const Sha256Digest& key, size_t table, BlockId block) = 0;
  // Fills `block`. False: the content is not usable, `block` may hold anything, and Has is false
  // until a later time or another Save.
  virtual bool Load(const Sha256Digest& key, size_t table, BlockId block) = 0;
};

}  // namespace tandem::engine
