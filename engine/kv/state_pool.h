#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "engine/kv/state_cache.h"

namespace tandem::engine {

// Counts the holders of states, and finds snapshots; never touches their bytes. Engine thread only.
// A slot has holders (sequences whose state it is, or a step that writes it), or holds a snapshot
// under the key of a prefix (PrefixKey), or both, or is free. Free slots go first, then the
// snapshot that was used least recently.
class StatePool {
 public:
  explicit StatePool(int64_t n_states);

  // A slot with one holder, or nullopt when all have holders (an ordinary event).
  std::optional<StateId> TryAllocate();
  void AddRef(StateId id);  // also of a snapshot without holders
  void Release(StateId id);
  // Whether its holder may overwrite it: nobody else holds it, and it is no snapshot.
  bool MayWrite(StateId id) const;
  int32_t references(StateId id) const { return slots_.references(BlockId{id.value}); }

  // Makes the slot the snapshot of a prefix. Does nothing when the prefix has one already, or when
  // memory runs out. REQUIRES: the slot is no snapshot.
  void Publish(const Sha256Digest& key, StateId id);
  std::optional<StateId> Find(const Sha256Digest& key) const;
  // The slot is no snapshot from now on. Ignores other slots.
  void Forget(StateId id);
  void ForgetAll();

  int64_t n_states() const { return slots_.capacity_blocks(); }
  int64_t num_held() const { return n_states() - slots_.num_free(); }
  int64_t num_snapshots() const { return static_cast<int64_t>(key_of_.size()); }

 private:
  BlockPool slots_;  // its blocks are our slots; cached means snapshot
  std::unordered_map<Sha256Digest, StateId, DigestHash> slot_of_;
  std::unordered_map<StateId, Sha256Digest> key_of_;
};

}  // namespace tandem::engine
