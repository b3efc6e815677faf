#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_archive.h"
#include "engine/loop/block_files.h"

namespace tandem::engine {

// Blocks of a KV cache as files. Engine thread only.
class KvArchive final : public PrefixArchive {
 public:
  // The name of its directory: 16 digits of each digest.
  struct Id {
    Sha256Digest model;  // of the weights
    Sha256Digest salt;   // of everything that the content depends on besides tokens (PrefixIndex)
  };
  // The files are in a directory below `dir`. At most `limit_bytes` of them remain for one model:
  // directories of its other salts (builds, types of keys) that are in use get equal parts, and the
  // others make room. Removes directories of any model that no server has used for two weeks. Never
  // touches other entries of `dir`. Borrows `kv`. Throws as BlockFiles.
  KvArchive(const std::filesystem::path& dir, const Id& id, int64_t limit_bytes, KvCache& kv);

  bool Has(const Sha256Digest& key, size_t table) const override;
  void Save(const Sha256Digest& key, size_t table, BlockId block) override;
  bool Load(const Sha256Digest& key, size_t table, BlockId block) override;

  const BlockFiles& files() const { return files_; }

 private:
  KvCache& kv_;
  BlockFiles files_;
  std::vector<std::byte> buffer_;
};

}  // namespace tandem::engine
