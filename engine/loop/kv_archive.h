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
  // `salt` names everything that the content depends on besides tokens (PrefixIndex). The files are
  // in a directory of that name below `dir`, at most `limit_bytes` of them. Removes sibling
  // directories that no server has used for kKeepUnused. Borrows `kv`. Throws as BlockFiles.
  KvArchive(const std::filesystem::path& dir, const Sha256Digest& salt, int64_t limit_bytes,
            KvCache& kv);

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
